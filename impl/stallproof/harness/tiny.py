"""A tiny random Llama and its tokenizer, made in a second, no network; greedy output depends on context."""

from __future__ import annotations

import json
import os
from pathlib import Path

from stallproof.harness.config import _TINY

VOCABULARY = int(_TINY["vocab_size"])  # type: ignore[call-overload]


def _letters() -> list[str]:
    """The characters that stand for the bytes 0 to 255 in a byte-level vocabulary."""
    plain = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def vocabulary() -> list[str]:
    """Token id -> text: two special ones, one for each byte, pairs of letters for the rest."""
    pairs = (a + b for a in "abcdefghijklmnopqrstuvwxyz" for b in "abcdefghijklmnopqrstuvwxyz")
    words = ["<s>", "</s>", *_letters()]
    return words + [next(pairs) for _ in range(VOCABULARY - len(words))]


def _tokenizer(folder: Path) -> None:
    """Byte-level, without merges."""
    words = vocabulary()
    no = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    plain: dict[str, object] = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    whole: dict[str, object] = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": i, "content": words[i], **no, "special": True} for i in (0, 1)],
        "pre_tokenizer": {"type": "ByteLevel", **plain}, "decoder": {"type": "ByteLevel", **plain},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": {w: i for i, w in enumerate(words)}, "merges": [],
        },
    }  # fmt: skip
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    for name, content in (("tokenizer_config.json", about), ("tokenizer.json", whole)):
        part = folder / f"{name}.{os.getpid()}"
        part.write_text(json.dumps(content))
        part.replace(folder / name)


def make(folder: Path, seed: int = 0) -> Path:
    """Configuration, weights and tokenizer in ``folder``; what is there is used again."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tokenizer.json").exists():
        _tokenizer(folder)
    weights = folder / "model.safetensors"
    if weights.exists():
        return folder
    c: dict = _TINY
    hidden, inner, vocabulary = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    heads, kv, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    random = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * (gain / columns**0.5)

    tensors = {
        # large embeddings and a separate head: neighbouring logits are far apart, so that rounding, which
        # differs between batch shapes, does not decide which token is greatest
        "model.embed_tokens.weight": matrix(vocabulary, hidden, 8.0),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": matrix(vocabulary, hidden, 8.0),
    }
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        tensors |= {
            p + "input_layernorm.weight": torch.ones(hidden),
            p + "post_attention_layernorm.weight": torch.ones(hidden),
            p + "self_attn.q_proj.weight": matrix(heads * size, hidden, 2.0),
            p + "self_attn.k_proj.weight": matrix(kv * size, hidden, 2.0),
            p + "self_attn.v_proj.weight": matrix(kv * size, hidden, 2.0),
            p + "self_attn.o_proj.weight": matrix(hidden, heads * size, 2.0),
            p + "mlp.gate_proj.weight": matrix(inner, hidden),
            p + "mlp.up_proj.weight": matrix(inner, hidden),
            p + "mlp.down_proj.weight": matrix(hidden, inner),
        }
    part = weights.with_suffix(f".{os.getpid()}")
    save_file(tensors, part, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**c, "tie_word_embeddings": False}, indent=1))
    part.replace(weights)
    return folder

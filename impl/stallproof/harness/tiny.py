"""A tiny random Llama, made in a second without network; its greedy output depends on context."""

from __future__ import annotations

import json
from pathlib import Path

from stallproof.harness.config import _TINY

VOCABULARY = int(_TINY["vocab_size"])  # type: ignore[call-overload]


def make(folder: Path, seed: int = 0) -> Path:
    """``config.json`` and ``model.safetensors`` in ``folder``; reused if they are there."""
    import torch
    from safetensors.torch import save_file

    weights = folder / "model.safetensors"
    if weights.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
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
    part = weights.with_suffix(".part")
    save_file(tensors, part, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**c, "tie_word_embeddings": False}, indent=1))
    part.replace(weights)
    return folder

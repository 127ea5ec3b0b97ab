"""A model hub cache with hand-written configurations, so that vLLM's own tests find their models offline.

No weights and no tokenizers: scheduler tests never need them. Hidden sizes are small on purpose.
"""

from __future__ import annotations

import json
from pathlib import Path

REVISION = "0" * 40

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
_OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 64,
    "ffn_dim": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "vocab_size": 50272,
    "word_embed_proj_dim": 64,
    "do_layer_norm_before": True,
    "torch_dtype": "float16",
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "activation_function": "relu",
}
MODELS: dict[str, dict[str, object]] = {
    "facebook/opt-125m": _OPT,
    "facebook/opt-350m": _OPT,
    "meta-llama/Llama-3.2-1B-Instruct": _LLAMA,
    "Qwen/Qwen3-0.6B": _LLAMA
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "max_position_embeddings": 40960,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen3-Next-80B-A3B-Instruct": _LLAMA
    | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "vocab_size": 151936,
    },
}


def make(home: Path) -> None:
    """Write the cache below ``home`` (to be given as ``HF_HOME``)."""
    for name, config in MODELS.items():
        base = home / "hub" / ("models--" + name.replace("/", "--"))
        snapshot = base / "snapshots" / REVISION
        snapshot.mkdir(parents=True, exist_ok=True)
        (base / "refs").mkdir(exist_ok=True)
        (base / "refs" / "main").write_text(REVISION)
        (snapshot / "config.json").write_text(json.dumps(config))

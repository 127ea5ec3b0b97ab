"""Runs inside an engine: vLLM with its usual processes; the sanitizer comes as a plug-in."""

import os
import sys
import tempfile
from pathlib import Path

os.environ.update(STALLPROOF_CPU_ASYNC="1", OMP_NUM_THREADS="1", VLLM_LOGGING_LEVEL="ERROR")


def main() -> None:
    from vllm import LLM, SamplingParams

    from stallproof.harness import cpu_async, tiny

    cpu_async.register()
    llm = LLM(
        model=str(tiny.make(Path(tempfile.gettempdir()) / f"stallproof-tiny-{os.getuid()}")),
        skip_tokenizer_init=True, max_model_len=256, num_gpu_blocks_override=9, block_size=32,
        async_scheduling=True, enforce_eager=True, enable_prefix_caching=False, dtype="float32",
        scheduler_cls=sys.argv[1], disable_log_stats=True,
        kv_transfer_config={
            "kv_connector": "ScriptedConnector", "kv_connector_module_path": "stallproof.harness.connector",
            "kv_role": "kv_both", "kv_connector_extra_config": {"share": 0.75},
        },
    )  # fmt: skip
    engine, tokens, late = llm.llm_engine, {}, False

    def add(name: str, script: dict) -> None:
        sampling = SamplingParams(
            temperature=0.0, max_tokens=30, ignore_eos=True, detokenize=False,
            extra_args={"kv_transfer_params": {"script": script}},
        )  # fmt: skip
        engine.add_request(name, {"prompt_token_ids": [7 + len(name)] * 200}, sampling)

    add("first", {"send": None, "tokens": 0})
    while engine.has_unfinished_requests():
        for o in engine.step():
            tokens[o.request_id.split("-")[0]] = len(o.outputs[0].token_ids)
        if tokens.get("first", 0) >= 5 and not late:
            late = True
            engine.abort_request(["first"])
            add("second", {"tokens": 160, "delay": 3})
    print("TOKENS", tokens, flush=True)
    engine.engine_core.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()

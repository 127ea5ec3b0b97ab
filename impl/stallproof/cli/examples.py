"""Examples and exit codes shown at the end of every verb's ``--help``; one place, so that they stay alike."""

from __future__ import annotations

CODES = (
    "Exit codes: 0 fine, 1 a finding, 2 bad input or cannot tell, 3 unsupported version, platform or tool."
)

#: verb -> command lines; each is tested to be accepted by the verb's own parser.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "check": ("stallproof check", "stallproof check --list", "stallproof check --json --no-proofs"),
    "prove": ("stallproof prove", "stallproof prove --list", "stallproof prove --assumptions"),
    "explain": ("stallproof explain", "stallproof explain ping-pong"),
    "engines": ("stallproof engines up 0.32.0", "stallproof engines list"),
    "run": (
        "stallproof run tests/scenarios/wedge-57841.toml --vllm 0.23.0",
        "stallproof run tests/scenarios --vllm 0.28.0 --scheduler stallproof -o traces",
    ),
    "replay": ("stallproof replay run.jsonl", "stallproof replay --all --json run.0000.jsonl run.0001.jsonl"),
    "report": (
        "stallproof report run.jsonl",
        "stallproof report run.0000.jsonl run.0001.jsonl -o run.html",
        "stallproof report - -o - < run.jsonl > run.html",
        "stallproof report --gap ping-pong",
    ),
    "export": ("stallproof export run.jsonl --perfetto run.perfetto.json",),
    "diagnose": (
        "stallproof diagnose vllm.log",
        "kubectl logs POD | stallproof diagnose --json -",
    ),
    "watch": (
        "stallproof watch --metrics http://127.0.0.1:8000/metrics",
        "stallproof watch --metrics http://127.0.0.1:8000/metrics --probe",
    ),
    "hunt": ("stallproof hunt --scheduler-cls vllm.v1.core.sched.scheduler.Scheduler --minutes 5",),
    "simulate": ("stallproof simulate --synthetic 200 --rate 20 --blocks 120 --scheduler stock",),
    "doctor": ("stallproof doctor", "stallproof doctor --json"),
    "completion": (
        'eval "$(stallproof completion bash)"    # in ~/.bashrc',
        'eval "$(stallproof completion zsh)"     # in ~/.zshrc',
        "stallproof completion fish | source     # in ~/.config/fish/config.fish",
    ),
}


def epilog(verb: str, text: str = "") -> str:
    """The end of the help page of ``verb``; without the codes if its own ``text`` explains them."""
    lines = EXAMPLES.get(verb, ())
    shown = "Examples:\n\n\b\n" + "\n".join(f"  {line}" for line in lines) + "\n\n" if lines else ""
    return shown + ("" if "exit code" in text.lower() else CODES)

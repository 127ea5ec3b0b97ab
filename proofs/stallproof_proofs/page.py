"""The page ``docs/proofs.md``, from results: theorems, counts, times, twins, assumptions, trust base."""

from __future__ import annotations

import io
import random
import tokenize
from collections.abc import Sequence
from pathlib import Path

from stallproof_proofs.registry import assumptions, theories
from stallproof_proofs.result import Assumption, Result
from stallproof_proofs.theory import Inductive, Theory

#: name of the promise -> prefixes of the conjuncts that prove it, and the glue it needs
PROMISE: dict[str, tuple[tuple[str, ...], str]] = {
    "Conservation": (("Conservation", "partition"), "induction"),
    "OneOwner / RefCount": (("OneOwner", "RefCount"), "sum_facts"),
    "InFlightSafe": (("InFlightSafe",), ""),
    "XferSafe": (("XferSafe",), ""),
    "StoreSafe": (("StoreSafe",), ""),
    "NoDoubleFree / NoLeak": (("NoDoubleFree", "NoLeak"), ""),
    "NoZeroPre, bound on preemptions": (("PreemptPaid",), ""),
    "EvictCoupled": (("EvictCoupled",), ""),
    "NoInversion": (("NoInversion",), ""),
    "NoWedge": (("NoWedge",), ""),
    "LoopRank": (("RunLoop", "AdmLoop", "Patience"), "iterations"),
    "No late token lost (SpareInFlight)": (("NothingLost",), ""),
    "A lost late token is paid for (P >= D - 1)": (("LostPaid", "Decreases.window"), "windows"),
    "Termination": (("Decreases", "NoWedge"), "lexicographic"),
    "NoStarvation, with patience": (
        (
            "NoStarvation",
            "Bypass",
            "Patience.steps",
            "Decreases",
            "Drain",
            "NoInversion",
            "NoWedge",
            "PreemptPaid",
        ),
        "starvation_glue",
    ),
    "Bypass bound": (("Bypass", "OneTurn", "Turns"), "watched"),
    "A kept turn begins": (("TurnBegins",), "turn_begins"),
    "Seated": (("Seated",), ""),
    "BoundedWait (late, duplicate, unknown reports)": (("BoundedWait",), "finite_answers"),
    'DeferralDeadline ("not yet" without end)': (("Deferral",), "finite_answers"),
    "AdapterShare": (("AdapterShare",), "sum_facts"),
    "Feasible (tested again in each call)": (("promoted",), ""),
}

_KINDS = {
    "contract": "Contract of the engine and its connectors (checked on recorded traces, never proved)",
    "model": "Relations written by hand, not derived from a tested transition function",
    "glue": "Mathematics outside the solver",
    "scope": "What the theorems do not speak about",
}


def glance(results: Sequence[Result]) -> list[str]:
    """The promise, name by name: which obligations prove it, how many, with what glue."""
    out = [
        "## The promise at a glance",
        "",
        "| promise | obligations | twins | in theories | glue |",
        "|---|---|---|---|---|",
    ]
    for name, (prefixes, glue) in PROMISE.items():
        mine = [r for r in results if _conjunct(r.name).startswith(prefixes)]
        ob = [r for r in mine if r.kind == "obligation"]
        tw = [r for r in mine if r.kind == "twin"]
        where = ", ".join(dict.fromkeys(f"`{r.theory}`" for r in ob))
        out.append(f"| {name} | {_of(ob)} | {_of(tw)} | {where} | {glue} |")
    return [*out, ""]


def _conjunct(name: str) -> str:
    """``theory/action/conjunct`` -> conjunct; a lemma's name for a list of lemmas."""
    parts = name.split("/")
    return parts[1] if parts[0] in ("sums", "loops", "sharing") else parts[-1]


def code_lines(path: Path) -> int:
    """Lines that hold code: no comments, no documentation strings, no blank lines."""
    lines: set[int] = set()
    previous = tokenize.INDENT
    skip = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
    )
    for tok in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        starts = previous in (
            tokenize.INDENT,
            tokenize.NEWLINE,
            tokenize.DEDENT,
            tokenize.NL,
            tokenize.ENCODING,
        )
        docstring = tok.type == tokenize.STRING and starts
        if tok.type not in skip and not docstring and tok.type != tokenize.ENDMARKER:
            lines.update(range(tok.start[0], tok.end[0] + 1))
        if tok.type not in (tokenize.COMMENT,):
            previous = tok.type
    return len(lines)


def sizes() -> dict[str, int]:
    """Code lines: what is trusted, what is proof, what is proved about."""
    here = Path(__file__).parent
    count = lambda *dirs: sum(code_lines(p) for d in dirs for p in sorted(d.rglob("*.py")))  # noqa: E731
    out = {
        "systems": count(here / "systems"),
        "statements": count(here / "statements"),
        "proofs": count(here / "proofs"),
        "machinery": sum(code_lines(p) for p in here.glob("*.py")),
    }
    import stallproof

    core = Path(stallproof.__file__).parent / "core"
    out["core"] = count(core)
    return out


def _theory(th: Theory, results: Sequence[Result]) -> list[str]:
    mine = [r for r in results if r.theory == th.name]
    proved = [r for r in mine if r.kind == "obligation"]
    twins = [r for r in mine if r.kind == "twin"]
    notes = {o.name: o.note for o in th.obligations() if o.kind == "twin"}
    out = [f"### {th.title} (`{th.name}`)", "", th.theorem, ""]
    out += [
        f"{sum(r.ok for r in proved)} of {len(proved)} obligations proved, "
        f"{sum(r.ok for r in twins)} of {len(twins)} twins refuted, "
        f"{sum(r.seconds for r in mine):.1f} s, slowest {max((r.seconds for r in mine), default=0):.2f} s.",
        "",
    ]
    if twins:
        runs = _runs(th)
        last = " reachable run: promise broken after |" if runs else ""
        out += [
            f"| twin (what is taken away) | refuted | what it stands for |{last}",
            f"|---|---|---|{'---|' * bool(runs)}",
        ]
        for r in twins:
            name = r.name.removeprefix(th.name + "/")
            run = f" {runs.get(name, '')} |" if runs else ""
            out.append(f"| `{name}` | {'yes' if r.ok else r.status} | {notes[r.name]} |{run}")
        out.append("")
    spare = unneeded_guards(th, mine)
    if spare:
        out += [f"Guards that the proof does not need: {', '.join(f'`{g}`' for g in spare)}.", ""]
    return out


def _runs(th: Theory) -> dict[str, str]:
    """Twins with a script -> the broken promise and the actions of a run that breaks it."""
    from stallproof_proofs import walk, walk_counts

    if not isinstance(th, Inductive) or th.name not in {**walk.SCRIPTS, **walk_counts.SCRIPTS}:
        return {}
    out = {}
    for t in th.twins:
        if th.name in walk.SCRIPTS:
            run = walk.find(th, t)
        elif walk_counts.script_of(th, t):
            run = walk_counts.find(th, t)
        else:
            continue
        text = f"{run.broken[0]}: {' '.join(run.steps)}" if run else "none found"
        out[f"{t.action}-{t.guard}/{t.conjunct}"] = text
    return out


def unneeded_guards(th: Theory, results: Sequence[Result]) -> list[str]:
    """``action.guard`` of every guard whose removal breaks no conjunct: the theorem holds without it."""
    if not isinstance(th, Inductive):
        return []
    needed = {(r.name.split("/")[1], f.removeprefix("-guard ")) for r in results for f in r.fails_if}
    needed |= {(t.action, t.guard) for t in th.twins}
    actions = th.system.actions(th.system.vocabulary.state())
    return [f"{a.name}.{g}" for a in actions for g in a.guards if (a.name, g) not in needed]


def _of(results: Sequence[Result]) -> str:
    return f"{sum(r.ok for r in results)} of {len(results)}"


def evidence(transitions: int = 2_000, configurations: int = 20, seed: int = 0) -> list[str]:
    """The section on the model: relations against the model, the measure on reachable states."""
    from stallproof_proofs import differential_adapters, reach
    from stallproof_proofs.differential import run

    d = run(seed, transitions)
    loras = differential_adapters.run(seed, transitions)
    rng = random.Random(seed)
    checks = [reach.check(reach.random_constants(rng), 1_500) for _ in range(configurations)]
    out = [
        "## Tied to the model",
        "",
        "Relations of theory `order` run on states of the model (`stallproof prove --differential N`): "
        f"{d.transitions} transitions, {d.micro} micro-steps, guards true {d.enabled} times and false "
        f"{d.disabled} times, "
        f"**{d.found} differences** in guards or post-states. A relation with a guard or an update left out "
        "shows differences (tests).",
        "",
        "Relations of theory `adapters` beside the admissions of the model: "
        f"{loras.calls} calls, a request may be admitted {loras.asked[True]} times and must wait "
        f"{loras.asked[False]} times, {sum(loras.by_action.values())} micro-steps, "
        f"**{loras.found} differences**.",
        "",
        f"The measure, written once more in plain Python, on {sum(c.transitions for c in checks)} "
        f"transitions of {configurations} random configurations of the model: raised "
        f"{sum(bool(c.raised) for c in checks)} times; the oldest request was preempted before a token of "
        f"its residence {sum(len(c.unpaid) for c in checks)} times in {sum(c.preemptions for c in checks)} "
        "preemptions.",
        "",
        "A counterexample to induction may be unreachable; these are reachable in the model:",
        "",
        "| rule removed | action that raises the measure | actions from the initial state |",
        "|---|---|---|",
    ]
    for rule in reach.REMOVED:
        found = reach.search(rule, limit=800)
        raised = found[1].raised if found else None
        out.append(f"| {rule} | {raised[0] if raised else 'none found'} | {raised[1] if raised else ''} |")
    out += ["", *_windows(seed)]
    bounds = reach.preemption_bounds([(100, 200, 1)] * 2)
    out += [
        "",
        "Bound on preemptions (`reach.preemption_bounds`): the oldest unfinished request at most "
        f"`total - prompt` times; for two requests of 100 + 100 tokens {bounds[0]} and {bounds[1]} (the "
        "second is a worst case over all behaviours, far above what happens). Arrivals behind a request do "
        "not enter.",
        "",
    ]
    return out


def _windows(seed: int, configurations: int = 80, limit: int = 1_500) -> list[str]:
    """What theory ``dropped`` says of windows, on the model."""
    from stallproof_model.state import constants
    from stallproof_proofs import windows

    rng = random.Random(seed)
    kept = [windows.check(windows.random_constants(rng), limit) for _ in range(configurations)]
    short = [windows.check(windows.random_constants(rng, 0), limit) for _ in range(configurations // 8)]
    least = windows.check(constants(**windows.LOSES))
    run = windows.follow_run(constants(**windows.RAISES), windows.RAISES_RUN)
    assert least.first
    return [
        f"Late tokens dropped, nobody spared, `P = D - 1` (theory `dropped`), "
        f"{sum(c.transitions for c in kept)} transitions of {configurations} random configurations: "
        f"{sum(c.losses for c in kept)} calls lost a token, the window's measure rose "
        f"{sum(len(c.wrong) for c in kept)} times; with `P = 0` {sum(len(c.wrong) for c in short)} times in "
        f"{sum(c.transitions for c in short)}. Patience for all steps in flight does not spare every token: "
        f"the shortest run that loses one has {least.first[0]} actions (`windows.LOSES`). In "
        f"`windows.RAISES` ({len(windows.RAISES_RUN.split())} actions) the call that loses it raises the "
        f"measure of theory `order` ({run.raised} of {run.losses}), and nothing "
        "else goes down in it: hence windows.",
        "",
    ]


def _assumption(a: Assumption) -> str:
    by = f" Checked by: {a.checked_by}." if a.checked_by else ""
    return f"- **{a.name}** ({', '.join(a.theories)}): {a.text}{by}"


def page(results: Sequence[Result], z3_version: str, evidence: Sequence[str] = ()) -> str:
    """The whole page. Deterministic but for the times."""
    ths = theories()
    ob = [r for r in results if r.kind == "obligation"]
    tw = [r for r in results if r.kind == "twin"]
    sa = [r for r in results if r.kind == "sanity"]
    frames = sum(r.kind == "frame" for r in results)
    unseen = sum(not r.fails_if for r in ob)
    out = [
        "# What is proved",
        "",
        "Generated by `stallproof prove --markdown > docs/proofs.md`; do not edit.",
        "",
        f"Z3 {z3_version}: {_of(ob)} obligations proved, {_of(tw)} twins refuted, {_of(sa)} sanity checks "
        f"passed, {sum(r.seconds for r in results):.0f} s of CPU in all. Every proof is unbounded in "
        "requests, "
        "blocks, tokens and steps in flight, unless its theory says otherwise.",
        "",
        "An *obligation* is one conjunct kept by one action (or one lemma). For each, the run also finds "
        "something whose removal makes it fail (`--thorough` looks again, a quick run has a record). "
        f"{frames} more are proved but nothing could break them (no removal has a counterexample with three "
        "requests), mostly conjuncts about calls and actions between calls: they are frames and not counted. "
        f"{_unseen(unseen)} A "
        "*twin* is a fixed removal, refuted by name. A *sanity* check shows that hypotheses do not contradict"
        " each other.",
        "",
        "| theory | obligations | twins | seconds |",
        "|---|---|---|---|",
    ]
    for th in ths:
        mine = [r for r in results if r.theory == th.name]
        out.append(
            f"| [{th.title}](#{_anchor(th)}) | {sum(r.kind == 'obligation' for r in mine)} | "
            f"{sum(r.kind == 'twin' for r in mine)} | {sum(r.seconds for r in mine):.1f} |"
        )
    out += ["", *glance(results), "## Theorems", ""]
    for th in ths:
        out += _theory(th, results)
    out += evidence
    out += ["## Assumptions", ""]
    for kind, title in _KINDS.items():
        items = [a for a in assumptions() if a.kind == kind]
        if items:
            out += [f"{title}:", "", *map(_assumption, items), ""]
    n = sizes()
    trusted, proof = n["systems"] + n["statements"], n["proofs"]
    out += [
        "## Trust base",
        "",
        "To believe the theorems, read `systems` (transition relations) and `statements`, believe Z3, its "
        "Python binding and the few lines that build verification conditions (`logic.py`, `theory.py`) and "
        "ask about them (`asking.py`, `runner.py`). "
        "`proofs` (auxiliary invariants, measures, twins) needs no trust.",
        "",
        "| part | code lines |",
        "|---|---|",
        *(f"| {k} | {v} |" for k, v in n.items()),
        "",
    ]
    if n["core"]:
        out.append(f"Proof lines per line of the pure core that they speak about: {proof / n['core']:.2f}.")
    out.append(f"Proof lines per line of what is trusted (systems and statements): {proof / trusted:.2f}.")
    return "\n".join(out) + "\n"


def _unseen(n: int) -> str:
    if not n:
        return "All were looked at for that (`--renew-hints`)."
    return f"For {n} nobody has looked yet, or the solver gave up (`--renew-hints` goes on looking)."


def _anchor(th: Theory) -> str:
    text = f"{th.title} {th.name}".lower()
    return "".join(c for c in text.replace(" ", "-") if c.isalnum() or c in "-_")

"""The probes of ``adapters`` on a wheel or source release that is not installed: it is parsed, not run."""

from __future__ import annotations

import ast
import re
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stallproof.errors import BadInput
from stallproof.vllm.adapters import METHODS, PROMOTE, TABLE, Facts, series_of

#: far above any real file; a hostile archive cannot fill the memory
_LARGEST = 8 << 20
_SCHEDULER = "vllm/v1/core/sched/scheduler.py"
_MANAGER = "vllm/v1/core/kv_cache_manager.py"


@dataclass
class Found:
    """What a distribution contains. ``schedulers``: class -> remark, for distributions that build on vLLM."""

    project: str
    version: str
    facts: Facts | None = None
    missing: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    schedulers: dict[str, str] = field(default_factory=dict)


def _members(path: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of the Python files and metadata of an archive; a source release's top folder is cut."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as z:
                for info in z.infolist():
                    if _wanted(info.filename) and info.file_size <= _LARGEST:
                        yield info.filename, z.read(info).decode("utf-8", "replace")
            return
        if tarfile.is_tarfile(path):
            with tarfile.open(path) as t:
                for member in t:
                    name = member.name.partition("/")[2]
                    if member.isfile() and _wanted(name) and member.size <= _LARGEST:
                        handle = t.extractfile(member)
                        if handle is not None:
                            yield name, handle.read().decode("utf-8", "replace")
            return
    except (
        OSError,
        EOFError,
        zipfile.BadZipFile,
        tarfile.TarError,
        RuntimeError,
        NotImplementedError,
    ) as exc:
        raise BadInput(f"not readable: {exc}", path=path, remedy="download the file again") from exc
    raise BadInput("neither a wheel nor a source release", path=path, remedy="give a .whl or .tar.gz file")


def _wanted(name: str) -> bool:
    if re.search(r"(^|\.dist-info/)METADATA$|^PKG-INFO$", name):
        return True
    return name in (_SCHEDULER, _MANAGER) or bool(re.match(r"vllm_ascend/.*schedul[^/]*\.py$", name))


def _class(text: str, name: str, path: Path) -> ast.ClassDef:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as exc:
        raise BadInput(f"its scheduler is not Python: {exc}", path=path, remedy="check the file") from exc
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise BadInput(f"it has no class {name}", path=path, remedy="the release may be outside the known range")


def _methods(node: ast.ClassDef) -> dict[str, list[str]]:
    return {
        f.name: [a.arg for a in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs)]
        for f in node.body
        if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def _text(node: ast.ClassDef, name: str, source: str) -> str:
    for f in node.body:
        if isinstance(f, ast.FunctionDef) and f.name == name:
            return ast.get_source_segment(source, f) or ""
    return ""


def inspect_archive(path: Path) -> Found:
    """Read a vLLM or vllm-ascend distribution and run the probes on it.

    Raises:
        BadInput: unreadable, or not such a distribution.
    """
    if path.is_dir():
        inside = sorted(p.name for p in path.iterdir() if p.suffix == ".whl" or p.name.endswith(".tar.gz"))
        what = f"give one of its files, for example {inside[0]}" if inside else "give a .whl or .tar.gz file"
        raise BadInput("a folder, not a file", path=path, remedy=what)
    if not path.is_file():
        raise BadInput("no such file", path=path, remedy="give a .whl or .tar.gz file of vLLM or vllm-ascend")
    files: dict[str, str] = {}
    meta = ""
    for name, text in _members(path):
        if name.endswith(("METADATA", "PKG-INFO")):
            meta = meta or text
        else:
            files[name] = text
    project = (re.search(r"^Name: (\S+)", meta, re.M) or [None, ""])[1] or ""
    version = (re.search(r"^Version: (\S+)", meta, re.M) or [None, ""])[1] or ""
    if _SCHEDULER in files:
        return _vllm(path, project or "vllm", version, files)
    if any(n.startswith("vllm_ascend/") for n in files):
        return _ascend(path, project, version, files)
    raise BadInput("it is not a distribution of vLLM or vllm-ascend", path=path, remedy="give such a file")


def _vllm(path: Path, project: str, version: str, files: dict[str, str]) -> Found:
    source = files[_SCHEDULER]
    cls = _class(source, "Scheduler", path)
    have = _methods(cls)
    manager = _methods(_class(files.get(_MANAGER, ""), "KVCacheManager", path)).get("allocate_slots", [])
    found = Found(project, version)
    for name, parameters in METHODS.items():
        if name not in have:
            found.missing.append(f"method {name}")
        else:
            found.missing += [f"parameter {p} of {name}" for p in parameters if p not in have[name]]
    if not any(p in have for p in PROMOTE):
        found.missing.append(f"one of the methods {', '.join(PROMOTE)}")
    for p in ("num_external_computed_tokens", "delay_cache_blocks", "new_computed_blocks"):
        if p not in manager:
            found.missing.append(f"parameter {p} of KVCacheManager.allocate_slots")
    body = _text(cls, "schedule", source)
    found.facts = Facts(
        fence="_free_request_blocks" in have,
        guard="_request_blocks_can_be_freed" in have,
        holding="kv_holding_waiting" in _text(cls, "__init__", source),
        select="_select_waiting_queue_for_scheduling" in have,
        reset_list="reset_preempted_req_ids" in body,
        skip_zero="_skip_zero_block_ids" in body or "skip_zeroing_group_ids" in body,
        drop_mode="drop_stale_output" in have.get("_preempt_request", []),
        reserve="reserved_blocks" in manager,
        full_fit="full_sequence_must_fit" in manager,
    )
    expected = TABLE.get(series_of(version)) if version else None
    if expected is not None:
        found.differs = [
            n for n in Facts.__dataclass_fields__ if getattr(found.facts, n) != getattr(expected, n)
        ]
    return found


def _ascend(path: Path, project: str, version: str, files: dict[str, str]) -> Found:
    found = Found(project, version)
    for name, source in sorted(files.items()):
        if not name.startswith("vllm_ascend/"):
            continue
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            continue
        for node in tree.body:
            if not isinstance(node, ast.ClassDef):
                continue
            bases = {b.id for b in node.bases if isinstance(b, ast.Name)}
            if not any("Scheduler" in b for b in bases) or not node.name.endswith(
                ("Scheduler", "DynamicBatch")
            ):
                continue
            text = _text(node, "schedule", source)
            remarks = []
            if not text:
                remarks.append("inherits schedule()")
            else:
                if "super().schedule(" in text:
                    remarks.append("calls super().schedule()")
                own = "allocate_slots" in text
                if own:
                    remarks.append("has a schedule() of its own")
                    if "_preempt_request" not in text:
                        remarks.append("does not call _preempt_request: patience does not reach it")
                    if "reserved_blocks" not in text:
                        remarks.append("rule R added by the guard")
                    if "full_sequence_must_fit" not in text:
                        remarks.append("full fit added by the guard")
            found.schedulers[f"{name}:{node.name}"] = "; ".join(remarks)
    return found

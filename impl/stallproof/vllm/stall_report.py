"""The stall watch at work in an engine: settings from the environment, the warning line, the actions.

``STALLPROOF_ON_STALL`` is ``log`` (default), ``dump``, ``fail_oldest`` or ``raise``. Thresholds are fields of
:class:`~stallproof.core.stall_watch.Limits`, set as ``STALLPROOF_STALL_<FIELD>``, for example
``STALLPROOF_STALL_EXTERNAL_S=60``. A value that makes no sense is refused at start, like every other setting.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path

from stallproof.core.stall_watch import (
    Act,
    Due,
    Limits,
    OnStall,
    Situation,
    StallError,
    StallWatch,
    line,
)
from stallproof.errors import BadInput

log = logging.getLogger("stallproof")

ON_STALL = "STALLPROOF_ON_STALL"
DUMP_DIR = "STALLPROOF_DUMP_DIR"
LIMIT = "STALLPROOF_STALL_"
#: Longest dump of thread stacks, in characters.
MAX_STACKS = 200_000


def settings(environ: Mapping[str, str] | None = None) -> tuple[Limits, OnStall]:
    """Limits and ``on_stall`` of the environment.

    Raises:
        BadInput: a value is not usable; the message names the variable and what it accepts.
    """
    env = os.environ if environ is None else environ
    text = env.get(ON_STALL, "").strip().lower() or OnStall.LOG
    try:
        on_stall = OnStall(text)
    except ValueError:
        raise BadInput(f"{ON_STALL}={text!r}", remedy=f"use one of {', '.join(OnStall)}") from None
    limits = Limits()
    for f in fields(Limits):
        name = LIMIT + f.name.upper()
        text = env.get(name, "").strip()
        if not text:
            continue
        try:
            limits = replace(limits, **{f.name: type(getattr(limits, f.name))(text)})
        except ValueError as exc:
            raise BadInput(f"{name}={text!r}: {exc}", remedy="give a number of seconds or calls") from None
    return limits, on_stall


def thread_stacks() -> str:
    """Python stacks of all threads, names first; bounded, no local variables."""
    names = {t.ident: t.name for t in threading.enumerate()}
    parts: list[str] = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"thread {ident} {names.get(ident, '?')}\n" + "".join(traceback.format_stack(frame)))
    return "\n".join(parts)[:MAX_STACKS]


class StallReporter:
    """Owns one :class:`StallWatch`; call :meth:`after_call` once per scheduling call.

    ``situation(due)`` is called only when a line is due. ``save_ring(directory)`` writes the recorder's ring
    and returns its path, or is None without a recorder. ``fail_oldest(due)`` finishes the oldest blocked
    request with an error and returns its id, or None if there is none that can be finished.
    """

    def __init__(
        self,
        situation: Callable[[Due], Situation],
        *,
        engine: str = "0",
        rules: Iterable[str] = (),
        save_ring: Callable[[Path], str | None] | None = None,
        fail_oldest: Callable[[Due], str | None] | None = None,
        shadow: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        limits, on_stall = settings(environ)
        # In shadow mode nothing may change for a request; a dump changes nothing.
        if shadow and on_stall in (OnStall.FAIL_OLDEST, OnStall.RAISE):
            log.warning("stallproof: %s=%s is not applied in shadow mode", ON_STALL, on_stall.value)
            on_stall = OnStall.LOG
        self.watch = StallWatch(limits, on_stall)
        self.observe = self.watch.observe
        self.situation, self.engine, self.rules = situation, engine, tuple(rules)
        self.save_ring, self.fail_oldest = save_ring, fail_oldest
        self.dump_dir = Path((os.environ if environ is None else environ).get(DUMP_DIR) or ".")

    def after_call(
        self,
        now: float,
        *,
        unfinished: int,
        moved: bool,
        pending: bool,
        advanced: bool = True,
        oldest_wait: float | None = None,
    ) -> None:
        """See :meth:`StallWatch.observe`. Raises :class:`StallError` under ``on_stall = raise`` only."""
        for due in self.observe(
            now,
            unfinished=unfinished,
            moved=moved,
            pending=pending,
            advanced=advanced,
            oldest_wait=oldest_wait,
        ):
            self.report(due)

    def report(self, due: Due) -> None:
        text = line(due, self.situation(due), engine=self.engine, rules=self.rules)
        log.warning("%s", text)
        if due.act is Act.DUMP:
            self._dump(due)
        elif due.act is Act.FAIL_OLDEST and self.fail_oldest is not None:
            failed = self.fail_oldest(due)
            log.warning("stallproof: on_stall=fail_oldest: %s", failed or "no request can be finished")
        elif due.act is Act.RAISE:
            raise StallError(text)

    def _dump(self, due: Due) -> None:
        stem = f"stallproof-stall-{os.getpid()}-{self.watch.opened[due.kind.value]}-{due.kind.value}"
        try:
            self.dump_dir.mkdir(parents=True, exist_ok=True)
            path = self.dump_dir / f"{stem}.stacks.txt"
            path.write_text(thread_stacks(), encoding="utf-8", errors="backslashreplace")
            ring = self.save_ring(self.dump_dir) if self.save_ring is not None else None
        except Exception as exc:  # a full disk must not end the engine
            log.warning("stallproof: on_stall=dump failed: %s", exc)
            return
        log.warning("stallproof: on_stall=dump: stacks in %s, trace %s", path, ring or "not recorded")

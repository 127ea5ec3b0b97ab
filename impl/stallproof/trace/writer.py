"""The recorder's back end: a bounded ring of files, written record by record, engine-independent.

Each part begins with a header that holds a full snapshot and can be checked alone. A record is one
``os.write`` of one whole line to a file opened for appending, so a kill loses at most the record being
written. Nothing here raises into the engine: what cannot be written is counted, and the recording goes on in
a new part with a fresh snapshot, so that a gap never looks like a violation.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from .mirror import Mirror
from .redact import hash_ids
from .schema import (
    SCHEMA,
    Clock,
    Config,
    End,
    Engine,
    Finish,
    Header,
    Outside,
    Record,
    Sched,
    Snapshot,
    Update,
    encoder,
)

#: Environment variable: request ids are written as keyed hashes under this key.
HASH_KEY_ENV = "STALLPROOF_TRACE_HASH_KEY"


class Writer:
    """Write records to a ring of trace files.

    ``path``: with ``max_bytes = 0`` the one file that is written; otherwise parts ``stem.0000.jsonl``,
    ``stem.0001.jsonl`` ... beside it, each at most about ``max_bytes`` long, of which the newest
    ``max_parts`` are kept. ``compress``: a part that is complete is compressed (zstd) in the background.

    ``snapshot`` is called whenever a part begins, right after a record was written: it returns the engine's
    state at that moment (requests, running list, pool). What an engine does not know (fences, deferred
    entries, loads, readers) is filled in from the records written so far; see :class:`.mirror.Mirror`.

    The one thing a caller has to keep: :meth:`write` is called when the state the engine is in is exactly
    the state after the record.

    Opening fails loudly (``OSError``); :meth:`write` and :meth:`close` never raise.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        engine: Engine,
        config: Config,
        snapshot: Callable[[], Snapshot],
        source: Literal["engine", "harness", "simulate", "model", "tlc"] = "engine",
        rules: list[str] | None = None,
        max_bytes: int = 0,
        max_parts: int = 8,
        compress: bool = False,
        clock: Callable[[], float] = time.monotonic,
        hash_key: str | None = None,
        run: str | None = None,
    ) -> None:
        self._base = Path(path)
        self._engine, self._config, self._source = engine, config, source
        self._rules = list(rules or [])
        self._snapshot, self._clock = snapshot, clock
        self._max_bytes, self._max_parts, self._compress = max_bytes, max(1, max_parts), compress
        key = os.environ.get(HASH_KEY_ENV) if hash_key is None else hash_key
        self._key = key.encode() if key else b""
        self._run = run or secrets.token_hex(8)
        self._hashes: dict[str, str] = {}
        self._mirror = Mirror(window=config.window > 0)
        self._buffer = bytearray(1 << 16)
        self._fd = -1
        self._part = -1
        self._parts: list[Path] = []
        self._size = self._n = self._calls = self._finished = 0
        self._lost = self._retry = self._backoff = 0
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        #: records that could not be written, in all
        self.dropped = 0
        self._base.parent.mkdir(parents=True, exist_ok=True)
        self._open()

    # ------------------------------------------------------------------ public

    @property
    def path(self) -> Path:
        """The part that is being written."""
        return self._parts[-1]

    @property
    def run(self) -> str:
        return self._run

    def write(self, record: Record) -> bool:
        """Write one record; ``False`` if it was dropped. Never raises."""
        if self._closed:
            return False
        with self._lock:
            try:
                self._mirror.feed(record)
            except Exception:
                self._drop()
                return False
            if self._fd < 0 and not self._reopen():
                self._drop()
                return False
            if self._reopened:  # the snapshot of the new part already holds this record's effects
                self._reopened = False
                self.dropped += 1
                return False
            try:
                self._put(record)
            except Exception:
                self._drop()
                self._abandon()
                return False
            if type(record) is Sched:
                self._calls += 1
            if type(record) in (Sched, Update, Outside):
                for e in record.ev:  # type: ignore[union-attr]
                    if type(e) is Finish:
                        self._finished += 1
            if self._max_bytes and self._size >= self._max_bytes:
                self._rotate()
            return True

    def close(self, fired: dict[str, int] | None = None) -> None:
        """End the recording in order; ``fired`` counts how often each rule fired. Never raises."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._fd >= 0:
                self._finish_part("", fired or {})
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ------------------------------------------------------------------ parts

    _reopened = False

    def _name(self, part: int) -> Path:
        if not self._max_bytes:
            return self._base if part == 0 else self._base.with_name(f"{self._stem}.{part:04d}.jsonl")
        return self._base.with_name(f"{self._stem}.{part:04d}.jsonl")

    @property
    def _stem(self) -> str:
        return self._base.name.removesuffix(".jsonl")

    def _open(self) -> None:
        part = self._part + 1
        path = self._name(part)
        state = self._mirror.fill(self._snapshot())
        header = Header(
            schema=SCHEMA,
            run=self._run,
            source=self._source,
            engine=self._engine,
            config=self._config,
            clock=Clock(wall=datetime.now(UTC).isoformat(timespec="milliseconds"), mono=self._clock()),
            part=part,
            lost=self._lost,
            rules=self._rules,
            state=state,
        )
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._fd, self._part, self._size, self._n = fd, part, 0, 0
        self._calls = self._finished = 0
        self._put(header)
        self._lost = 0
        self._parts.append(path)
        while len(self._parts) > self._max_parts:
            old = self._parts.pop(0)
            for p in (old, old.with_name(old.name + ".zst")):
                with contextlib.suppress(OSError):
                    p.unlink()

    def _put(self, record: Record) -> None:
        if type(record) is not Header:
            record.n = self._n + 1  # type: ignore[union-attr]
        if self._key:
            record = hash_ids(record, self._hash)
        encoder.encode_into(record, self._buffer)
        self._buffer += b"\n"
        data = self._buffer
        wrote = os.write(self._fd, data)
        if wrote != len(data):
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)  # no half line is left behind
            raise OSError("short write")
        self._size += wrote
        self._n += type(record) is not Header

    def _hash(self, r: str) -> str:
        known = self._hashes.get(r)
        if known is None:
            if len(self._hashes) > 65536:
                self._hashes.clear()
            known = hmac.new(self._key, r.encode(), hashlib.blake2s).hexdigest()[:16] if r else r
            self._hashes[r] = known
        return known

    def _finish_part(self, following: str, fired: dict[str, int]) -> None:
        with contextlib.suppress(Exception):
            self._put(
                End(ts=self._clock(), calls=self._calls, finished=self._finished, fired=fired, next=following)
            )
        self._abandon()
        if self._compress and self._parts:
            thread = threading.Thread(target=_compress, args=(self._parts[-1],), daemon=True)
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
            thread.start()

    def _abandon(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _rotate(self) -> None:
        self._finish_part(self._name(self._part + 1).name, {})
        try:
            self._open()
        except Exception:
            self._abandon()
            self._backoff = self._retry = 1

    def _drop(self) -> None:
        self.dropped += 1
        self._lost += 1

    def _reopen(self) -> bool:
        """After a failure: try again, after ever more records, with a fresh snapshot."""
        self._retry -= 1
        if self._retry > 0:
            return False
        try:
            self._lost += 1  # the record at hand is part of the snapshot, not of the new file
            self._open()
        except Exception:
            self._abandon()
            self._lost -= 1
            self._backoff = self._retry = min(1024, max(1, self._backoff * 2))
            return False
        self._backoff = 0
        self._reopened = True
        return True


def _compress(path: Path) -> None:
    """Compress a complete part; on any failure the plain file stays."""
    temporary = path.with_name(path.name + ".zst.part")
    try:
        import zstandard

        with path.open("rb") as source, temporary.open("wb") as target:
            zstandard.ZstdCompressor(level=3).copy_stream(source, target)
        if path.exists():
            temporary.replace(path.with_name(path.name + ".zst"))
            path.unlink()
        else:  # the ring has dropped it meanwhile
            temporary.unlink()
    except Exception:
        with contextlib.suppress(OSError):
            temporary.unlink()

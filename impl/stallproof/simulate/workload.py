"""Workloads: who asks for what, when. Read in place, never copied into the project.

Formats: Mooncake (JSON lines with block hashes, FAST'25), Azure LLM inference 2023 (CSV, Splitwise, ISCA'24),
ServeGen (per-client statistics, arXiv 2505.09999), our own traces, and a small generator for tests.
"""

from __future__ import annotations

import ast
import csv
import math
import random
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Annotated

import msgspec

from stallproof.errors import BadInput

#: Tokens covered by one entry of Mooncake's ``hash_ids``.
MOONCAKE_BLOCK = 512
#: milliseconds; a later arrival (a hundred years) is a wrong unit, and a virtual clock would get stuck on it
MOONCAKE_LATEST = 100 * 366 * 86400 * 1000
#: ServeGen: seconds of one arrival window, and of one window of token-count statistics.
SERVEGEN_WINDOW, SERVEGEN_LENGTHS = 600, 21600


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a workload.

    ``at``: arrival in seconds from the start; ``prompt``, ``output``: tokens; ``chain``: one integer per
    ``MOONCAKE_BLOCK`` prompt tokens, equal integers meaning equal prefixes (empty: nothing is shared).
    """

    rid: str
    at: float
    prompt: int
    output: int
    prio: int = 0
    chain: tuple[int, ...] = ()

    def block_hash(self, index: int, block_size: int) -> bytes:
        """Content hash of block ``index`` (tokens ``[index * block_size, (index + 1) * block_size)``).

        Works for every block size: a block is named by the shared prefix that its last token lies in and by
        its end. Blocks that reach past the shared prompt are private to the request.
        """
        return self.block_hashes(index, index + 1, block_size)[0]

    def block_hashes(self, first: int, last: int, block_size: int) -> list[bytes]:
        """:meth:`block_hash` of blocks ``[first, last)``.

        Names, not digests: a scheduler only compares them, and tens of millions are made in an hour's run.
        """
        chain, prompt = self.chain, min(self.prompt, len(self.chain) * MOONCAKE_BLOCK)
        private = self.rid.encode()
        return [
            (end << 64 | chain[(end - 1) // MOONCAKE_BLOCK]).to_bytes(16, "big")
            if end <= prompt
            else b"\xff" + end.to_bytes(8, "big") + private
            for end in range((first + 1) * block_size, (last + 1) * block_size, block_size)
        ]

    def session(self) -> int | str:
        """What this request has in common with the other turns of its conversation, as far as is known.

        The first block of a Mooncake prompt is the service's system prompt, the second one the user's.
        """
        return self.chain[1] if len(self.chain) > 1 else self.rid


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0, le=2**62)]]


def mooncake(path: Path) -> Iterator[Job]:
    """Read a Mooncake trace. Raises :class:`BadInput` with the line of the first bad row."""
    decode = msgspec.json.Decoder(_MooncakeRow).decode
    with path.open("rb") as rows:
        for n, row in enumerate(rows, 1):
            if not row.strip():
                continue
            try:
                r = decode(row)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
                raise BadInput(
                    f"not a Mooncake row ({exc})", path=path, line=n,
                    remedy="each line needs timestamp, input_length, output_length, hash_ids",
                ) from exc  # fmt: skip
            if not 0 <= r.timestamp < MOONCAKE_LATEST:
                raise BadInput(
                    f"timestamp {r.timestamp}", path=path, line=n,
                    remedy="milliseconds from the start of the trace are expected",
                )  # fmt: skip
            if r.input_length < 1 or len(r.hash_ids) != -(-r.input_length // MOONCAKE_BLOCK):
                raise BadInput(
                    f"{len(r.hash_ids)} hash_ids for {r.input_length} prompt tokens", path=path, line=n,
                    remedy=f"one hash per {MOONCAKE_BLOCK} tokens is expected",
                )  # fmt: skip
            yield Job(
                f"m{n}", r.timestamp / 1000, r.input_length, max(1, r.output_length), 0, tuple(r.hash_ids)
            )


def azure(path: Path) -> Iterator[Job]:
    """Read an Azure LLM inference trace (2023). No prefix information."""
    # A byte that is no UTF-8 makes its row wrong, not the reader.
    with path.open(newline="", encoding="utf-8", errors="replace") as handle:
        start: datetime | None = None
        rows = csv.DictReader(handle)
        for n in count(1):
            try:
                if (row := next(rows, None)) is None:
                    return
                # 100 ns digits: Python parses microseconds.
                stamp = datetime.fromisoformat(row["TIMESTAMP"][:26])
                prompt, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
                start = start or stamp
                at = (stamp - start).total_seconds()
            except (KeyError, TypeError, ValueError, csv.Error) as exc:
                raise BadInput(
                    f"not an Azure row ({exc})", path=path, line=rows.reader.line_num,
                    remedy="columns TIMESTAMP, ContextTokens, GeneratedTokens are expected",
                ) from exc  # fmt: skip
            yield Job(f"a{n}", at, max(1, prompt), max(1, output))


def servegen(folder: Path, *, seed: int = 0, start: float = 0.0, length: float = 3600.0) -> Iterator[Job]:
    """Draw the requests of ``[start, start + length)`` seconds from ServeGen's per-client statistics.

    Renewal arrivals within each window, token counts from the window's pmf. The draw of a window depends on
    nothing but seed, client and window, so slices of the same seed agree where they overlap.
    """
    clients = sorted(folder.glob("chunk-*-trace.csv"))
    if not clients:
        raise BadInput("no chunk-*-trace.csv", path=folder, remedy="give a ServeGen model folder")
    jobs: list[Job] = []
    for client in clients:
        jobs += _servegen_client(client, _servegen_lengths(client), seed, start, start + length)
    jobs.sort(key=lambda j: (j.at, j.rid))
    return iter(jobs)


#: requests of one window at most: 1,000 a second is far above any client of the data set
_WINDOW_MAX = 1000 * SERVEGEN_WINDOW


def _servegen_lengths(client: Path) -> dict[str, dict[str, str]]:
    """Token counts by window of one client, from the file beside it."""
    path = client.with_name(client.name.replace("-trace.csv", "-dataset.json"))
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, str]])
    except OSError as exc:
        what = exc.strerror or str(exc)
        raise BadInput(what, path=path, remedy=f"it belongs beside {client.name}") from exc
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise BadInput(
            f"not ServeGen's token counts ({exc})", path=path,
            remedy='expected is {"0": {"input_tokens": "{...}", "output_tokens": "{...}"}, ...}',
        ) from exc  # fmt: skip


def _servegen_client(path: Path, data: dict, seed: int, start: float, end: float) -> Iterator[Job]:
    prefix = path.name.removesuffix("-trace.csv")
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as handle:
            rows = [(reader.line_num, r) for reader in [csv.reader(handle)] for r in reader if r]
    except csv.Error as exc:
        raise BadInput(f"not CSV ({exc})", path=path, remedy="give a ServeGen model folder") from exc
    for n, (line, row) in enumerate(rows, 1):
        try:
            begin, rate, kind = float(row[0]), float(row[1]), row[3]
            if rate <= 0 or begin + SERVEGEN_WINDOW <= start or begin >= end:
                continue
            shape, scale = float(row[4]), float(row[5])
            if not (0 <= begin < math.inf and 0 < shape < math.inf and 0 < scale < math.inf):
                raise ValueError("start, shape and scale are finite, shape and scale above 0")
        except (IndexError, ValueError) as exc:
            raise BadInput(
                f"not a ServeGen window ({exc})", path=path, line=line,
                remedy="columns are start, rate, cv, Gamma or Weibull, shape, scale",
            ) from exc  # fmt: skip
        lengths = data.get(str(int(begin // SERVEGEN_LENGTHS * SERVEGEN_LENGTHS)), {})
        pin, pout = (
            _pmf(lengths.get("input_tokens", "{}"), path),
            _pmf(lengths.get("output_tokens", "{}"), path),
        )
        if not pin[0] or not pout[0]:
            continue
        rng = random.Random(f"{seed}:{path.name}:{n}")
        t, drawn = 0.0, 0
        while True:
            t += rng.gammavariate(shape, scale) if kind == "Gamma" else rng.weibullvariate(scale, shape)
            if t >= SERVEGEN_WINDOW:
                break
            drawn += 1
            if drawn > _WINDOW_MAX:
                raise BadInput(
                    f"more than {_WINDOW_MAX:,} requests in one window", path=path, line=line,
                    remedy="shape and scale are those of the seconds between requests",
                )  # fmt: skip
            prompt, output = rng.choices(*pin)[0], rng.choices(*pout)[0]
            if start <= begin + t < end:
                yield Job(f"{prefix}-{n}-{drawn}", begin + t, max(1, prompt), max(1, output))


_TOO_DEEP = (RecursionError, MemoryError)  # what the parser says of too many brackets


@lru_cache(maxsize=256)
def _pmf(text: str, path: Path) -> tuple[list[int], list[float]]:
    try:
        pmf = ast.literal_eval(text)  # a dict literal; literal_eval runs nothing
        counts, weights = [int(k) for k in pmf], [float(v) for v in pmf.values()]
        if weights and not (min(weights) >= 0 and 0 < sum(weights) < math.inf):
            raise ValueError("weights are not below 0, and not all 0")
        return counts, weights
    except (ValueError, SyntaxError, AttributeError, TypeError, OverflowError, *_TOO_DEEP) as exc:
        path = path.with_name(path.name.replace("-trace.csv", "-dataset.json"))
        raise BadInput(
            f"not a pmf of token counts ({str(exc)[:120]})", path=path,
            remedy="expected is {tokens: probability, ...} as text",
        ) from exc  # fmt: skip


def synthetic(
    count: int, *, seed: int = 0, rate: float = 2.0, prompt: tuple[int, int] = (16, 512),
    output: tuple[int, int] = (1, 128), share: float = 0.5,
) -> Iterator[Job]:  # fmt: skip
    """A small Poisson workload for tests; a fraction ``share`` continues an earlier prompt."""
    rng = random.Random(seed)
    at, fresh = 0.0, 0
    chains: list[list[int]] = []
    for n in range(count):
        at += rng.expovariate(rate)
        length = rng.randint(*prompt)
        chain = list(rng.choice(chains)) if chains and rng.random() < share else []
        need = -(-length // MOONCAKE_BLOCK)
        while len(chain) < need:
            fresh += 1
            chain.append(fresh)
        chain = chain[:need]
        chains.append(chain)
        yield Job(f"s{n}", at, length, rng.randint(*output), rng.choice((0, 0, 1)), tuple(chain))


def detect(path: Path) -> str:
    """Format of a workload by its looks: ``mooncake``, ``azure``, ``servegen`` or ``trace``."""
    if path.is_dir():
        return "servegen"
    if path.suffix in (".gz", ".zst"):  # only our own traces are read compressed
        return "trace"
    try:
        with path.open("rb") as handle:
            head = handle.read(4096)
    except OSError as exc:
        raise BadInput(f"cannot read ({exc.strerror})", path=path) from exc
    if head.startswith(b"TIMESTAMP"):
        return "azure"
    if b'"hash_ids"' in head:
        return "mooncake"
    if b"stallproof-trace/" in head:
        return "trace"
    raise BadInput(
        "unknown workload format", path=path,
        remedy="give a Mooncake .jsonl, an Azure .csv, a ServeGen folder or a Stallproof trace",
    )  # fmt: skip


def select(
    jobs: Iterable[Job], *, start: float = 0.0, length: float | None = None, speedup: float = 1.0,
    limit: int | None = None, max_len: int | None = None, share: float = 1.0, jitter: float = 0.0,
    seed: int = 0,
) -> list[Job]:  # fmt: skip
    """Cut ``[start, start + length)`` seconds, shift to 0, compress arrivals by ``speedup``.

    ``max_len`` drops requests whose prompt + output exceed it (the report counts them). ``share``: only that
    share of the conversations, drawn by ``seed``: what one of several instances behind a router that keeps
    conversations together gets. ``jitter``: each arrival moves by up to so many seconds either way.
    """
    out: list[Job] = []
    for job in jobs:
        if job.at < start or (length is not None and job.at >= start + length):
            continue
        if max_len is not None and job.prompt + job.output > max_len:
            continue
        if share < 1 and zlib.crc32(f"{seed}:{job.session()}".encode()) >= share * 2**32:
            continue
        move = random.Random(f"{seed}:{job.rid}").uniform(-jitter, jitter) if jitter else 0.0
        out.append(replace(job, at=max(0.0, (job.at - start) / speedup + move)))
        if limit is not None and len(out) >= limit:
            break
    return sorted(out, key=lambda j: j.at) if jitter else out

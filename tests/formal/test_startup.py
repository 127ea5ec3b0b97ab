"""Classes shared by the runs of a check: same verdicts, and no need of them."""

from __future__ import annotations

import pytest

from stallproof.check import config, startup, tlc, tools
from stallproof.errors import Unsupported


@pytest.fixture(autouse=True)
def _needs_tlc() -> None:
    try:
        tools.java(), tools.jar()
    except Unsupported as exc:
        pytest.skip(str(exc))


def verdict() -> tlc.Result:
    cfg = next(c for c in config.load() if c.name == "zero-progress-cascade")
    return tlc.run(cfg.module, cfg.tla, properties=[cfg.refutes])


def test_a_run_with_shared_classes_says_the_same() -> None:
    plain = verdict()
    with startup.shared_classes(config.load()) as archive:
        assert archive is not None
        assert tlc.shared == [f"-XX:SharedArchiveFile={archive}"]
        mapped = verdict()
        archive.chmod(0o600)
        archive.write_bytes(b"not an archive")
        spoilt = verdict()
    assert not archive.exists()
    assert tlc.shared == []
    for r in (mapped, spoilt):
        assert (r.result, r.distinct, r.depth, r.trace) == (
            plain.result,
            plain.distinct,
            plain.depth,
            plain.trace,
        )
    assert plain.result == "NoZeroPre"


def test_few_configurations_are_not_worth_it() -> None:
    with startup.shared_classes(config.load()[:3]) as archive:
        assert archive is None


def test_a_jvm_that_cannot_make_one_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tlc, "SHORT_JVM", [*tlc.SHORT_JVM, "-XX:+NoSuchOption"])
    with startup.shared_classes(config.load()) as archive:
        assert archive is None
        assert tlc.shared == []

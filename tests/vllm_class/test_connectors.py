"""The predicate GateLoads_ok: which fence a configuration gets, and why (audit P1 to P8, S3, S13, S14)."""

from __future__ import annotations

from typing import Any

import pytest

from stallproof.vllm import connectors
from stallproof.vllm.connectors import AUDITED, DELAY, ORDERED, REFUSE, choose, leaves


def make(*names: str, **attributes: Any) -> Any:
    """A connector of a class of that name; a MultiConnector over several."""
    made = [type(n, (), attributes)() for n in names]
    if len(made) == 1:
        return made[0]
    multi = type("MultiConnector", (), {})()
    multi._connectors = made
    return multi


def ask(connector: Any, **change: Any) -> connectors.Choice:
    facts: dict[str, Any] = {
        "depth": 2,
        "series": "0.32",
        "can_store": True,
        "v2_runner": False,
        "zeroing": False,
        "hisparse": False,
        "fence": True,
    }
    return choose(connector=connector, **facts | change)


@pytest.mark.parametrize(
    ("names", "change", "mode", "start", "why"),
    [
        (["NixlConnector"], {}, "GateLoads", DELAY, ""),
        (["MooncakeConnector"], {}, "GateLoads", DELAY, ""),
        (["ExampleConnector"], {}, "GateLoads", ORDERED, ""),
        (["OffloadingConnector"], {}, "GateLoads", ORDERED, ""),
        (["OffloadingConnector"], {"series": "0.27"}, "DeferFrees", DELAY, "cannot start later"),
        (["OffloadingConnector"], {"series": "0.23", "fence": False}, "GateLoads", REFUSE, ""),
        (["NixlConnector", "ExampleConnector"], {}, "GateLoads", DELAY, ""),
        # P1 / S14: a second pool, whose free blocks are still read
        (["NixlConnector"], {"hisparse": True}, "DeferFrees", DELAY, "HiSparse"),
        # P2 / S13: chunk rounding writes into blocks that were hit
        (["LMCacheConnectorV1"], {}, "DeferFrees", DELAY, "not allocated for the load"),
        (["MooncakeLayerwiseConnector"], {}, "DeferFrees", DELAY, "not allocated for the load"),
        (["MoRIIOConnector"], {}, "DeferFrees", DELAY, "not allocated for the load"),
        (["SomebodysConnector"], {}, "DeferFrees", DELAY, "not an audited connector"),
        (["SomebodysConnector"], {"fence": False}, "GateLoads", REFUSE, "not an audited connector"),
        (["SomebodysConnector"], {"vouched": frozenset({"SomebodysConnector"})}, "GateLoads", DELAY, ""),
        # P3: stores that do not survive a preemption
        (["LMCacheMPConnector"], {}, "DeferFrees", DELAY, "do not survive"),
        (["LMCacheMPConnector"], {"can_store": False}, "GateLoads", DELAY, ""),
        (["MooncakeStoreConnector"], {"series": "0.27"}, "DeferFrees", DELAY, "do not survive"),
        (["MooncakeStoreConnector"], {"series": "0.28"}, "GateLoads", DELAY, ""),
        # P4
        (
            ["OffloadingConnector"],
            {"v2_runner": True, "zeroing": True},
            "DeferFrees",
            DELAY,
            "model runner V2",
        ),
        # P5 / S3: unsafe in every mode
        (["NixlConnector", "OffloadingConnector"], {}, "DeferFrees", DELAY, "beside another"),
        (["NixlConnector"], {"wanted": False}, "DeferFrees", DELAY, "switched off"),
        (["NixlConnector"], {"depth": 1}, "None", DELAY, "one batch"),
    ],
)
def test_choice(names: list[str], change: dict[str, Any], mode: str, start: str, why: str) -> None:
    got = ask(make(*names), **change)
    assert (got.mode, got.start) == (mode, start)
    assert why in got.why
    assert bool(got.why) == bool(why)


def test_what_no_fence_covers_is_said() -> None:
    for names in (["LMCacheConnectorV1"], ["NixlConnector", "OffloadingConnector"]):
        assert "not made worse" in ask(make(*names)).warn
    assert not ask(make("NixlConnector")).warn


def test_a_class_can_vouch_for_itself_but_not_an_instance() -> None:
    assert ask(make("Mine", stallproof_new_blocks_only=True)).mode == "GateLoads"
    lone = make("Mine")
    lone.stallproof_new_blocks_only = True
    assert ask(lone).mode == "DeferFrees"
    assert ask(make("Mine", stallproof_new_blocks_only="yes")).mode == "DeferFrees"


def test_a_subclass_of_an_audited_class_is_not_audited() -> None:
    base = type("NixlConnector", (), {})
    assert ask(type("MyNixl", (base,), {})()).mode == "DeferFrees"


def test_nested_multi_connectors_are_expanded() -> None:
    inner = make("NixlConnector", "ExampleConnector")
    outer = type("MultiConnector", (), {})()
    outer._connectors = [inner, make("DecodeBenchConnector")]
    assert [type(x).__name__ for x in leaves(outer)] == [
        "NixlConnector",
        "ExampleConnector",
        "DecodeBenchConnector",
    ]
    assert ask(outer).mode == "GateLoads"
    assert leaves(None) == []


def test_without_a_connector_nothing_is_needed() -> None:
    assert ask(None).mode == "None"


def test_the_audited_table_is_well_formed() -> None:
    assert not set(AUDITED) & connectors.WRITES_ELSEWHERE
    assert {e.start for e in AUDITED.values()} <= {DELAY, ORDERED, REFUSE}

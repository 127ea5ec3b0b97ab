"""TLA+ values as TLC prints them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallproof.check.tlaval import TlaSyntaxError, parse, show

atoms = st.one_of(st.booleans(), st.integers(-9, 99), st.text("abcxyz", max_size=3))
vals = st.recursive(atoms, lambda x: st.lists(x, max_size=4).map(tuple), max_leaves=12)


@given(vals)
def test_what_is_shown_is_read_back(v):
    assert parse(show(v)) == v


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[a |-> 1, b |-> <<TRUE, {}>>]", {"a": 1, "b": (True, frozenset())}),
        ("{1,\n 2}", frozenset({1, 2})),
        ("(2 :> {1} @@ 3 :> {})", {2: frozenset({1}), 3: frozenset()}),
        ("<<>>", ()),
        ("b1", "b1"),
    ],
)
def test_values(text, value):
    assert parse(text) == value


@pytest.mark.parametrize("text", ["", "<<1", "[a |-> 1", '"x', "{1 2}", "1 2", "[a 1]", "(1 :> 2"])
def test_rubbish_is_an_error(text):
    with pytest.raises(TlaSyntaxError):
        parse(text)

"""How each kernel is compiled by the lanes: argument types and the constants that ``ops`` uses."""

from __future__ import annotations

_I, _P, _A = "i32", "*i32", "*i64"
_PAGES = {"addr_ptr": _A, "words_ptr": _P}
_CHECK = {"expect_ptr": _P, "seen_ptr": _P, "result_ptr": _P, "n": _I}
_COPY = {
    **_PAGES, "first_ptr": _P, "ids_ptr": _P, "staging_ptr": _P,
    "n": _I, "n_segs": _I, "n_blocks": _I, "chunks": _I, "total": _I,
}  # fmt: skip

#: kernel -> (argument -> type, constexpr -> value); tiles are those of ``ops``
KERNELS: dict[str, tuple[dict[str, str], dict[str, int]]] = {
    "tag_check_dense": ({"tags_ptr": _P, **_CHECK}, {"TILE": 2048}),
    "tag_check_pairs": ({"tags_ptr": _P, "ids_ptr": _P, **_CHECK, "n_blocks": _I}, {"TILE": 512}),
    "tag_stamp": (
        {
            "tags_ptr": _P, "ids_ptr": _P, "before_ptr": _P, "values_ptr": _P,
            "seen_ptr": _P, "result_ptr": _P, "n": _I, "n_blocks": _I,
        },
        {},
    ),
    "fill_blocks": (
        {**_PAGES, "ids_ptr": _P, "n": _I, "n_segs": _I, "n_blocks": _I, "chunks": _I, "pattern": _I},
        {"TILE": 4096},
    ),
    "gather_blocks": (_COPY, {"TILE": 4096}),
    "scatter_blocks": (_COPY, {"TILE": 4096}),
    "checksum_blocks": (
        {**_PAGES, "ids_ptr": _P, "out_ptr": _P, "n": _I, "n_segs": _I, "n_blocks": _I},
        {"LANES": 1024},
    ),
}  # fmt: skip

#: kernels that must fail somewhere, so that a lane that always passes is noticed
CONTROLS: dict[str, tuple[dict[str, str], dict[str, int]]] = {
    "control_masked_gather": ({"a_ptr": _P, "ids_ptr": _P, "out_ptr": _P, "n": _I}, {"TILE": 512}),
    "control_overflow": ({"a_ptr": "*fp32", "out_ptr": "*fp32", "n": _I}, {"TILE": 65536}),
}

#: targets of the HIVM lane: (name, compiler, unified buffer in bytes)
TARGETS = (
    ("Ascend910B1", "bishengir-compile", 196608),
    ("Ascend910_9391", "bishengir-compile", 196608),
    ("Ascend950PR_9589", "bishengir-compile-a5", 253952),
)

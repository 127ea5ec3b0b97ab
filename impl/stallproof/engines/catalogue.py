"""Which vLLM releases can be brought up, and where their sources come from.

One release is installed in full (its compiled CPU kernels included); every other one is its own Python
sources, taken from vLLM's source release on PyPI, laid over that environment. That is enough for everything
a scheduler does, and the compiled kernels of the full release serve the tiny models of the engine tests too.
"""

from __future__ import annotations

from stallproof.errors import Unsupported

#: the release that is installed in full
BASE = "0.32.0"

#: release -> SHA-256 of ``vllm-<release>.tar.gz`` on PyPI
SDISTS: dict[str, str] = {
    "0.23.0": "760269db3d9611e12e524681df1bca0977d5d2f5fcb4481cc34d33efc4ae7ff5",
    "0.24.0": "0862453adc1f3339f1a0c9dca1179c34d6ed6e118f87b6e5bddd120af614ac66",
    "0.25.0": "7e04e2b37164de8c4012f27f75af6c4768039b32610865e9b6fb8c49c34a84aa",
    "0.25.1": "ddbdec3f1c0f21afa70b7eb6ddf3faa29d26b1302ee4b5d5e00ec3af41b0c2e4",
    "0.26.0": "23e9fa19d7e20ce7dcc1c074d41503e2116d23f19e688f5d5ea91b741f958502",
    "0.27.0": "862671641625d6cfb7aaab98a5386126738b59ca50e5d01ca539a4e32f63ffcb",
    "0.27.1": "eec2d54d137ac1e59cb4c39226dfee1943eefc8f4788f5821d7300d6acbdb646",
    "0.28.0": "ac96dd0ec5be9c13f2aa4bfb50498c4727110406f6e4980b58a4097e4d18634a",
    "0.29.0": "c03feb07943ecae9e69e7dc424d7c5569ecf8d1292513aef2a4de67af381cd97",
    "0.30.0": "5f8f4e890c042ffa1c3e103f81c35e2d96f60a0a175ac43a4adbae7006bef62b",
    "0.31.0": "dde46f1efbe846e5bd0c5c4ec6ec71842c42254c7ff3d9bebb2a57028715d380",
    "0.32.0": "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad",
    "0.33.0": "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
}

#: the releases of the test matrix: the newest patch of every minor release
MATRIX: tuple[str, ...] = (
    "0.23.0", "0.24.0", "0.25.1", "0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0",
    "0.33.0",
)  # fmt: skip

#: the releases that continuous integration runs
CI: tuple[str, ...] = ("0.23.0", "0.28.0", "0.32.0")


def check(version: str) -> str:
    """``version`` itself if it is in the table.

    Raises :class:`Unsupported` naming the supported range otherwise.
    """
    if version not in SDISTS:
        raise Unsupported(
            f"vLLM {version} is not supported",
            remedy=f"choose one of {', '.join(SDISTS)}",
        )
    return version

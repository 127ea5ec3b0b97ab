"""A vLLM general plug-in for engines made of one release's sources over another's build.

On CPUs with AMX a release calls a packed matrix product of its compiled half, whose signature has changed
between releases. The plain product computes the same. Active where ``STALLPROOF_OVERLAY=1``, which
:func:`stallproof.engines.get` sets for such engines.
"""

from __future__ import annotations

import os

ENV = "STALLPROOF_OVERLAY"


def register() -> None:
    """Entry point. Idempotent."""
    if os.environ.get(ENV) != "1":
        return
    try:
        from vllm.model_executor.layers import utils
    except ImportError:  # a release that has no such module calls no such product
        return
    if hasattr(utils, "check_cpu_sgl_kernel"):
        utils.check_cpu_sgl_kernel = lambda *args, **kwargs: False

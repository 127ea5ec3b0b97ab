"""pytest plug-in: vLLM's own tests, unchanged, with other scheduler classes in their modules.

``STALLPROOF_SWAP`` says which, before any test module is imported: ``stock`` (or unset) leaves vLLM's own,
``ours`` puts ours in place, another name a pair of ``broken.py``.
"""

from __future__ import annotations

import os

import vllm.v1.core.sched.async_scheduler as async_module
import vllm.v1.core.sched.scheduler as sync_module

_WHICH = os.environ.get("STALLPROOF_SWAP", "stock")
if _WHICH == "ours":
    import stallproof.vllm

    pair = stallproof.vllm.Scheduler, stallproof.vllm.AsyncScheduler
    sync_module.Scheduler, async_module.AsyncScheduler = pair
elif _WHICH != "stock":
    import broken

    sync_module.Scheduler, async_module.AsyncScheduler = broken.pair(_WHICH)


def pytest_report_header(config):
    return f"scheduler classes: {sync_module.Scheduler.__name__}, {async_module.AsyncScheduler.__name__}"


def pytest_collection_modifyitems(items):
    """Their own mark: no garbage collection of everything after each test, which takes most of the time."""
    for item in items:
        item.add_marker("skip_global_cleanup")

"""pytest plug-in: vLLM's own tests, unchanged, with other scheduler classes in their modules.

``STALLPROOF_SWAP=1`` puts ours in place before any test module is imported.
"""

from __future__ import annotations

import os

import vllm.v1.core.sched.async_scheduler as async_module
import vllm.v1.core.sched.scheduler as sync_module

if os.environ.get("STALLPROOF_SWAP") == "1":
    import stallproof.vllm

    sync, asynchronous = stallproof.vllm.Scheduler, stallproof.vllm.AsyncScheduler
    sync_module.Scheduler = sync
    async_module.AsyncScheduler = asynchronous


def pytest_report_header(config):
    return f"scheduler classes: {sync_module.Scheduler.__name__}, {async_module.AsyncScheduler.__name__}"

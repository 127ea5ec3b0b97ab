"""Simulate: the *real* scheduler of a vLLM release under a virtual clock, fed with production workloads.

The simulator holds no scheduling decision of its own: it plays the clients (:mod:`.workload`), the device
(:mod:`.worker`) and the KV store (:mod:`.connector`), and measures (:mod:`.metrics`).
"""

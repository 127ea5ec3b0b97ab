"""Why did it stall? Diagnosis of unmodified vLLM and vllm-ascend from what production left behind.

Streaming pipeline, constant memory: :mod:`.reader` (bytes to candidate lines) -> :mod:`.parse` (lines to
typed observations of :mod:`.observe`) -> :mod:`.session`, :mod:`.engine` (state per engine and interval) ->
:mod:`.judge` and :mod:`.bare` (verdict rules) -> :mod:`.report` (text and JSON). :mod:`.watch` applies the
same rules to a running server.
"""

"""Traces: the schema, the recorder, the reader and the checker.

Pure Python; imports no engine. See :mod:`stallproof.trace.schema` for the record and event types.
"""

"""Stallproof: progress and memory safety for LLM-serving schedulers, proved, checked and enforced.

Importing this package imports nothing heavy: no engine, no torch, no Z3, no command line.
"""

__version__ = "0.1.0"

"""Test lanes that need no NPU and no GPU. Each says what it shows; ``docs/kernels/README.md`` has the table.

``python -m stallproof.kernels.lanes interpret|lower|native|hivm|cuda`` makes the environment it needs below
the user's cache and runs there. A lane whose wheel or tool is missing is skipped with one line.
"""

"""KV-block kernels and the block sanitizer: tags, fills, checksums, staging copies, device fences.

Importing this package loads neither torch nor Triton and chooses no device. What runs where, and what each
check does and does not show, is in ``docs/kernels/README.md``: the Ascend path is compile-checked, it has
never run on an Ascend NPU.
"""

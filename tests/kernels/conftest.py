"""Tests of the kernels run in two environments.

In the development environment there is no torch: what needs it is skipped here and run by
``make kernels-interpret``, which ``make test`` calls, in an environment with torch and Triton's interpreter.
"""

import os

# before anything imports triton: @triton.jit reads it when the kernels are defined
os.environ.setdefault("TRITON_INTERPRET", "1")

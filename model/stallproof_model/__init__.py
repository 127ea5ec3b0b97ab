"""Executable twin of spec/Sched.tla: one function per operator, the same names."""

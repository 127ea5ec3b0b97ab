"""The executable twin of ``spec/``: one function per TLA+ operator, same names; explorer and cycle search."""

from stallproof_model.explore import Finding, Graph, Lasso, TooBig, first_violation, graph, lasso
from stallproof_model.state import Constants, State, Step, constants

__all__ = [
    "Constants",
    "Finding",
    "Graph",
    "Lasso",
    "State",
    "Step",
    "TooBig",
    "constants",
    "first_violation",
    "graph",
    "lasso",
]

"""Auxiliary invariants, measures and twins. Nothing here needs to be trusted: Z3 checks it."""

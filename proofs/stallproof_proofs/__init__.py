"""Z3 proofs, unbounded in requests, blocks, tokens and depth. Statements live apart from proofs."""

"""Word lattices: reading, writing, and rescoring with a language model of any family.

A lattice holds the hypotheses of a first pass as the paths of a graph. `rescoring.rescore` scores
all of them; the result is an n-best list for `models.reranking`, or a lattice again.
"""

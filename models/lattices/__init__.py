"""Word lattices: reading, writing, and rescoring with a language model of any family.

A lattice is a graph whose paths are the hypotheses of a first pass. `rescoring.rescore` scores all
paths; the result is an n-best list for `models.reranking`, or a new lattice.
"""

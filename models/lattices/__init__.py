"""Word lattices: reading, writing, and rescoring with a language model of any family.

The paths of a lattice, a graph, are the hypotheses of a first pass. `rescoring.rescore` scores all;
the result is an n-best list for `models.reranking`, or a new lattice.
"""

"""Word lattices: reading and writing them, and finding better paths in them with a language model.

A lattice holds the hypotheses of a first pass as the paths of a graph: far more of them than a list could,
in less space. `rescoring.rescore` walks all of them with a model of any family; what comes out are n-best
lists for `models.reranking`, or a lattice again.
"""

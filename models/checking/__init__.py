"""Detection and correction of wrong words: a noisy channel over any language model, with right context.

This package runs no model and does not wait. The checker yields model calls as values
(`models.calls`), which a service batches with calls of other requests and an evaluation
answers at once.
"""

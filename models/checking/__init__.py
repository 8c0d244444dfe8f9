"""Detection and correction of wrong words: a noisy channel over any language model, with right context.

Nothing here computes with a model or waits for one. The checker yields model calls as values
(`candidates.CheckerCall`), which a service batches with those of other requests and an evaluation
answers at once.
"""

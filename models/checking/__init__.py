"""Which words of a text are wrong, and what was meant: a noisy channel over any model, with right context.

Nothing here computes with a model or waits for one: what is to be asked of it are values (`asking`), so that a service
can ask together with others, and an evaluation at once.
"""

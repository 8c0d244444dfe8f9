"""How much typing a model's completions spare: a simulated typist, and the figures of what he saw."""

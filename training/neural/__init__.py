"""Training of neural networks."""

"""What a model does on a text, in figures."""

"""Autocompletion: words and phrases that continue a typed text, with probabilities."""

"""Autocompletion: words and phrases that continue a text being typed, with their probabilities."""

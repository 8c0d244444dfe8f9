"""The layers that turn a vector into a distribution over the vocabulary, a file each."""

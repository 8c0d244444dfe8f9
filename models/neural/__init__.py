"""Neural language models in torch; int8 inference on a CPU."""

"""Neural inference with eight-bit integers on a CPU; torch only reads the weights."""

"""Neural inference with eight-bit integers on a CPU; imports no torch."""

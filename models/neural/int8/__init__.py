"""Neural inference in integers of eight bits on a CPU; torch only reads the weights."""

"""Neural models in integers of eight bits, which serve them on a CPU; torch only reads the weights."""

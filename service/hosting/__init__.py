"""Models and stored states in memory: loading, addresses, memory budget, states of decoders, users' words."""

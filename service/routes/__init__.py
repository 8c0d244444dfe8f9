"""HTTP in, frozen command to a use case, reply out; one module per group of endpoints."""

"""Model host, scheduler and batching of model calls; imports no web framework."""

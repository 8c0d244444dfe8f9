"""The model host and the scheduler that share the processor fairly; imports no web framework."""

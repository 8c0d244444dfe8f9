"""HTTP endpoints: registration, answers to operations, administration, pages."""

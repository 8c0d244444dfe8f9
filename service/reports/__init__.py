"""Pages about a run, for people: one HTML file that needs nothing else."""

"""A trained network's diagnostics as one page."""

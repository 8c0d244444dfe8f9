"""Reading and splitting text."""

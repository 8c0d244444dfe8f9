"""Training recurrent models."""

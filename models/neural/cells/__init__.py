"""The layers that carry something from token to token, a file each."""

"""Back-off n-gram models as flat arrays; imports no torch, but in `cuda`."""

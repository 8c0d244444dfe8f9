"""Back-off n-gram models as flat arrays; only `cuda` imports torch."""

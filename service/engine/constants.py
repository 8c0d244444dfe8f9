"""Sizes of batches, slices and calls of the engine.

The comment above each group names the benchmark for changes.
"""

# bench_engine and bench_latency
INITIAL_TOKEN_COST_S = 2e-5
"""Assumed seconds per token before the first measurement."""

MAX_CALL_KINDS = 256
"""Maximum call kinds with a cost estimate."""

COST_SMOOTHING = 0.8
"""Weight of the previous estimate in the exponential moving average."""

MAX_ENTRIES = 1 << 21
"""Maximum values of distributions [B, V] computed at once (8 MiB of float32)."""

BULK_JOBS_AT_ONCE = 16
"""Maximum bulk jobs with a pending call: they fill slices within bounded memory."""

MAX_SHARED_KINDS = 4
"""Maximum new kinds of urgent calls, and slices, in a pass of several owners."""

MIN_SLICE_TOKENS, MIN_BULK_SLICE_TOKENS = 256, 16
"""Minimum tokens of a slice; a network takes nearly as long for fewer."""

MIN_LATE_TOKENS = 1024
"""Minimum tokens of a job for its lateness."""

MIN_LATE_JOBS = 32
"""Unfinished interactive jobs below which their age does not matter."""


# bench_heavy_company
STRIDE_TOKENS = 8
"""Approximate tokens per text and slice; fewer leave more texts incomplete for little speed."""

SHORT_READ_TOKENS = 8
"""Maximum tokens of an urgent read by a network: about a keystroke or a word."""

SHORT_LOOKUP_TOKENS = 4096
"""Maximum tokens of an urgent read by an n-gram model: a few milliseconds of work."""


# bench_capacity
NEXT_TOKEN_CACHE_DIVISOR = 2
"""Divisor for the next-token cache's share (1/2) of cache memory; the prefix cache has the rest."""

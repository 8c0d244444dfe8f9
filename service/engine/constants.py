"""Sizes of batches, slices and calls of the engine; above each group, the benchmark that shows what a change does."""

# bench_engine and bench_latency
INITIAL_TOKEN_COST_S = 2e-5
"""Assumed seconds per token before the first measurement."""

MAX_CALL_KINDS = 256
"""Kinds of call whose cost is remembered."""

COST_SMOOTHING = 0.8
"""Weight of the previous estimate when a new measurement is added (exponential moving average)."""

MAX_ENTRIES = 1 << 21
"""Maximum number of values of distributions [B, V] computed at once (8 MiB of float32)."""

BULK_JOBS_AT_ONCE = 16
"""Maximum number of bulk jobs with a pending call: enough to fill slices, few enough to bound memory."""

MIN_SLICE_TOKENS, MIN_BULK_SLICE_TOKENS = 256, 16
"""Minimum tokens of a slice; a network reads few tokens hardly faster than many."""

MIN_LATE_TOKENS = 1024
"""Smaller bulk jobs count as this many tokens when their lateness is computed."""


# bench_heavy_company
STRIDE_TOKENS = 8
"""Approximate tokens of each text per slice: fewer would leave more texts half done than help the model."""

SHORT_READ_TOKENS = 8
"""Maximum size of an urgent read of a network: about the tokens of a key stroke or a word."""

SHORT_LOOKUP_TOKENS = 4096
"""Maximum size of an urgent read of an n-gram model, which scores so many in a few milliseconds."""


# bench_capacity
NEXT_TOKEN_CACHE_DIVISOR = 4
"""The next-token cache gets this fraction (1/4) of the memory for caches, the prefix cache the rest."""

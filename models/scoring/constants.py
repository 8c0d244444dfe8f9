"""Sizes of steps and batches of scoring, decoding and completion; a comment names each group's benchmark.

A step is the work done before other computations run, a few milliseconds at most.
"""

# bench_service and bench_completion
MAX_SEARCH_STEPS = 256
"""Maximum rows read by the model to rank the words after one context."""

MAX_CHOICE_ROWS = 256
"""Maximum rows of one request decoded together."""

MAX_CHOICE_ENTRIES = 1 << 22
"""Maximum entries of the distributions [R, V] of rows decoded together (16 MiB)."""

BLOCK_ENTRIES = 1 << 20
"""Entries in a block of distributions (4 MiB)."""


# bench_states
MAX_STATE_ENTRIES = 1 << 20
"""Entries of the distributions [R, V] of one call."""


# bench_rerank
MAX_TREE_ROWS = 256
"""Prefixes read, or scored with their next tokens, in one call."""

PREFIX_COST, LEVEL_COST = 2.7, 12
"""Cost of a prefix and of a level in tree order, in tokens of texts read side by side.

Measured on small int8 mixtures (1.9, 21) and on an int8 LSTM of 512 units (3.1, 12).
"""

MAX_TREE_TOKENS = 1 << 15
"""Padded tokens of texts searched together for shared prefixes."""

MAX_LOOKUP_TOKENS = 8192
"""Tokens looked up by one call of an n-gram model: about a millisecond."""

TOKENISED_PER_STEP = 2048
"""Candidates tokenised per step."""

CHARS_PER_STEP = (1 << 13, 1 << 16)
"""Characters tokenised per step; the second value is for the compiled word tokenizer."""


# bench_heavy_company
MAX_CALL_TOKENS = 2048
"""Padded tokens read by one call, or one sequence, to bound its memory."""

MAX_GROUP_TOKENS = 1 << 16
"""Tokens of contexts whose states are in memory at once: a state's cache of past tokens takes memory."""

MAX_CACHED_CONTEXTS = 8
"""Contexts of a request above which no state is cached: they would evict those of interactive users."""

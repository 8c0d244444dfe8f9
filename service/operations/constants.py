"""Sizes of the operations' steps and batches; the comment above each group names its benchmark.

A step is the work done before other requests run, a few milliseconds at most: larger steps delay
interactive requests, smaller ones cost throughput. Limits on requests are in their operations.
"""

# bench_service and bench_completion
VALUES_PER_STEP = 1 << 17
"""Entries of distributions [B, V] computed per step, about a millisecond."""

ROWS_PER_STEP = (16, 256)
"""Minimum and maximum rows of a step of distributions: a network takes nearly as long for fewer."""

PROMPT_TOKENS_PER_STEP = 1024
"""Tokens of a prompt converted to entries per step."""


# bench_states
MIN_SHARED_CONTINUATIONS = 8
"""Number of continuations of one state at which one distribution costs less than separate scores."""

SPARSE_RATIO = 64
"""Vocabulary size per requested token at which n-gram lookups cost less than a distribution."""


# bench_rerank
MAX_LINE_CHARS = 1 << 15
"""Characters of texts that an n-gram model scores in one call from their bytes: about a millisecond."""

MAX_PAIR_CHARS = 1 << 18
"""Characters of documents and queries whose ids are in memory together."""

CANDIDATES_PER_STEP = 256
"""Candidates processed per step."""

CANDIDATES_PER_BATCH = 2048
"""Candidates of consecutive lists of a stream re-ranked together."""

LINES_PER_BATCH = 256
"""Maximum lines of a stream, lists or texts, in one batch."""

BYTES_PER_PIECE = 1 << 15
"""Size at which finished lines are sent and other requests run."""


# bench_tuning
LISTS_AT_ONCE = 64
"""Lists of candidates whose features are computed together."""

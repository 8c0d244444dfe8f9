"""Sizes of the use cases' steps and batches; the comment above each group names its benchmark.

A step is the work done before other requests run, a few milliseconds at most: larger steps delay
interactive requests, smaller ones cost throughput. Limits on requests are in their use cases.
"""

# bench_service and bench_completion
VALUES_PER_STEP = 1 << 17
"""Entries of distributions [B, V] computed per step, about a millisecond."""

ROWS_PER_STEP = (16, 256)
"""Minimum and maximum rows of a step of distributions: a network takes nearly as long for fewer."""

MAX_SEARCH_STEPS = 256
"""Maximum rows read by the model to rank the words after one context."""

MAX_CHOICE_ROWS = 256
"""Maximum rows of one request decoded together."""

MAX_CHOICE_ENTRIES = 1 << 22
"""Maximum entries of the distributions [R, V] of rows decoded together (16 MiB)."""

BLOCK_ENTRIES = 1 << 20
"""Entries in a block of distributions (4 MiB)."""

PROMPT_TOKENS_PER_STEP = 1024
"""Tokens of a prompt converted to entries per step."""


# bench_states
MAX_STATE_ENTRIES = 1 << 20
"""Entries of the distributions [R, V] of one call."""

MIN_SHARED_CONTINUATIONS = 8
"""Number of continuations of one state at which one distribution costs less than separate scores."""

SPARSE_RATIO = 64
"""Vocabulary size per requested token at which n-gram lookups cost less than a distribution."""


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

MAX_LINE_CHARACTERS = 1 << 15
"""Characters of texts that an n-gram model scores in one call from their bytes: about a millisecond."""

MAX_PAIR_CHARACTERS = 1 << 18
"""Characters of documents and queries whose ids are in memory together."""

CANDIDATES_PER_STEP = 256
"""Candidates processed per step."""

CANDIDATES_PER_BATCH = 2048
"""Candidates of consecutive lists of a stream re-ranked together."""

LINES_PER_BATCH = 256
"""Maximum lines of a stream, lists or texts, in one batch."""

BYTES_PER_PIECE = 1 << 15
"""Size at which finished lines are sent and other requests run."""

TOKENISED_PER_STEP = 2048
"""Candidates tokenised per step."""

CHARACTERS_PER_STEP = (1 << 13, 1 << 16)
"""Characters tokenised per step; the second value is for the compiled word tokenizer."""


# bench_heavy_company
MAX_CALL_TOKENS = 2048
"""Padded tokens read by one call, or one sequence, to bound its memory."""

MAX_GROUP_TOKENS = 1 << 16
"""Tokens of contexts whose states are in memory at once: a state's cache of past tokens takes memory."""

MAX_CACHED_CONTEXTS = 8
"""Contexts of a request above which no state is cached: they would evict those of interactive users."""


# bench_tuning
LISTS_AT_ONCE = 64
"""Lists of candidates whose features are computed together."""


# bench_autocomplete
DICTIONARY_WORDS_PER_STEP = 2048
"""Words of a dictionary read per step."""

"""Tuned sizes; a comment above each group names its benchmark.

Constants of compiled kernels stand in the kernels' modules, of which the cache of their code detects
changes.
"""

# bench_recurrent
PLAIN_CELL_ROWS = 32
"""Maximum rows for which a plain cell's step is faster than the layer's kernel on a CPU."""

GROUP_ROWS = 64
"""Sequences per group: few, so their lengths are similar."""

GROUP_ROWS_ON_CUDA = 256
"""`GROUP_ROWS` on a CUDA device."""

SEGMENT_STEPS = 128
"""Tokens of each sequence per pass of the body and the output layer."""

STEPS_MULTIPLE = 8
"""Segment lengths are padded to a multiple of this: each new length costs a compiled kernel."""

MAX_LOGITS = 1 << 21
"""Logits in memory at once (8 MiB), so the output layer's matrix product stays in a CPU's cache."""

MAX_CHOICE_LOGITS = 1 << 22
"""`MAX_LOGITS` for several candidates after one text: products of more rows are faster."""

MAX_LOGITS_ON_CUDA = 1 << 27
"""`MAX_LOGITS` on CUDA, which is faster with larger products (512 MiB of logits)."""

MAX_TANH_VALUES = 1 << 22
"""Tanh values of additive attention in memory at once (16 MiB)."""

LOGITS_PER_THREAD = 1 << 20
"""Minimum logits per thread of a log-sum-exp."""

MAX_GRAPH_ROWS = 1024
"""Largest batch to capture as a CUDA graph; larger ones keep the device busy without one."""


# bench_int8
INT8_SEGMENT_STEPS = 64
"""Tokens of each sequence per pass of the body and the output layer, in int8."""

INT8_TOKENS_PER_THREAD = 512
"""Minimum tokens per thread when sequences are read."""

INT8_ROWS_PER_THREAD = 8
"""Minimum sequences per thread, because each thread reads all weights."""

ROWS_PER_PRODUCT = 64
"""Rows of one product of the output layer, which reads its weights once per product."""

"""Sizes of groups, segments, products and threads; above each group, the benchmark that shows what a change does.

Those that compiled kernels read stand beside the kernels (`models.neural.int8`): the cache of compiled code looks at
a kernel's own file only.
"""

# bench_recurrent
PLAIN_CELL_ROWS = 32
"""Rows up to which a step by the plain cell beats the layer's kernel on a CPU."""

GROUP_ROWS = 64
"""Sequences of a group: few, so that their lengths are similar."""

GROUP_ROWS_ON_CUDA = 256
"""`GROUP_ROWS` on a CUDA device."""

SEGMENT_STEPS = 128
"""Tokens of each sequence per pass of the body and the output layer."""

STEPS_MULTIPLE = 8
"""Tokens that the length of a segment is padded to a multiple of: each new length costs a compiled kernel."""

MAX_LOGITS = 1 << 21
"""Logits in memory at once (8 MiB): the output layer's matrix product stays in a CPU's cache."""

MAX_CHOICE_LOGITS = 1 << 22
"""`MAX_LOGITS` for several candidates after one text, where a product of more rows is faster."""

MAX_LOGITS_ON_CUDA = 1 << 27
"""`MAX_LOGITS` on a CUDA device, which is faster with larger products (512 MiB of logits)."""

MAX_TANH_VALUES = 1 << 22
"""Values of tanh of additive attention in memory at once (16 MiB)."""

LOGITS_PER_THREAD = 1 << 20
"""Logits at least for which a thread of a log-sum-exp pays."""

MAX_GRAPH_ROWS = 1024
"""Largest batch that is captured as a CUDA graph; larger ones keep the device busy without one."""


# bench_int8
INT8_SEGMENT_STEPS = 64
"""Tokens of each sequence per pass of the body and the output layer, in int8."""

INT8_TOKENS_PER_THREAD = 512
"""Tokens of sequences at least for which a thread pays."""

INT8_ROWS_PER_THREAD = 8
"""Sequences at least for which a thread pays, as each thread reads all weights."""

STEP_ROWS_PER_THREAD = 32
"""Rows of a single step at least for which a thread pays."""

ROWS_PER_PRODUCT = 64
"""Rows of one product of the output layer, which reads its weights once for all."""

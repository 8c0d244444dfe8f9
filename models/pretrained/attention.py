"""Attention of many texts in one pass, and the keys and values that their states keep.

A pass concatenates all texts' new tokens, without padding. A text's keys and values lie in a buffer
that later states of the text share: new tokens are written after all earlier states' or, if another
continuation of the text has already claimed the next slots, into a copy. Texts whose state nobody
needs, such as candidates of a list, keep nothing: those with a common beginning are computed
together, and read its keys and values in place.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.arrays import SharedSlots, TokenIds, runs_by_cost

_MIN_CAPACITY = 16
# Tokens of texts that are computed together; most of their products are masked.
_MAX_GROUP_TOKENS, _MAX_GROUP_TOKENS_ON_CUDA = 256, 2048


class _Buffer(SharedSlots):
    """Ids, and keys and values [2, layers, heads, capacity, width], of one text."""

    __slots__ = ("ids", "pairs")

    def __init__(self, pairs: Tensor) -> None:
        super().__init__(pairs.shape[3])
        self.ids, self.pairs = np.empty(pairs.shape[3], np.int64), pairs


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """Tokens of a text that attention can see, with keys and values; immutable.

    Attributes:
        buffer: ids, keys and values of at least these tokens.
        length: number of tokens, N.
    """

    buffer: _Buffer
    length: int

    @classmethod
    def empty(cls, layers: int, heads: int, width: int, **options: Any) -> "Context":
        """Return the context of an empty text, by the sizes of keys and torch's tensor options."""
        return cls(_Buffer(torch.empty((2, layers, heads, 0, width), **options)), 0)

    @property
    def ids(self) -> TokenIds:
        """Ids of the tokens [N]."""
        return self.buffer.ids[: self.length]

    def keys_and_values(self, layer: int) -> Tensor:
        """Return the keys and values of a layer [2, heads, N, width]."""
        return self.buffer.pairs[:, layer, :, : self.length]

    def extended(self, ids: TokenIds) -> "Context":
        """Return the context with K more tokens [K], keys and values yet to be written."""
        begin, end = self.length, self.length + len(ids)
        buffer = self.buffer
        if not buffer.claim(begin, end):
            kind, layers, heads, _, width = buffer.pairs.shape
            capacity = max(_MIN_CAPACITY, end + end // 4)
            buffer = _Buffer(buffer.pairs.new_empty((kind, layers, heads, capacity, width)))
            buffer.claim(0, end)
            buffer.ids[:begin] = self.ids
            buffer.pairs[:, :, :, :begin] = self.buffer.pairs[:, :, :, :begin]
        buffer.ids[begin:end] = ids
        return Context(buffer, end)


class Group(NamedTuple):
    """New tokens computed together: those of one text, or of texts with one context.

    Attributes:
        cut: their positions among all new tokens.
        before: the context of each text.
        after: context with the new tokens, to write their keys and values; None to keep none.
        mask: whether each new token sees each of the context and each new one [Q, N + Q]; None for one token,
            which sees all.
    """

    cut: slice
    before: Context
    after: Context | None
    mask: Tensor | None


def group_texts(
    counts: Sequence[int], before: Sequence[Context], after: Sequence[Context | None], device: torch.device
) -> list[Group]:
    """Group consecutive texts of a pass, by their numbers of new tokens and contexts."""
    groups, begin = list[Group](), 0
    most = _MAX_GROUP_TOKENS if device.type == "cpu" else _MAX_GROUP_TOKENS_ON_CUDA

    def context_key(text: int) -> tuple[int, ...]:
        context = before[text]
        return (id(context.buffer), context.length) if after[text] is None else (text,)

    for _, members in itertools.groupby(range(len(counts)), context_key):
        run = [*members]
        for cut in runs_by_cost(np.array([counts[text] for text in run]), most):
            sizes, first = [counts[text] for text in run[cut]], run[cut][0]
            end = begin + sum(sizes)
            mask = None
            if end - begin > 1:
                text = torch.as_tensor(np.repeat(np.arange(len(sizes)), sizes), device=device)
                own = (text[:, None] == text).tril_()
                mask = torch.cat([own.new_ones(len(text), before[first].length), own], dim=1)
            groups.append(Group(slice(begin, end), before[first], after[first], mask))
            begin = end
    return groups


def attend(
    module: Any,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    _attention_mask: None,
    *,
    groups: Sequence[Group],
    scaling: float | None = None,
    **_options: Any,
) -> tuple[Tensor, None]:
    """Compute one layer's attention, as transformers asks, and keep keys and values.

    Args:
        module: the layer's attention, whose `layer_idx` is the layer's number.
        queries: of all new tokens of the pass [1, query heads, T, width].
        keys: of the same tokens [1, heads, T, width].
        values: of the same tokens [1, heads, T, width].
        groups: tokens to compute together.
        scaling: factor of the products of queries and keys.

    Returns:
        Weighted sums of values [1, T, query heads, width].
    """
    outputs = []
    for cut, before, after, mask in groups:
        pairs: Any = keys[0, :, cut], values[0, :, cut]
        if after is not None:
            own, pairs = pairs, after.keys_and_values(module.layer_idx)
            pairs[0, :, before.length :], pairs[1, :, before.length :] = own
        elif before.length:
            known = before.keys_and_values(module.layer_idx)
            pairs = [torch.cat(both, dim=1) for both in zip(known, pairs, strict=True)]
        outputs.append(
            functional.scaled_dot_product_attention(
                queries[:, :, cut],
                pairs[0][None],
                pairs[1][None],
                attn_mask=mask,
                scale=scaling,
                enable_gqa=queries.shape[1] != keys.shape[1],
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2), None

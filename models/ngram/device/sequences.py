"""Texts of any number and lengths, read in stretches of bounded size."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.arrays import FloatArray
from models.ngram.device.inputs import UnpaddedTokens, to_device
from models.ngram.device.tensors import TensorAutomaton
from models.ngram.device.walking import final_states, score_contexts, suffixes_by_length

MAX_TOKENS_AT_ONCE = 1 << 20
"""Tokens read at once; one takes some 200 bytes of the device's memory meanwhile."""


def score_unpadded(
    automaton: TensorAutomaton, ids: Tensor, texts: UnpaddedTokens
) -> tuple[FloatArray, npt.NDArray[np.uint8], FloatArray]:
    """What `walking.Reading` says of all tokens, on the host.

    Args:
        automaton: the model.
        ids: the states before all rows [B], those of no tokens too.
        texts: the rows' tokens [N].

    Returns:
        Natural-log probabilities, lengths of the n-grams found and log back-offs, each [N].
    """
    size = len(texts.tokens)
    out: list[npt.NDArray[Any]] = [np.empty(size, kind) for kind in (np.float32, np.uint8, np.float32)]
    before = suffixes_by_length(automaton, ids[to_device(texts.rows, automaton.device)])
    last = before[:, :0]
    for begin in range(0, size, MAX_TOKENS_AT_ONCE):
        end = min(begin + MAX_TOKENS_AT_ONCE, size)
        first, after = np.searchsorted(texts.starts, [begin, end])
        starts, contexts = texts.starts[first:after] - begin, before[:, first:after]
        if begin > 0 and 0 not in starts[:1]:  # a row goes on from the stretch before
            starts, contexts = np.append(starts, 0), torch.cat([contexts, last], dim=1)
        tokens, places = (to_device(array, automaton.device) for array in (texts.tokens[begin:end], starts))
        reading = score_contexts(automaton, tokens, places, contexts)
        last = reading.states[:, -1:]
        for array, found in zip(out, reading[: len(out)], strict=True):
            array[begin:end] = found.cpu().numpy()
    return out[0], out[1], out[2]


def prefill_unpadded(automaton: TensorAutomaton, ids: Tensor, texts: UnpaddedTokens) -> Tensor:
    """The states [B], int32, after the texts; a row of no tokens stays in the state that it is in.

    Meant for the few last tokens of each row, on which the state depends: they are read at once.
    """
    if len(texts.rows) == 0:
        return ids
    tokens, starts, rows = (to_device(array, automaton.device) for array in texts)
    reading = score_contexts(automaton, tokens, starts, suffixes_by_length(automaton, ids[rows]))
    ends = torch.cat([starts[1:], starts.new_tensor([len(tokens)])]) - 1
    return ids.index_copy(0, rows, final_states(automaton, reading, ends))

"""What to tell of a training that cannot go on: where, on which text, and what to change."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from models.errors import InvalidInputError
from models.neural.network import Network
from models.vocabulary import BOS, Vocabulary
from training.neural.settings import TrainSettings

_MAX_SHOWN_CHARACTERS = 160
_WORD_START = "▁"  # of SentencePiece
_CPU_ALLOCATOR = "DefaultCPUAllocator"


def divergence_error(
    step: int, *, loss: float, norm: float, text: str, settings: TrainSettings
) -> InvalidInputError:
    """The error of an update whose loss or gradient is not a finite number.

    Args:
        step: the update, from 1.
        loss: mean over the batch.
        norm: of its gradient.
        text: of the batch's worst row.
        settings: of the run.
    """
    return InvalidInputError(
        f"the training diverged at step {step}: the loss is {loss:g}, the gradient's norm {norm:g}, with "
        f"train.learning_rate {settings.learning_rate:g}: try a third of it, or train.precision=float32; "
        f"the worst row of text: {text!r}",
        parameter="train.learning_rate",
    )


@torch.no_grad()
def worst_row(network: Network, outputs: Tensor, targets: Tensor, vocabulary: Vocabulary) -> str:
    """The text of the row with the highest loss, shortened.

    Args:
        network: that made the outputs.
        outputs: [T, B, W].
        targets: the ids that follow, [T, B].
        vocabulary: what they stand for.
    """
    was_training = network.training
    network.eval()
    losses = []
    for row in range(targets.shape[1]):
        predicted = targets[:, row] != BOS
        scores = network.target_log_probs(outputs[:, row].float()[predicted], targets[:, row][predicted])
        mean = -float(scores.mean()) if len(scores) else 0.0
        losses.append(mean if np.isfinite(mean) else np.inf)
    network.train(was_training)
    return display_text(targets[:, int(np.argmax(losses))].tolist(), vocabulary)


def display_text(ids: list[int], vocabulary: Vocabulary) -> str:
    """Tokens as a line to read, cut off where it gets long."""
    tokens = [vocabulary[token] for token in ids]
    pieces = any(_WORD_START in token for token in tokens)
    text = "".join(tokens).replace(_WORD_START, " ").strip() if pieces else " ".join(tokens)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[: _MAX_SHOWN_CHARACTERS - 1] + "…"


@contextmanager
def memory_advice(settings: TrainSettings) -> Iterator[None]:
    """Say which settings to lower where memory runs out.

    Raises:
        InvalidInputError: it did.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        raise InvalidInputError(
            f"the training ran out of memory: train.batch_size is {settings.batch_size}, try half of it; or lower "
            f"train.bptt_length ({settings.bptt_length}), neural.hidden_size or tokenizer.vocab_size",
            parameter="train.batch_size",
        ) from error


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return _CPU_ALLOCATOR in str(error)

"""Whether an n-gram model goes to a device, or stays where it is."""

import logging

import torch

from models.ngram.device.model import TensorNGramModel
from models.ngram.model import NGramModel

_log = logging.getLogger(__name__)


def move_if_it_fits(model: NGramModel, device: str | torch.device) -> TensorNGramModel | NGramModel:
    """The model on a device; itself, with a line in the log, where the device lacks memory or fails."""
    try:
        return _move_and_try(model, device)
    except (torch.OutOfMemoryError, torch.AcceleratorError) as error:
        reason = str(error).partition("\n")[0]
    torch.cuda.empty_cache()
    _log.warning(
        "n-gram model of %d n-grams stays on the CPU, device %s cannot take it: %s",
        model.automaton.num_arcs,
        device,
        reason,
    )
    return model


def _move_and_try(model: NGramModel, device: str | torch.device) -> TensorNGramModel:
    """The model on a device, with one answer given: that takes memory of its own."""
    moved = TensorNGramModel(model, device=device)
    moved.next_log_probs(moved.initial_state(1))
    return moved

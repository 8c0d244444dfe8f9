"""Diagnostics of a network's training: gradients by lag, gate saturation, failures, TensorBoard.

Gradients and gates are measured on text, not random numbers; for self-normalised models,
also the deviation of logits from log-probabilities. TensorBoard is an optional package.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from models.arrays import TokenIds
from models.errors import InputError, require_package
from models.language_model import BOS, EOS, SCORES, Vocabulary, pad_sequences, read_sequences, score_sequences
from models.neural.cells import Cell, CellState, MinGRU
from models.neural.model import NeuralModel
from models.neural.network import Network
from training.corpus import EncodedCorpus
from training.neural.settings import TrainSettings
from training.progress import HistoryRecord

LAGS = 64
"""Largest lag, in tokens, of measured gradients."""

_ROWS = 32
_NEARLY_CLOSED, _NEARLY_OPEN = 0.1, 0.9
_MAX_SHOWN_CHARS = 160
_WORD_START = "▁"  # of SentencePiece
_CPU_ALLOCATOR = "DefaultCPUAllocator"
_SENTENCES = 256  # per batch
_TOKENS = 20_000  # enough for two significant digits


def gradient_by_lag(network: Network, tokens: Tensor) -> list[float]:
    """Compute the gradient norm of a late loss by the state at earlier tokens.

    The norm is ‖∂L_T/∂s_{T−k}‖ for k = 0, 1, …, averaged over rows. L_T is the loss
    of the last token, and s the complete state, for an LSTM including the cell. On
    a logarithmic scale, a straight falling curve shows a vanishing gradient, a
    rising one an exploding gradient (Pascanu et al. 2013, section 2.1).

    Args:
        network: network of any family, run in evaluation mode.
        tokens: ids [T + 1, B]; the last one is predicted.

    Returns:
        The norms by lag [T], lag 0 first.
    """
    carried: list[tuple[Tensor, ...]] = []
    with _evaluation_mode(network), torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        hidden = network.initial_hidden(tokens.shape[1])
        hidden = tuple(p.clone().requires_grad_() if p.is_floating_point() else p for p in hidden)
        for token in tokens[:-1]:
            _, hidden = network(token[None], hidden)
            # copies, so only the next step depends on them, even if kernel outputs share memory
            hidden = tuple(part.clone() for part in hidden)
            carried.append(tuple(part for part in hidden if part.requires_grad))
        loss = -network.output.target_log_probs(network.features(hidden[0][0]), tokens[-1]).sum()
        states = [part for parts in carried for part in parts]
        gradients = iter(torch.autograd.grad(loss, states, materialize_grads=True))
    norms = []
    for parts in carried:
        squares = torch.zeros(tokens.shape[1], device=tokens.device)
        for gradient in islice(gradients, len(parts)):
            squares += gradient.float().square().transpose(0, 1).flatten(1).sum(dim=1)
        norms.append(float(squares.sqrt().mean()))
    return norms[::-1]


def gate_saturation(network: Network, tokens: Tensor) -> list[dict[str, Any]]:
    """Compute the shares of gate values near their range's ends, where little gradient passes.

    Args:
        network: network of any family, run in evaluation mode. Cells without known gates have no entry.
        tokens: ids [T, B].

    Returns:
        For each gate its `layer`, from 1 for the lowest; its name, `gate`, `|h|` for the absolute outputs
        of a layer without gates; and the shares of values below 0.1, `low`, and above 0.9, `high`.
    """
    cells = [module for module in network.modules() if isinstance(module, Cell)]
    values_by_gate: dict[Cell, dict[str, list[Tensor]]] = {cell: {} for cell in cells}

    def collect(cell: Cell, given: tuple[Tensor, CellState], result: tuple[Tensor, CellState]) -> None:
        inputs, before = given
        for name, gate in _gates(cell, inputs[0], before, result[0][0]).items():
            values_by_gate[cell].setdefault(name, []).append(gate)

    with ExitStack() as hooks, _evaluation_mode(network), torch.no_grad():
        for cell in cells:
            hooks.enter_context(cell.register_forward_hook(collect))
        hidden = network.initial_hidden(tokens.shape[1])
        for token in tokens:
            _, hidden = network(token[None], hidden)
    return [
        {
            "layer": layer,
            "gate": gate,
            "low": float((torch.stack(values) < _NEARLY_CLOSED).float().mean()),
            "high": float((torch.stack(values) > _NEARLY_OPEN).float().mean()),
        }
        for layer, cell in enumerate(cells, start=1)
        for gate, values in values_by_gate[cell].items()
    ]


def diagnose(network: Network, text: EncodedCorpus) -> dict[str, Any]:
    """Compute gradients by lag and gate saturation on a text, for metrics.json; empty for tiny texts."""
    segments = sample_segments(text, length=LAGS + 1, rows=_ROWS)
    if segments is None:
        return {}
    tokens = torch.as_tensor(segments, device=next(network.parameters()).device)
    norms = gradient_by_lag(network, tokens)
    return {
        "stretches": tokens.shape[1],
        "gradient_by_lag": [norm if np.isfinite(norm) else None for norm in norms],
        "gate_saturation": gate_saturation(network, tokens[:-1]),
    }


def sample_segments(text: EncodedCorpus, *, length: int, rows: int) -> TokenIds | None:
    """Sample evenly spaced segments [T, B] of running text that end in a predicted token.

    Segments are shorter than `length` if the text is; None if it has fewer than two tokens.
    """
    running = text.with_boundaries().astype(np.int64)
    length = min(length, len(running))
    ends = np.flatnonzero(running != BOS)
    ends = ends[ends >= length - 1]
    if length < 2 or not len(ends):
        return None
    end_positions = ends[np.linspace(0, len(ends) - 1, min(rows, len(ends))).astype(np.int64)]
    segments: TokenIds = running[end_positions + np.arange(1 - length, 1)[:, None]]
    return segments


def _gates(cell: Cell, inputs: Tensor, before: CellState, outputs: Tensor) -> dict[str, Tensor]:
    """Return the values of a layer's gates at one token, in [0, 1], each [B, H]."""
    if isinstance(cell, MinGRU):
        return {"update": cell.gates(inputs).chunk(2, dim=-1)[0].sigmoid()}
    kernel = cell.kernel
    if kernel.mode == "RNN_TANH":
        return {"|h|": outputs.abs()}
    if kernel.mode == "RNN_RELU":
        return {}
    of_inputs, of_hidden, *biases = cell.weights()
    summed = linear(inputs, of_inputs, biases[0]) + linear(before[0], of_hidden, biases[1])
    gates = summed.chunk(summed.shape[-1] // kernel.hidden_size, -1)  # before their sigmoids
    if kernel.mode == "GRU":
        return {"reset": gates[0].sigmoid(), "update": gates[1].sigmoid()}
    return {"input": gates[0].sigmoid(), "forget": gates[1].sigmoid(), "output": gates[3].sigmoid()}


@contextmanager
def _evaluation_mode(network: Network) -> Iterator[None]:
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


@torch.no_grad()
def worst_row(network: Network, outputs: Tensor, targets: Tensor, vocabulary: Vocabulary) -> str:
    """Return the text of the row with the highest loss, shortened; outputs are [T, B, W]."""
    losses = []
    with _evaluation_mode(network):
        for row in range(targets.shape[1]):
            predicted = targets[:, row] != BOS
            features = network.features(outputs[:, row].float()[predicted])
            scores = network.output.target_log_probs(features, targets[:, row][predicted])
            mean = -float(scores.mean()) if len(scores) else 0.0
            losses.append(mean if np.isfinite(mean) else np.inf)
    return display_text(targets[:, int(np.argmax(losses))].tolist(), vocabulary)


def display_text(ids: list[int], vocabulary: Vocabulary) -> str:
    """Join tokens into a readable line, truncated if it is long."""
    tokens = [vocabulary[token] for token in ids]
    pieces = any(_WORD_START in token for token in tokens)
    text = "".join(tokens).replace(_WORD_START, " ").strip() if pieces else " ".join(tokens)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 1] + "…"


@contextmanager
def memory_advice(settings: TrainSettings) -> Iterator[None]:
    """Make out-of-memory errors name the settings to lower.

    Raises:
        InputError: memory ran out.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        kinds = MemoryError, torch.cuda.OutOfMemoryError
        if not isinstance(error, kinds) and _CPU_ALLOCATOR not in str(error):
            raise
        raise InputError(
            f"the training ran out of memory: train.batch_size is {settings.batch_size}; try half of it, or lower "
            f"train.bptt_length ({settings.bptt_length}), neural.hidden_size or tokenizer.vocab_size",
            param="train.batch_size",
        ) from error


def log_normalisers(model: NeuralModel, corpus: EncodedCorpus) -> dict[str, float]:
    """Compute `mean` and `deviation` of the logits' log Σ exp over sentences spread over a text, in nats.

    The mean is near 0 if scores are like log-probabilities;
    the deviation disturbs the order of candidates.

    Args:
        model: source of the logits.
        corpus: text of at least one sentence, of which about 20,000 tokens are used.
    """
    every = max(1, corpus.num_tokens // _TOKENS)
    indices = range(0, corpus.num_sentences, every)
    errors = []
    for start in range(0, len(indices), _SENTENCES):
        sentences = [[*corpus.sentence(i).tolist(), EOS] for i in indices[start : start + _SENTENCES]]
        tokens, lengths = pad_sequences(sentences)
        state = model.initial_state(len(sentences))
        logits = read_sequences(model, state, tokens, lengths, SCORES._replace(normalised=False)).log_probs
        error = logits - score_sequences(model, state, tokens, lengths)
        errors.append(error[np.arange(tokens.shape[1]) < lengths[:, None]])
    values = np.concatenate(errors).astype(np.float64)
    return {"mean": float(values.mean()), "deviation": float(values.std())}


class TensorBoardWriter:
    """Writer of training records for TensorBoard; without a folder it writes nothing.

    Args:
        folder: the log folder; empty for none.
        step: updates already done; the folder's records of later ones are hidden.

    Attributes:
        failure: why writing stopped; empty if it did not.

    Raises:
        InputError: the package is missing, or the folder cannot be written.
    """

    def __init__(self, folder: str, *, step: int = 0) -> None:
        self.failure = ""
        self._folder = folder
        self._writer: Any = None
        if not folder:
            return
        require_package("tensorboard", f"train.tensorboard {folder!r}", param="train.tensorboard")
        from torch.utils.tensorboard import SummaryWriter  # imports tensorboard

        try:
            self._writer = SummaryWriter(folder, purge_step=step + 1)
        except OSError as error:
            problem = f"is {folder!r}, which cannot be written: {error.strerror}"
            raise InputError.of("train.tensorboard", problem) from None

    def close(self) -> None:
        """Flush and close the writer."""
        self._write("close")

    def add(self, record: HistoryRecord) -> None:
        """Write a record's figures, indexed by update."""
        for name, value in record._asdict().items():
            if name not in {"step", "seconds"} and value is not None:
                self._write("add_scalar", f"training/{name}", value, record.step)

    def _write(self, method: str, *arguments: object) -> None:
        """Call a writer's method; a file error ends writing, but must not end the run."""
        try:
            if self._writer is not None:
                getattr(self._writer, method)(*arguments)
        except OSError as error:
            self._writer = None
            self.failure = f"cannot write to {self._folder} for TensorBoard: {error.strerror or error}"

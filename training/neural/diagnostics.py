"""How far back a trained network learns, and how its gates stand: measured on text, not on random numbers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from models.arrays import TokenIds
from models.neural.cells.cell import Cell, CellState
from models.neural.cells.elman import Elman
from models.neural.cells.gru import GRU
from models.neural.cells.kernel import TorchCell
from models.neural.cells.lstm import LSTM
from models.neural.cells.mingru import MinGRU
from models.neural.network import Network
from models.vocabulary import BOS
from training.corpora.encoded import EncodedCorpus

LAGS = 64
"""Tokens that gradients are followed back over."""

_ROWS = 32
_NEARLY_CLOSED, _NEARLY_OPEN = 0.1, 0.9


class GateSaturation(NamedTuple):
    """How often the values of one gate are at an end of their range, where hardly any gradient passes.

    Attributes:
        layer: from 1, the lowest.
        gate: its name; `|h|` for the absolute outputs of a layer without gates.
        low: share of its values below 0.1.
        high: share of its values above 0.9.
    """

    layer: int
    gate: str
    low: float
    high: float


def gradient_by_lag(network: Network, tokens: Tensor) -> list[float]:
    """The norm of the gradient of a late loss with respect to what was carried at earlier tokens.

    ‖∂L_T/∂s_{T−k}‖ for k = 0, 1, …, the mean over rows, L_T being the loss of the last token alone
    and s all that is carried: of an LSTM the cell as well, through which it remembers. A curve that
    falls straight on a logarithmic scale is vanishing, one that rises exploding (Pascanu et al. 2013,
    section 2.1).

    Args:
        network: of any family; it is used in evaluation mode.
        tokens: ids [T + 1, B]; the last is what is predicted.

    Returns:
        The norms by lag [T], lag 0 first.
    """
    carried: list[tuple[Tensor, ...]] = []
    with _evaluation_mode(network), torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        hidden = network.initial_hidden(tokens.shape[1])
        hidden = tuple(p.clone().requires_grad_() if p.is_floating_point() else p for p in hidden)
        for token in tokens[:-1]:
            _, hidden = network(token[None], hidden)
            # copies, of which nothing but the next step depends, whatever a kernel shares between outputs
            hidden = tuple(part.clone() for part in hidden)
            carried.append(tuple(part for part in hidden if part.requires_grad))
        loss = -network.target_log_probs(hidden[0][0], tokens[-1]).sum()
        wanted = [part for parts in carried for part in parts]
        gradients = iter(torch.autograd.grad(loss, wanted, allow_unused=True))
    norms = []
    for parts in carried:
        own = [g for g in (next(gradients) for _ in parts) if g is not None]
        squares = torch.zeros(tokens.shape[1], device=tokens.device)
        for gradient in own:
            squares += gradient.float().square().transpose(0, 1).flatten(1).sum(dim=1)
        norms.append(float(squares.sqrt().mean()))
    return norms[::-1]


def gate_saturation(network: Network, tokens: Tensor) -> list[GateSaturation]:
    """How saturated each gate of each layer is, over all values at all tokens.

    Args:
        network: of any family; it is used in evaluation mode. One without known gates has none.
        tokens: ids [T, B].
    """
    cells = [module for module in network.modules() if isinstance(module, Cell)]
    counted = [dict[str, list[Tensor]]() for _ in cells]
    hooks = [cell.register_forward_hook(_collector(own)) for cell, own in zip(cells, counted, strict=True)]
    try:
        with _evaluation_mode(network), torch.no_grad():
            hidden = network.initial_hidden(tokens.shape[1])
            for token in tokens:
                _, hidden = network(token[None], hidden)
    finally:
        for hook in hooks:
            hook.remove()
    return [
        _saturation(layer, gate, torch.stack(values))
        for layer, own in enumerate(counted, start=1)
        for gate, values in own.items()
    ]


def diagnose(network: Network, text: EncodedCorpus, *, lags: int = LAGS) -> dict[str, Any]:
    """Both, on stretches from all over a text, as facts for metrics.json; none of a text of a few tokens."""
    stretches = sample_segments(text, length=lags + 1, rows=_ROWS)
    if stretches is None:
        return {}
    tokens = torch.as_tensor(stretches, device=next(network.parameters()).device)
    norms = gradient_by_lag(network, tokens)
    return {
        "stretches": tokens.shape[1],
        "gradient_by_lag": [norm if np.isfinite(norm) else None for norm in norms],
        "gate_saturation": [gate._asdict() for gate in gate_saturation(network, tokens[:-1])],
    }


def sample_segments(text: EncodedCorpus, *, length: int, rows: int) -> TokenIds | None:
    """Stretches [T, B] of running text, evenly spread, the last token of each one that is predicted.

    Shorter than asked for where the text is; None where it has no two tokens.
    """
    running = text.with_boundaries().astype(np.int64)
    length = min(length, len(running))
    ends = np.flatnonzero(running != BOS)
    ends = ends[ends >= length - 1]
    if length < 2 or not len(ends):
        return None
    chosen = ends[np.linspace(0, len(ends) - 1, min(rows, len(ends))).astype(np.int64)]
    stretches: TokenIds = running[chosen + np.arange(1 - length, 1)[:, None]]
    return stretches


def _gates(cell: Cell, inputs: Tensor, before: CellState, outputs: Tensor) -> dict[str, Tensor]:
    """The values in [0, 1] of each gate of a layer at one token, each [B, H]."""
    if isinstance(cell, LSTM):
        i, f, _, o = _gate_inputs(cell, inputs, before[0], parts=4)
        return {"input": i.sigmoid(), "forget": f.sigmoid(), "output": o.sigmoid()}
    if isinstance(cell, GRU):
        r, z, _ = _gate_inputs(cell, inputs, before[0], parts=3)
        return {"reset": r.sigmoid(), "update": z.sigmoid()}
    if isinstance(cell, MinGRU):
        return {"update": cell.gates(inputs).chunk(2, dim=-1)[0].sigmoid()}
    if isinstance(cell, Elman) and cell.with_tanh:
        return {"|h|": outputs.abs()}
    return {}


def _gate_inputs(cell: TorchCell, inputs: Tensor, h: Tensor, *, parts: int) -> Sequence[Tensor]:
    """What a layer's gates are the sigmoids of."""
    of_inputs, of_hidden, *biases = cell.weights()
    return (linear(inputs, of_inputs, biases[0]) + linear(h, of_hidden, biases[1])).chunk(parts, -1)


def _collector(values: dict[str, list[Tensor]]) -> Any:
    def collect(cell: Cell, given: tuple[Tensor, CellState], result: tuple[Tensor, CellState]) -> None:
        inputs, before = given
        for name, gate in _gates(cell, inputs[0], before, result[0][0]).items():
            values.setdefault(name, []).append(gate)

    return collect


def _saturation(layer: int, gate: str, values: Tensor) -> GateSaturation:
    low, high = (values < _NEARLY_CLOSED), (values > _NEARLY_OPEN)
    return GateSaturation(layer, gate, float(low.float().mean()), float(high.float().mean()))


@contextmanager
def _evaluation_mode(network: Network) -> Iterator[None]:
    """A network in evaluation mode for a while."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)

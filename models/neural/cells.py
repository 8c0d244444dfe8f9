"""Recurrent cells (Elman, GRU, LSTM, minGRU), the interface of network bodies, and dropout.

minGRU is a linear recurrence h_t = a_t h_{t-1} + b_t, computed for all steps at once by a
doubling scan (Hillis and Steele 1986): log₂ T passes of element-wise operations. Products of
decays in [0, 1] can underflow, not overflow, so it needs no logarithms, unlike cumulative
quotients.

Dropout is active in training mode only, for values, tokens and weights.
"""

from abc import ABC, abstractmethod
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from typing_extensions import override

from models.neural.config import NetworkConfig

Hidden: TypeAlias = tuple[Tensor, ...]
"""State of a network between tokens: tensors [·, B, ·]; first the body's output at the last token,
[1, B, W], from which the next token is predicted; the rest is the body's state."""

CellState: TypeAlias = tuple[Tensor, ...]
"""State of a layer between tokens, tensors [B, H]; first its output at the last token."""


class SequenceLayer(nn.Module, ABC):
    """Sequence-to-sequence layer with a state."""

    @abstractmethod
    def forward(self, inputs: Tensor, carried: Hidden) -> tuple[Tensor, Hidden]:
        """Read T vectors per row.

        Args:
            inputs: [T, B, I].
            carried: the state before the first vector; unchanged.

        Returns:
            The outputs [T, B, W] and the next state.
        """

    def step(self, inputs: Tensor, carried: Hidden) -> tuple[Tensor, Hidden]:
        """Read one vector per row, [B, I]; like `forward`, perhaps faster for few rows on a CPU.

        Returns:
            The output [B, W] and the next state.
        """
        outputs, carried = self.forward(inputs[None], carried)
        return outputs[0], carried


class Body(SequenceLayer):
    """Layers from token vectors to the vectors that predict the next token.

    Attributes:
        width: W, width of an output.
    """

    width: int

    @abstractmethod
    def start(self, batch: int) -> Hidden:
        """Return the initial state: tensors whose dimension 1 is the batch."""


class Dropout(nn.Module):
    """Dropout of values [T, B, W]; the remaining values are scaled up.

    Args:
        share: share of dropped values.
        variational: whether a row drops the same values at all T steps (Gal and Ghahramani 2016).

    Attributes:
        shard: index of this process's part of a batch, and number of equal parts; masks are slices of
            the complete batch's mask.
    """

    def __init__(self, share: float, *, variational: bool) -> None:
        super().__init__()
        self.share = share
        self.variational = variational
        self.shard = (0, 1)

    def forward(self, values: Tensor) -> Tensor:
        """Return the values [T, B, W], with dropout in training mode."""
        if not self.training or not self.share:
            return values
        number, count = self.shard
        if count == 1 and not self.variational:
            return functional.dropout(values, self.share)
        times, rows, width = values.shape
        shape = (1 if self.variational else times, rows * count, width)
        if self.variational:
            mask = _dropout_mask(values.new_empty(shape), self.share)
        else:
            mask = functional.dropout(values.new_ones(shape), self.share)
        return values * mask[:, number * rows : (number + 1) * rows]


def drop_tokens(embedded: Tensor, tokens: Tensor, share: float, vocab_size: int) -> Tensor:
    """Return embeddings [T, B, E] of tokens [T, B], with 0 for all dropped tokens."""
    mask = _dropout_mask(embedded.new_empty(vocab_size, 1), share)
    return embedded * mask[tokens]


def drop_weights(weights: Tensor, share: float) -> Tensor:
    """Set a share of the weights to 0, DropConnect (Wan et al. 2013; Merity et al. 2018).

    On a CPU torch samples 32 bits per weight in sequence, which takes as long as the layer; sixteen
    bits suffice, with an error of the share of at most 1 in 65,536.
    """
    if weights.is_cuda:
        return functional.dropout(weights, share)
    count = weights.numel()
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    is_kept = draws.view(torch.int16)[:count].view(weights.shape) >= round(share * 2**16) - 2**15
    return weights * is_kept.to(weights.dtype).div_(1 - share)


def _dropout_mask(mask: Tensor, share: float) -> Tensor:
    return mask.bernoulli_(1 - share).div_(1 - share)


class TorchCell(SequenceLayer):
    """Recurrent layer that wraps `nn.RNN`, `nn.GRU` or `nn.LSTM`, with G gates of H outputs and I inputs.

    elman  h ← f(W x + U h + b). State (h,).
    gru    r, z = σ(W x + U h + b), n = tanh(W x + b + r (U h + b')); h ← (1 − z) n + z h. State (h,). Order of the
           gates: r, z, n.
    lstm   i, f, o = σ(W x + U h + b), g = tanh(W x + U h + b); c ← f c + i g, h ← o tanh(c). State (h, c). Order
           of the gates: i, f, g, o.

    Args:
        config: cell type, H, f, initial bias of an LSTM's forget gates, share of U dropped in training, and
            whether each gate's part of U is initialised orthogonal (Saxe et al. 2014).
        input_size: I.
    """

    def __init__(self, config: NetworkConfig, input_size: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.kernel: nn.RNNBase
        if config.cell == "elman":
            self.kernel = nn.RNN(input_size, size, nonlinearity=config.activation)
        else:
            self.kernel = (nn.LSTM if config.cell == "lstm" else nn.GRU)(input_size, size)
        self.parts = config.cell_states
        self.weight_drop = config.weight_drop
        if config.orthogonal:
            with torch.no_grad():
                for gate in self.weights()[1].chunk(len(self.weights()[1]) // size):
                    nn.init.orthogonal_(gate)
        if config.cell == "lstm":
            for bias in self.weights()[2:]:
                nn.init.zeros_(bias)
            nn.init.constant_(self.weights()[2][size : 2 * size], config.forget_bias)

    def weights(self) -> list[Tensor]:
        """Return weights of the inputs [G H, I] and last outputs [G H, H], and two biases [G H]."""
        return cast("list[Tensor]", list(self.kernel._flat_weights))  # noqa: SLF001 - no public list

    def dropped_weights(self) -> list[Tensor]:
        """Return the weights, the second with dropout; contiguous on CUDA, as cuDNN requires."""
        of_inputs, of_hidden, *biases = self.weights()
        weights = [of_inputs, drop_weights(of_hidden, self.weight_drop), *biases]
        if not of_inputs.is_cuda:
            return weights
        piece = torch.cat([weight.flatten() for weight in weights])
        parts = torch.split(piece, [weight.numel() for weight in weights])
        return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]

    @override
    def forward(self, inputs: Tensor, carried: CellState) -> tuple[Tensor, CellState]:
        before = tuple(part[None] for part in carried)
        hidden = before if self.parts > 1 else before[0]
        if self.training and self.weight_drop > 0:
            read = getattr(torch, self.kernel.mode.lower())  # such as `torch.rnn_tanh`
            # with biases, one layer, without dropout, in training, in one direction, time first
            options = (True, 1, 0.0, True, False, False)
            outputs, *after = read(inputs, hidden, self.dropped_weights(), *options)
        else:
            outputs, after = self.kernel(inputs, hidden)
            after = after if self.parts > 1 else [after]
        return outputs, tuple(part[0] for part in after)

    @override
    def step(self, inputs: Tensor, carried: CellState) -> tuple[Tensor, CellState]:
        hidden = carried if self.parts > 1 else carried[0]
        advance = getattr(torch, f"{self.kernel.mode.lower()}_cell")
        after = advance(inputs, hidden, *self.weights())
        after = after if self.parts > 1 else (after,)
        return after[0], after


def linear_recurrence(decays: Tensor, drives: Tensor, start: Tensor) -> Tensor:
    """Return h_1 … h_T [T, ...] of h_t = a_t h_{t-1} + b_t.

    Args:
        decays: a [T, ...].
        drives: b, of the same shape.
        start: h_0 [...].
    """
    outputs: Tensor = _LinearRecurrence.apply(decays, drives, start)  # type: ignore[no-untyped-call]
    return outputs


class _LinearRecurrence(torch.autograd.Function):
    """Linear recurrence and its gradient: the same recurrence from the last step to the first."""

    @staticmethod
    def forward(ctx: Any, decays: Tensor, drives: Tensor, start: Tensor) -> Tensor:
        first = torch.addcmul(drives[0], decays[0], start)
        outputs = _scan(decays, torch.cat([first[None], drives[1:]]))
        ctx.save_for_backward(decays, start, outputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decays, start, outputs = ctx.saved_tensors
        # b_t has h_t's gradient: the output's plus a_{t+1} times that of h_{t+1}
        later = torch.cat([decays[1:], torch.zeros_like(start)[None]])
        grads = _scan(later.flip(0), of_outputs.flip(0)).flip(0)
        before = torch.cat([start[None], outputs[:-1]])
        return grads * before, grads, grads[0] * decays[0]


def _scan(decays: Tensor, drives: Tensor) -> Tensor:
    """Return h_1 … h_T for h_0 = 0."""
    width = 1  # O(T log T) element-wise operations in log2 T passes over [T, B, H]
    while width < len(decays):  # each entry combines the last `width` steps
        drives = torch.cat([drives[:width], torch.addcmul(drives[width:], decays[width:], drives[:-width])])
        decays = torch.cat([decays[:width], decays[width:] * decays[:-width]])
        width *= 2
    return drives


class MinGRU(SequenceLayer):
    """z = σ(W x + b), n = g(V x + c); h ← (1 − z) h + z n, with g(v) = v + ½ above 0 and σ(v) below.

    Gates depend only on the input and h enters linearly, so all steps are computed at once. State (h,).
    W is stored above V.

    Args:
        input_size: I.
        hidden_size: H.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.gates = nn.Linear(input_size, 2 * hidden_size)

    @override
    def forward(self, inputs: Tensor, carried: CellState) -> tuple[Tensor, CellState]:
        decay, drive = self._terms(inputs)
        outputs = linear_recurrence(decay, drive, carried[0].to(decay.dtype))
        return outputs, (outputs[-1],)

    @override
    def step(self, inputs: Tensor, carried: CellState) -> tuple[Tensor, CellState]:
        decay, drive = self._terms(inputs)
        output = torch.addcmul(drive, decay, carried[0])
        return output, (output,)

    def _terms(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factor of the last h and the term added, [..., H] in the weights' precision."""
        z, n = self.gates(inputs).to(self.gates.weight.dtype).chunk(2, dim=-1)
        candidate = torch.where(n > 0, n + 0.5, torch.sigmoid(n))
        return torch.sigmoid(-z), torch.sigmoid(z) * candidate


Cell: TypeAlias = TorchCell | MinGRU
"""Recurrent layer."""

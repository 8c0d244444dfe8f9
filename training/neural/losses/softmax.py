"""Interface of losses; cross-entropy of the full and the adaptive softmax, in bounded memory.

Positions are processed in slices, forward and backward at once, so the full logits
[N, V] are never in memory. On a CPU, compiled kernels turn logits into gradients in
place, row by row, in threads. torch's several passes over fresh memory would take
as long as the matrix products in bfloat16. Logits are float32, or bfloat16 as
uint16 in NumPy. The adaptive softmax (Grave et al. 2017) has a head and clusters.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import types
from numba.extending import overload
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from models.arrays import AnyArray
from models.kernels.compilation import kernel
from models.kernels.math import exp
from models.kernels.threads import run_slices
from models.neural.output import AdaptiveSoftmax, Softmax

_HALF_WIDTH = np.uint32(16)  # bits of a bfloat16: the upper half of a float32
_LOWEST_KEY = np.int32(-(2**31))
_MAGNITUDE = np.int32(0x7FFFFFFF)
_SIGN = np.int32(31)
_ONE = np.float32(1)

_LANES = 64
"""Logits computed together, each with its own sum, so LLVM vectorises the loop."""

_FACTORS = 64
"""Logits of a lane between two logarithms: a product of 64 factors from 1 to 2 is at most 2^64."""

_ZERO = np.float32(0)
_NO_LOGIT = np.float32(-3e38)  # its term is 0

MAX_LOGITS = 1 << 22
"""Maximum logits in memory on a CPU; beyond the caches, fresh pages cost more than the products."""

MAX_LOGITS_ON_CUDA = 1 << 25

MIN_ROWS = 256
"""Minimum positions per slice: each reads and writes matrices as large as the layer's."""


class LossResult(NamedTuple):
    """Loss of a segment of text, and its gradient.

    Attributes:
        loss: minimised value, mean per predicted token; the
            cross-entropy in nats if it covers the full vocabulary.
        gradient: gradient of the features [N, E], in their type.
    """

    loss: float
    gradient: Tensor


class Loss(ABC):
    """A training criterion over an output layer.

    Attributes:
        changes: next call's `SoftTargets.changes`; None without teachers.
        name: name for reports.
    """

    changes: tuple[Tensor, Tensor] | None = None
    name = "softmax of all tokens"

    @abstractmethod
    def __call__(self, features: Tensor, ids: Tensor, *, precision: torch.dtype) -> LossResult:
        """Add the gradients of the mean loss to the output layer's parameters.

        Args:
            features: features without a graph [N, E], N ≥ 1.
            ids: target ids [N]; never `<s>`.
            precision: type of the matrix products.
        """

    @property
    def is_final(self) -> bool:
        """True if the run ends with this loss; early stopping waits for it."""
        return True

    def set_progress(self, done: float) -> None:  # noqa: B027 - most losses ignore it
        """Set the run's completed share, from 0 to 1; called before each update."""

    def record_validation(  # noqa: B027 - most losses ignore it
        self, perplexity: float, *, has_spare_time: bool
    ) -> None:
        """Record a validation's perplexity, and `Schedule.has_spare_time`."""

    def state(self) -> dict[str, Any]:
        """Return the state for resuming, numbers and dictionaries; empty if deterministic."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most losses have no state
        """Restore a result of `state`."""


def accumulate(param: Tensor, gradient: Tensor) -> None:
    """Add to a parameter's gradient; a missing one becomes `gradient`, not a copy."""
    param.grad = gradient if param.grad is None else param.grad.add_(gradient)


def as_float32(logit: Any) -> Any:
    """Convert a logit to float32; for kernels only."""
    raise NotImplementedError


@overload(as_float32, inline="always", strict=False)
def _as_float32(logit: Any) -> Any:
    if logit == types.uint16:
        return lambda logit: np.uint32(np.uint32(logit) << _HALF_WIDTH).view(np.float32)
    return (lambda logit: logit) if logit == types.float32 else None


def as_type_of(value: Any, logit: Any) -> Any:
    """Convert a float32 to a logit's type; bfloat16 rounds to nearest, ties to even; for kernels only."""
    raise NotImplementedError


@overload(as_type_of, inline="always", strict=False)
def _as_type_of(value: Any, logit: Any) -> Any:  # noqa: ARG001 - the types decide
    def rounded(value: Any, logit: Any) -> Any:  # noqa: ARG001
        bits = np.float32(value).view(np.uint32)
        even = (bits >> _HALF_WIDTH) & np.uint32(1)
        return np.uint16((bits + np.uint32(0x7FFF) + even) >> _HALF_WIDTH)

    return rounded if logit == types.uint16 else lambda value, logit: value  # noqa: ARG005


# no "ninf": the logits of unpredicted tokens are minus infinity
@kernel(
    error_model="numpy",  # NaN in a row gives a NaN loss, which the trainer reports
    fastmath={"reassoc", "nsz", "nnan", "arcp", "contract"},
)
def softmax_gradients(
    logits: Any, bias: Any, targets: Any, scale: Any, pull: Any, losses: Any, log_sums: Any
) -> None:
    """Turn logits without bias into the gradient of scale · Σ_n (loss_n + ½ pull · log_sum_n²), in place.

    Args:
        logits: [N, V], float32, or bfloat16 as uint16.
        bias: [V], float32; no row of logits plus bias is all minus infinity.
        targets: target ids [N].
        scale: scale of the gradients, float32.
        pull: weight of the squared log-normalisers, float32; 0 for the plain softmax.
        losses: output, −log p(target) [N], float32.
        log_sums: output, log Σ exp [N], float32.
    """
    size = logits.shape[1]
    values = np.empty(size, np.float32)  # [V], one row: it stays in the cache
    for n in range(logits.shape[0]):
        row = logits[n]
        key = _LOWEST_KEY
        # three passes over the row: maximum, sum of exponentials, gradient
        for v in range(size):
            values[v] = as_float32(row[v]) + bias[v]
            # LLVM vectorises the maximum of integers only
            bits = np.float32(values[v]).view(np.int32)
            key = max(key, bits ^ ((bits >> _SIGN) & _MAGNITUDE))
        highest = np.int32(key ^ ((key >> _SIGN) & _MAGNITUDE)).view(np.float32)
        target = values[targets[n]]
        total = np.float32(0)
        for v in range(size):
            e = exp(values[v] - highest)
            values[v] = e
            total += e
        log_sum = np.log(total) + highest
        losses[n] = log_sum - target
        log_sums[n] = log_sum
        factor = scale * (_ONE + pull * log_sum) / total
        for v in range(size):
            row[v] = as_type_of(values[v] * factor, row[v])
        row[targets[n]] = as_type_of(values[targets[n]] * factor - scale, row[targets[n]])


@kernel(
    error_model="numpy",  # NaN gives NaN
    fastmath={"reassoc", "nsz", "nnan", "arcp", "contract"},
)
def logistic_gradients(logits: Any, scale: Any, losses: Any) -> None:
    """Turn logits into the gradient of scale · Σ log(1 + exp(logit)), in place.

    Args:
        logits: [N, S], float32, or bfloat16 as uint16.
        scale: scale of the gradients, float32.
        losses: output, the sum of each row's log(1 + exp(logit)) [N], float32.
    """
    size = logits.shape[1]
    values = np.empty(_LANES, np.float32)  # [lanes], float32 for all types of logits
    # by lane: sums of max(x, 0), and products of 1 + e^-|x|, for few logarithms
    above, products = np.empty(_LANES, np.float32), np.empty(_LANES, np.float32)
    for n in range(logits.shape[0]):
        row = logits[n]
        above[:] = _ZERO
        products[:] = _ONE
        loss = np.float64(0)
        for begin in range(0, size, _LANES):
            length = min(_LANES, size - begin)
            for lane in range(length):
                values[lane] = as_float32(row[begin + lane])
            values[length:] = _NO_LOGIT
            for lane in range(_LANES):
                x = values[lane]
                small = exp(-abs(x))
                factor = _ONE + small
                above[lane] += max(x, _ZERO)  # log(1 + e^x) is max(x, 0) + log(1 + e^-|x|)
                products[lane] *= factor
                values[lane] = (scale if x >= _ZERO else scale * small) / factor
            for lane in range(length):
                row[begin + lane] = as_type_of(values[lane], row[begin + lane])
            if begin % (_LANES * _FACTORS) == _LANES * (_FACTORS - 1):
                for lane in range(_LANES):
                    loss += np.log(products[lane])
                    products[lane] = _ONE
        for lane in range(_LANES):
            loss += above[lane] + np.log(products[lane])
        losses[n] = loss


def softmax_rows(
    logits: Tensor, targets: Tensor, *, scale: float, pull: float = 0.0, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Turn logits into the gradient of scale · Σ_n (loss_n + ½ pull · log_sum_n²), in place.

    Args:
        logits: [N, V], float32 or bfloat16; overwritten.
        targets: indices into the rows [N].
        scale: scale of the gradients.
        pull: weight of the squared log-normalisers.
        bias: added to each row [V], float32; None for zeros.

    Returns:
        The losses −log p(target) and log-normalisers log Σ exp of the rows, [N] each, float32.
    """
    if bias is None:
        bias = logits.new_zeros(logits.shape[1], dtype=torch.float32)
    if logits.is_cuda:
        return _softmax_rows_by_torch(logits, bias, targets, scale, pull)
    losses, log_sums = results = torch.empty(2, len(logits))
    rows, added, indices, outputs = _numpy_view(logits), bias.numpy(), targets.numpy(), results.numpy()
    factors = np.float32(scale), np.float32(pull)
    _in_threads(
        lambda part: softmax_gradients(rows[part], added, indices[part], *factors, *outputs[:, part]),
        len(rows),
    )
    return losses, log_sums


def logistic_rows(logits: Tensor, *, scale: float) -> Tensor:
    """Turn logits of noise tokens into the gradient of scale · Σ −log(1 − σ(logit)), in place.

    Args:
        logits: [N, S], float32 or bfloat16; overwritten.
        scale: scale of the gradients.

    Returns:
        The sum of each row's losses [N], float32.
    """
    if logits.is_cuda:
        return _logistic_rows_by_torch(logits, scale)
    losses = torch.empty(len(logits))
    rows = _numpy_view(logits)
    _in_threads(
        lambda part: logistic_gradients(rows[part], np.float32(scale), losses[part].numpy()), len(rows)
    )
    return losses


def _softmax_rows_by_torch(
    logits: Tensor, bias: Tensor, targets: Tensor, scale: float, pull: float
) -> tuple[Tensor, Tensor]:
    exact = logits.float() + bias
    log_sums = exact.logsumexp(-1)
    rows = torch.arange(len(targets), device=targets.device)
    losses = log_sums - exact[rows, targets]
    exact = torch.exp(exact - log_sums[:, None]).mul_((scale * (1 + pull * log_sums))[:, None])
    exact[rows, targets] -= scale
    logits.copy_(exact)
    return losses, log_sums


def _logistic_rows_by_torch(logits: Tensor, scale: float) -> Tensor:
    exact = logits.float()
    losses = functional.softplus(exact).sum(-1)
    logits.copy_(torch.sigmoid(exact).mul_(scale))
    return losses


def _numpy_view(logits: Tensor) -> AnyArray:
    """View a tensor in NumPy; bfloat16, which NumPy lacks, becomes uint16."""
    return (logits.view(torch.uint16) if logits.dtype == torch.bfloat16 else logits).numpy()


def _in_threads(work: Callable[[slice], None], rows: int) -> None:
    """Split rows over threads, whose number does not change the result."""
    cuts = np.linspace(0, rows, min(torch.get_num_threads(), rows) + 1).astype(int).tolist()
    run_slices(work, cuts)


class LinearSoftmax(NamedTuple):
    """Losses of a linear layer's softmax, and gradients of their scaled sum.

    Attributes:
        losses: −log p(target) [N], float32.
        log_sums: log Σ exp of the logits [N], float32.
        grad_inputs: gradient of the inputs [N, E], in the type of the products.
        grad_weight: gradient of the weight [V, E], float32.
        grad_bias: gradient of the bias [V], float32.
    """

    losses: Tensor
    log_sums: Tensor
    grad_inputs: Tensor
    grad_weight: Tensor
    grad_bias: Tensor


def linear_softmax(
    weight: Tensor,
    bias: Tensor,
    inputs: Tensor,
    targets: Tensor,
    scale: float,
    precision: torch.dtype,
    pull: float = 0.0,
    changes: tuple[Tensor, Tensor] | None = None,
) -> LinearSoftmax:
    """Compute losses and gradients of scale · Σ_n (loss_n + ½ pull · log_sum_n²) without autograd.

    Args:
        weight: weight [V, E].
        bias: [V]; minus infinity for tokens never predicted.
        inputs: inputs of the layer [N, E]; N may be 0.
        targets: target ids, in [0, V) [N].
        scale: scale of the gradients.
        precision: type of the matrix products.
        pull: weight of the squared log-normalisers.
        changes: changes of the targets, in the gradients, not the losses; see `SoftTargets`.
    """
    weight, bias = weight.detach().to(precision), bias.detach().float()
    inputs = inputs.to(precision)
    count = len(targets)
    size = max(MIN_ROWS, (MAX_LOGITS_ON_CUDA if inputs.is_cuda else MAX_LOGITS) // len(bias))
    answer = LinearSoftmax(
        inputs.new_empty(count, dtype=torch.float32),
        inputs.new_empty(count, dtype=torch.float32),
        torch.empty_like(inputs),
        torch.zeros_like(weight, dtype=torch.float32),
        torch.zeros_like(bias),
    )
    buffer = inputs.new_empty(min(size, count), len(bias))
    for start in range(0, count, size):
        cut = slice(start, min(start + size, count))
        logits = buffer[: cut.stop - start]
        # addmm would first copy the bias to all rows
        torch.mm(inputs[cut], weight.T, out=logits)
        answer.losses[cut], answer.log_sums[cut] = softmax_rows(
            logits, targets[cut], scale=scale, pull=pull, bias=bias
        )
        if changes is not None:
            ids, amounts = changes[0][cut], (changes[1][cut] * -scale).to(logits.dtype)
            begins = len(bias) * torch.arange(len(ids), device=ids.device)
            # `scatter_add_` takes far longer
            logits.put_(ids + begins[:, None], amounts, accumulate=True)
        torch.mm(logits, weight, out=answer.grad_inputs[cut])
        if precision == torch.float32:
            answer.grad_weight.addmm_(logits.T, inputs[cut])
        else:
            answer.grad_weight.add_(logits.T @ inputs[cut])
        answer.grad_bias.add_(logits.sum(0, dtype=torch.float32))
    return answer


class FullSoftmax(Loss):
    """Mean cross-entropy, plus ½ `self_normalise` times the mean squared log-normaliser.

    The second term pulls the logits' Σ exp towards 1: logits can replace log-probabilities if sums
    over the vocabulary are too slow (Devlin et al. 2014; Chen et al. 2015, "variance regularisation").

    Args:
        layer: the output layer.
        self_normalise: weight of the second term; 0 for plain cross-entropy.
    """

    def __init__(self, layer: Softmax, *, self_normalise: float = 0.0) -> None:
        self._layer = layer
        self._self_normalise = self_normalise

    @override
    def __call__(self, features: Tensor, ids: Tensor, *, precision: torch.dtype) -> LossResult:
        layer, pull = self._layer, self._self_normalise
        bias = layer.bias + layer.never_predicted
        done = linear_softmax(layer.weight, bias, features, ids, 1 / len(ids), precision, pull, self.changes)
        accumulate(layer.weight, done.grad_weight)
        accumulate(layer.bias, done.grad_bias)
        losses = done.losses
        if pull:
            losses = losses + 0.5 * pull * done.log_sums.square()
        return LossResult(float(losses.mean(dtype=torch.float64)), done.grad_inputs.to(features.dtype))


class AdaptiveCrossEntropy(Loss):
    """Mean cross-entropy of an `AdaptiveSoftmax`, a product of two softmaxes (Grave et al. 2017).

    Parameters of unused clusters get zero gradients.

    Args:
        output: the output layer.
    """

    name = "adaptive softmax"

    def __init__(self, output: AdaptiveSoftmax) -> None:
        self._output = output

    @override
    def __call__(self, features: Tensor, ids: Tensor, *, precision: torch.dtype) -> LossResult:
        output = self._output
        vectors = output.vectors
        ranks = vectors.rank[ids]
        head = linear_softmax(*output.head(), features, output.head_index(ranks), 1 / len(ids), precision)
        size = vectors.bounds[1]
        accumulate(vectors.table(0), head.grad_weight[:size])
        accumulate(output.clusters, head.grad_weight[size:])
        accumulate(output.biases[0], head.grad_bias)
        gradient = head.grad_inputs.float()
        loss = head.losses.sum(dtype=torch.float64)
        for cluster in range(1, len(vectors)):
            loss += self._cluster_loss(cluster, features, ranks, gradient, precision)
        return LossResult(float(loss) / len(ids), gradient.to(features.dtype))

    def _cluster_loss(
        self, cluster: int, features: Tensor, ranks: Tensor, gradient: Tensor, precision: torch.dtype
    ) -> Tensor:
        """Add a cluster's gradients to parameters and features [N, E]; return its summed losses."""
        output, vectors = self._output, self._output.vectors
        begin, end = vectors.bounds[cluster], vectors.bounds[cluster + 1]
        rows = ((ranks >= begin) & (ranks < end)).nonzero().squeeze(1)
        projection = vectors.projection(cluster).detach().to(precision)
        inputs = features[rows].to(precision)
        table, bias = vectors.table(cluster), output.biases[cluster]
        projected, inner = inputs @ projection.T, ranks[rows] - begin
        inside = linear_softmax(table, bias, projected, inner, 1 / len(ranks), precision)
        accumulate(table, inside.grad_weight)
        accumulate(bias, inside.grad_bias)
        accumulate(vectors.projection(cluster), (inside.grad_inputs.T @ inputs).float())
        gradient.index_add_(0, rows, (inside.grad_inputs @ projection).to(gradient.dtype))
        return inside.losses.sum(dtype=torch.float64)

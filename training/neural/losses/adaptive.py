"""Cross-entropy of the adaptive softmax: over the head, and over the clusters of those tokens that have one."""

import torch
from torch import Tensor

from models.errors import InvalidInputError
from models.neural.output.adaptive import AdaptiveSoftmax
from models.neural.output.layer import OutputLayer
from training.neural.losses.linear_softmax import linear_softmax
from training.neural.losses.loss import Loss, LossResult, accumulate


class AdaptiveCrossEntropy(Loss):
    """Mean cross-entropy of an `AdaptiveSoftmax`, the logarithm of a product of two softmaxes (Grave et al. 2017)."""

    def __call__(
        self, output: OutputLayer, features: Tensor, ids: Tensor, *, precision: torch.dtype
    ) -> LossResult:
        """Add the gradients of the mean loss to the output layer's; see `Loss`.

        Parameters of a cluster that nothing needed get gradients of zero.
        """
        if not isinstance(output, AdaptiveSoftmax):
            raise InvalidInputError(
                f"the adaptive softmax's loss cannot train {type(output).__name__}", parameter="train.loss"
            )
        vectors = output.vectors
        ranks = vectors.rank[ids]
        head = linear_softmax(
            *output.head(), features, output.head_index(ranks), scale=1 / len(ids), precision=precision
        )
        size = vectors.bounds[1]
        accumulate(vectors.table(0), head.grad_weight[:size])
        accumulate(output.clusters, head.grad_weight[size:])
        accumulate(output.biases[0], head.grad_bias)
        gradient = head.grad_inputs.float()
        loss = head.losses.sum(dtype=torch.float64)
        for cluster in range(1, len(vectors)):
            loss += _cluster_loss(output, cluster, features, ranks, gradient, precision)
        return LossResult(float(loss) / len(ids), gradient.to(features.dtype))


def _cluster_loss(
    output: AdaptiveSoftmax,
    cluster: int,
    features: Tensor,
    ranks: Tensor,
    gradient: Tensor,
    precision: torch.dtype,
) -> Tensor:
    """Add a cluster's gradients to its parameters' and to the features' [N, E]; returns its summed losses."""
    vectors = output.vectors
    begin, end = vectors.bounds[cluster], vectors.bounds[cluster + 1]
    rows = ((ranks >= begin) & (ranks < end)).nonzero().squeeze(1)
    projection = vectors.projection(cluster).detach().to(precision)
    inputs = features[rows].to(precision)
    inside = linear_softmax(
        vectors.table(cluster),
        output.biases[cluster],
        inputs @ projection.T,
        ranks[rows] - begin,
        scale=1 / len(ranks),
        precision=precision,
    )
    accumulate(vectors.table(cluster), inside.grad_weight)
    accumulate(output.biases[cluster], inside.grad_bias)
    accumulate(vectors.projection(cluster), (inside.grad_inputs.T @ inputs).float())
    gradient.index_add_(0, rows, (inside.grad_inputs @ projection).to(gradient.dtype))
    return inside.losses.sum(dtype=torch.float64)

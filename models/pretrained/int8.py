"""Linear layers of a pretrained network in int8, computed on a CPU by the kernels of int8 networks.

Weights have a scale per output, activations a scale per token. All else, such as attention, stays in float32, so a
result depends on the other texts of a batch within rounding, which int8 turns into steps of 1/127 of an activation.
"""

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D
from typing_extensions import override

from models.neural.int8.matrix import Int8Linear, Parameters
from models.neural.int8.output import multiply, to_int8_rows
from models.neural.sequences import run_row_slices
from models.tensor_files import PackedWeightCache


class Int8Layer(nn.Module):
    """W x + b in int8, in place of torch's `Linear` or transformers' `Conv1D`."""

    def __init__(self, layer: Int8Linear) -> None:
        super().__init__()
        self.layer = layer

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        """Return the products [..., O] with vectors [..., I] of float32."""
        vectors = inputs.reshape(-1, inputs.shape[-1])
        products = vectors.new_empty((len(vectors), self.layer.size))
        given, written = vectors.numpy(), products.numpy()

        def multiply_slice(rows: slice) -> None:
            written[rows] = multiply(self.layer, to_int8_rows(given[rows]))

        run_row_slices(multiply_slice, len(vectors))
        return products.reshape(*inputs.shape[:-1], self.layer.size)


def quantise_layers(network: nn.Module, weight_cache: PackedWeightCache) -> list[Int8Layer]:
    """Replace the linear layers of a network, output layer included, by layers in int8; return these.

    Args:
        network: network on a CPU, in float32; its embeddings stay as they are.
        weight_cache: cache of the quantised weights.
    """
    layers = []
    for name, module in [*network.named_modules()]:
        if isinstance(module, nn.Linear | Conv1D):
            stored = module.weight.detach()
            weight = stored if isinstance(module, nn.Linear) else stored.T  # Conv1D has [I, O]
            bias = None if module.bias is None else module.bias.detach().numpy()
            layer = Int8Layer(Parameters({name: weight.numpy()}, weight_cache).linear(name, bias))
            network.set_submodule(name, layer)
            layers.append(layer)
    return layers

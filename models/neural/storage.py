"""A network's two files: `config.json` and `model.safetensors`."""

from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from models.config_file import CONFIG_FILE, read_config, write_config
from models.errors import InvalidInputError, ManifestError
from models.neural.config import NetworkConfig
from models.neural.network import Network

WEIGHTS_FILE = "model.safetensors"
_OBSOLETE_PREFIX = "recurrent."  # what the tensors of the first recurrent networks were called
_TIED_TENSORS = ("output.weight", "output.vectors.")  # of a tied network: the embedding's too, stored once


def write_network(network: Network, directory: Path) -> None:
    """Write both files into an existing directory."""
    config = {"vocab_size": network.vocab_size, **network.config.model_dump()}
    write_config(directory / CONFIG_FILE, config)
    save_file(_stored_tensors(network), directory / WEIGHTS_FILE)


def read_network(directory: Path, *, vocab_size: int) -> Network:
    """Rebuild a network, on the CPU and in evaluation mode.

    Its parameters are the file itself, mapped into memory: processes share the pages, and what one of them
    writes is seen by no other.

    Args:
        directory: where both files are.
        vocab_size: V, which the files must agree with.

    Raises:
        ManifestError: a file is missing or is not what `write_network` writes.
    """
    config = _read_config(directory / CONFIG_FILE, vocab_size)
    path = directory / WEIGHTS_FILE
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ManifestError(f"{path} is not a file of weights: {error}") from None
    network = _make_on_meta(config, vocab_size, directory / CONFIG_FILE)
    _check_tensors(path, tensors, _stored_tensors(network))
    network.load_state_dict(tensors, strict=False, assign=True)  # no copies; the shared matrix may be absent
    network.tie()
    problem = network.output.problem
    if problem is not None:
        raise ManifestError(f"{path}: {problem}")
    return network.eval()


class _SkipInitialisation(TorchFunctionMode):
    """Leaves out what torch computes shapes of by its compiler, which takes a second and 64 MB to bring in.

    The first values of an adaptive softmax do so still.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if func is nn.init.normal_ else func(*args, **kwargs)


def _make_on_meta(config: NetworkConfig, vocab_size: int, path: Path) -> Network:
    """The network's shapes: sizes that the weights do not bear out cost no memory."""
    shapes = config.model_copy(update={"orthogonal": False})  # decides about first values only
    try:
        with torch.device("meta"), _SkipInitialisation():
            network = Network(shapes, vocab_size)
    except InvalidInputError as error:
        raise ManifestError(f"{path}: {error}") from None
    network.config = config
    return network


def _stored_tensors(network: Network) -> dict[str, Tensor]:
    """The tensors as the file has them: nothing twice, as safetensors asks."""
    tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    if not network.config.tied:
        return tensors
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(_TIED_TENSORS)}


def _read_config(path: Path, vocab_size: int) -> NetworkConfig:
    fields = read_config(path)
    written_for = fields.pop("vocab_size", None)
    try:
        config = NetworkConfig.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ManifestError(f"{path}: field {field!r}: {first['msg']}") from None
    if written_for != vocab_size:
        raise ManifestError(f"{path}: vocab_size is {written_for!r}, the vocabulary has {vocab_size} tokens")
    return config


def _check_tensors(path: Path, tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    if any(name.startswith(_OBSOLETE_PREFIX) for name in tensors):
        raise ManifestError(f"{path} was written by an earlier version; train the model again")
    if tensors.keys() != expected.keys():
        differing = ", ".join(sorted(tensors.keys() ^ expected.keys()))
        raise ManifestError(f"{path}: tensors are missing or too many: {differing}")
    for name, want in expected.items():
        got = tensors[name]
        if got.shape != want.shape or got.dtype != want.dtype:
            raise ManifestError(
                f"{path}: {name} is {list(got.shape)} {got.dtype}, config.json asks for "
                f"{list(want.shape)} {want.dtype}"
            )
        if not bool(torch.stack(got.aminmax()).isfinite().all()):  # nothing as large as the tensor is made
            raise ManifestError(f"{path}: {name} has values that are not finite")

"""Network: embedding → body → (projection) → output layer; its files and its device.

Tensors are time-major, [T, B], as the recurrent kernels require. Dropout is active in training mode
only. Embedding and output layer may share vectors. `models.neural.config` defines the files.
"""

from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from models.cores import usable_threads
from models.errors import InputError, ManifestError
from models.files import CONFIG_FILE, write_config
from models.neural.cells import Body, Dropout, Hidden, drop_tokens
from models.neural.config import WEIGHTS_FILE, NetworkConfig, NetworkWeights, parameter_shapes, read_weights
from models.neural.layers import AttentionBody, FeedForward, Recurrent
from models.neural.output import INITIAL_RANGE, AdaptiveSoftmax, ClusteredEmbedding, Softmax


class Network(nn.Module):
    """Parameters and forward computation of a neural language model.

    Args:
        config: the shape.
        vocab_size: V.

    Raises:
        InputError: the configured cutoffs do not match the vocabulary.
    """

    def __init__(self, config: NetworkConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = vocab_size
        self.embedding: nn.Embedding | ClusteredEmbedding
        if config.output == "adaptive" and config.tied:
            self.embedding = ClusteredEmbedding(vocab_size, config.embedding_size, cutoffs=config.cutoffs)
        else:
            self.embedding = nn.Embedding(vocab_size, config.embedding_size)
            nn.init.uniform_(self.embedding.weight, -INITIAL_RANGE, INITIAL_RANGE)
        self.input_dropout = Dropout(config.of_inputs, variational=config.variational)
        self.body: Body = FeedForward(config) if config.cell == "feed-forward" else Recurrent(config)
        if config.attention != "none":
            self.body = AttentionBody(self.body, config)
        self.output_dropout = Dropout(config.dropout, variational=config.variational)
        self.feature_size = width = config.feature_size
        narrowed = self.body.width != width
        self.projection = nn.Linear(self.body.width, width) if narrowed else nn.Identity()
        self.output: Softmax | AdaptiveSoftmax
        if config.output == "softmax":
            shared = cast("nn.Parameter", self.embedding.weight) if config.tied else None
            self.output = Softmax(width, vocab_size, shared=shared)
        elif isinstance(self.embedding, ClusteredEmbedding):
            self.output = AdaptiveSoftmax(width, self.embedding)
        else:
            vectors = ClusteredEmbedding(vocab_size, width, cutoffs=config.cutoffs)
            self.output = AdaptiveSoftmax(width, vectors)

    def weights(self) -> NetworkWeights:
        """Return parameters as arrays, sharing the memory of those on the CPU."""
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in self.state_dict().items()}
        return NetworkWeights(self.config, self.vocab_size, arrays)

    def initial_hidden(self, batch: int) -> Hidden:
        """Return the initial state: zeros as the output, and the body's initial state."""
        return (next(self.parameters()).new_zeros(1, batch, self.body.width), *self.body.start(batch))

    def detach_and_reset(self, hidden: Hidden, continues: Tensor) -> Hidden:
        """Return the state for a training step: detached, reset in rows that begin a text.

        Args:
            hidden: state after the last step.
            continues: True for rows that continue a text [B].
        """
        initial = self.initial_hidden(len(continues))
        mask = continues[None, :, None]
        return tuple(torch.where(mask, part.detach(), new) for part, new in zip(hidden, initial, strict=True))

    def forward(self, tokens: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """Read T tokens per row.

        Args:
            tokens: ids [T, B].
            hidden: state before the first token; unchanged.

        Returns:
            The body's outputs [T, B, W] and the next state.
        """
        embedded = self.embedding(tokens)
        if self.training and self.config.embedding_dropout:
            embedded = drop_tokens(embedded, tokens, self.config.embedding_dropout, self.vocab_size)
        outputs, carried = self.body(self.input_dropout(embedded), hidden[1:])
        return outputs, (outputs[-1:], *carried)

    def step(self, tokens: Tensor, hidden: Hidden) -> Hidden:
        """Read a token per row [B] in evaluation mode; faster than `forward` for few rows."""
        output, carried = self.body.step(self.embedding(tokens), hidden[1:])
        return (output[None], *carried)

    def features(self, outputs: Tensor) -> Tensor:
        """Return the output layer's input [..., E] from body outputs [..., W]; in training [T, B, W]."""
        narrowed: Tensor = self.projection(self.output_dropout(outputs))
        return narrowed


def write_network(network: Network, directory: Path) -> None:
    """Write both files into an existing folder."""
    config = {"vocab_size": network.vocab_size, **network.config.model_dump()}
    write_config(directory / CONFIG_FILE, config)
    tensors = network.state_dict()
    names = parameter_shapes(network.config, network.vocab_size)
    save_file({name: tensors[name].contiguous() for name in names}, directory / WEIGHTS_FILE)


def read_network(directory: Path, *, vocab_size: int) -> Network:
    """Load a network on the CPU, in evaluation mode.

    Its parameters are memory-mapped from the file: processes share the pages, and writes of one
    process are private.

    Args:
        directory: folder of both files.
        vocab_size: V, which the files must match.

    Raises:
        ManifestError: a file is missing or was not written by `write_network`.
    """
    config = read_weights(directory, vocab_size=vocab_size).config
    path = directory / WEIGHTS_FILE
    try:
        tensors = load_file(path)  # its map is writable, unlike that of `read_weights`
    except (OSError, SafetensorError) as error:
        raise ManifestError(f"{path} is not a safetensors file: {error}") from None
    shapes = config.model_copy(update={"orthogonal": False})  # affects initial values only
    with torch.device("meta"), _SkipInitialisation():
        network = Network(shapes, vocab_size)
    network.config = config
    # no copies; a shared matrix may be absent
    network.load_state_dict(tensors, strict=False, assign=True)
    if config.tied and isinstance(network.output, Softmax):  # it was replaced
        network.output.weight = cast("nn.Parameter", network.embedding.weight)
    return network.eval()


class _SkipInitialisation(TorchFunctionMode):
    """Mode without `nn.init.normal_`, which on `meta` imports torch's compiler: 1 s, 64 MB.

    The initialisers of an adaptive softmax are not skipped.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if func is nn.init.normal_ else func(*args, **kwargs)


def resolve_device(name: str) -> torch.device:
    """Return the device of a name, with TF32 disabled on CUDA, and threads limited on a CPU.

    cuDNN's recurrent kernels, unlike matrix products, round factors to ten bits by default; scores would
    differ from the CPU's by more than the golden test allows.

    Args:
        name: `cpu`, `cuda`, `cuda:1`, …, or `auto`: a CUDA device if there is one, else the CPU.

    Raises:
        InputError: the name is invalid, or this machine has no such device.
    """
    if (usable := usable_threads("OMP_NUM_THREADS")) < torch.get_num_threads():
        torch.set_num_threads(usable)  # torch does not know quotas
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind not in {"cpu", "cuda"} or (":" in name and not (kind == "cuda" and index.isdecimal())):
        raise InputError.of("device", f"is {name!r}, it can be auto, cpu, cuda or cuda:<number>")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise InputError.of(
            "device", f"is {name!r}, but torch sees {torch.cuda.device_count()} CUDA devices here"
        )
    if kind == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    return torch.device(kind, int(index)) if index else torch.device(kind)

"""Folders of pretrained models in Hugging Face's form: checks, and the network, also in int8.

Only local files are read: no network, no pickle, no code of the folder.

In int8 the kernels of int8 networks compute linear layers, on a CPU. Weights have a scale per
output, activations a scale per token. All else, such as attention, stays in float32, so a result
depends on the batch's other texts within rounding, which int8 turns into steps of 1/127 of an
activation.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D
from typing_extensions import override

from models.errors import ManifestError
from models.files import CONFIG_FILE, read_config
from models.kernels.threads import run_row_slices
from models.neural.int8.matrix import Int8Linear, Parameters
from models.neural.int8.output import multiply, to_int8_rows
from models.tensor_files import PackedWeightCache

ARCHITECTURES = ("gpt2", "gpt_neox", "llama", "mistral", "olmo2", "qwen2", "qwen3")
"""Values of `model_type` in config.json."""

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
# the largest tokenizers: some 40 MB
_MAX_JSON_BYTES, _MAX_TOKENIZER_BYTES = 16 << 20, 256 << 20
_HOW_MADE = (
    "; transformers makes it from vocab.json and merges.txt: "
    "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
)
_MAX_NUMBER = 1e12
_MAX_NUMBERS: Mapping[str, float] = {
    **dict.fromkeys(("n_layer", "num_hidden_layers", "max_window_layers", "num_labels"), 1000),
    **dict.fromkeys(("n_head", "num_attention_heads", "num_key_value_heads"), 4096),
    **dict.fromkeys(("n_embd", "n_inner", "hidden_size", "intermediate_size", "head_dim"), 1 << 20),
    **dict.fromkeys(("vocab_size", "n_ctx", "n_positions", "max_position_embeddings"), 1 << 26),
}
"""Maximum absolute values in config.json, by their names."""


def read_network(folder: Path, *, attention: str, dtype: torch.dtype) -> Any:
    """Build the network of a folder, without gradients.

    Args:
        folder: the folder.
        attention: name of the registered attention.
        dtype: type of the weights.

    Raises:
        ManifestError: a file is missing, cut short or of another model; the message names it.
    """
    config, library = check_folder(folder), cast("Any", transformers.logging)
    library.set_verbosity_error()  # the checks below report what matters
    library.disable_progress_bar()
    try:
        _check_num_weights(folder)
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            attn_implementation=attention,
            dtype=dtype,
            output_loading_info=True,
        )
        network, report = loaded
    except Exception as error:  # noqa: BLE001 - wrong values raise exceptions of any class
        raise ManifestError(
            f"{folder}: not a model of the type {config['model_type']}: {error!s:.300}"
        ) from None
    if names := sorted(map(str, report["missing_keys"])):
        raise ManifestError(f"{folder}: {len(names)} weights are missing, such as {names[0]:.200}")
    return network.requires_grad_(requires_grad=False)


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
    """Replace a network's linear layers, output layer included, by int8 layers; return these.

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


def centre_outputs(network: Any) -> None:
    """Subtract the mean of the output layer's vectors from each.

    No probability changes: all logits lose one amount, which is often large (GPT-2's are about -100) and would
    leave few digits for their differences.
    """
    head = network.get_output_embeddings()
    weight = head.weight.float()
    head.weight = nn.Parameter((weight - weight.mean(0)).to(head.weight.dtype), requires_grad=False)


def check_folder(folder: Path) -> dict[str, Any]:
    """Check that a folder has all files of a supported model; return its config.json.

    Raises:
        ManifestError: a file is missing or cut short, or the configuration unsupported; the message names it.
    """
    path = folder / CONFIG_FILE
    if not path.exists():
        raise ManifestError(f"{path} is missing: not a folder of a pretrained model")
    _check_files(folder)
    config = read_config(path)
    _check_numbers(path, config)
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise ManifestError(f"{path}: model_type is {kind!r:.80}; supported are {', '.join(ARCHITECTURES)}")
    slides = config.get("sliding_window") and config.get("use_sliding_window", True)
    unsupported = {
        "attention is limited to a sliding window": slides
        or "sliding_attention" in str(config.get("layer_types")),
        "positions depend on the length of the text": "longrope"
        in str((config.get("rope_parameters"), config.get("rope_scaling"))),
        "the weights are quantized": config.get("quantization_config"),
    }
    for problem, occurs in unsupported.items():
        if occurs:
            raise ManifestError(f"{path}: {problem}, which is not supported")
    for name in _weight_files(folder):
        try:
            with safe_open(folder / name, framework="pt"):
                pass
        except FileNotFoundError:
            raise ManifestError(f"{folder / name} is missing") from None
        except (OSError, SafetensorError) as error:
            raise ManifestError(f"{folder / name} is damaged or cut short: {error!s:.200}") from None
    if not (folder / "tokenizer.json").is_file():
        made = _HOW_MADE if (folder / "vocab.json").is_file() else ""
        raise ManifestError(f"{folder / 'tokenizer.json'} is missing{made}")
    return config


def files_of(folder: Path) -> list[str]:
    """Return the names of configuration and weights in a checked folder."""
    names = [CONFIG_FILE, *_weight_files(folder)]
    return names if _WEIGHTS in names else [*names, _INDEX]


def _check_files(folder: Path) -> None:
    """Raise ManifestError for endless pipes or devices, or enormous JSON."""
    for file in folder.iterdir():
        if file.exists() and not file.is_file() and not file.is_dir():
            raise ManifestError(f"{file} is not a regular file")
        most = _MAX_JSON_BYTES if file.name != "tokenizer.json" else _MAX_TOKENIZER_BYTES
        if file.suffix == ".json" and file.exists() and (size := file.stat().st_size) > most:
            raise ManifestError(f"{file} has {size:,} bytes, over {most:,}")


def _check_numbers(path: Path, config: Mapping[str, Any]) -> None:
    """Raise ManifestError for a configured number, at any depth, too large or infinite."""
    pending = [*config.items()]
    for name, value in pending:
        most = _MAX_NUMBERS.get(name, _MAX_NUMBER)
        if isinstance(value, dict | list):
            pending += value.items() if isinstance(value, dict) else ((name, inner) for inner in value)
        elif isinstance(value, int | float) and not abs(value) <= most:
            raise ManifestError(f"{path}: {name:.80} is {value!s:.80}; it must be from {-most:,} to {most:,}")


def _check_num_weights(folder: Path) -> None:
    """Raise ManifestError, before allocation, for far more weights than the files have."""
    stored = sum((folder / name).stat().st_size for name in _weight_files(folder))
    with torch.device("meta"):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        described = cast("Any", transformers.AutoModelForCausalLM).from_config(config).num_parameters()
    if described > 2 * stored:  # which are at least as many bytes
        raise ManifestError(f"{described:,} weights are described, but the files have {stored:,} bytes")


def _weight_files(folder: Path) -> list[str]:
    if (folder / _WEIGHTS).is_file():  # transformers then ignores the index
        return [_WEIGHTS]
    if not (folder / _INDEX).is_file():
        raise ManifestError(f"{folder} has no weights: neither {_WEIGHTS} nor {_INDEX}")
    index = read_config(folder / _INDEX).get("weight_map")
    names = [*index.values()] if isinstance(index, dict) else []
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise ManifestError(f"{folder / _INDEX} does not list files of weights")
    return sorted(set(names))

"""Folders of pretrained models as Hugging Face's libraries write them: checks, and the network.

Only local files are read: no network, no pickle, no code of the folder.
"""

from pathlib import Path
from typing import Any, cast

import torch
import transformers
from safetensors import SafetensorError, safe_open

from models.errors import ManifestError
from models.files import CONFIG_FILE, read_config

ARCHITECTURES = ("gpt2", "gpt_neox", "llama", "mistral", "olmo2", "qwen2", "qwen3")
"""Values of `model_type` in config.json."""

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


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


def check_folder(folder: Path) -> dict[str, Any]:
    """Check that a folder has all files of a supported model; return the content of config.json.

    Raises:
        ManifestError: a file is missing or cut short, or the configuration is not supported; the message names it.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ManifestError(f"{path} is missing: not a folder of a pretrained model")
    config = read_config(path)
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
        raise ManifestError(f"{folder / 'tokenizer.json'} is missing")
    return config


def files_of(folder: Path) -> list[str]:
    """Return the names of the configuration and the weights in a checked folder."""
    names = [CONFIG_FILE, *_weight_files(folder)]
    return names if _WEIGHTS in names else [*names, _INDEX]


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

"""The small JSON file that says how a model, or a tokenizer, is rebuilt."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.errors import ManifestError

CONFIG_FILE = "config.json"
"""What it is called beside a model's weights."""


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    """Write the file, a line for each value."""
    path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def read_config(path: Path) -> dict[str, Any]:
    """Read the file; what its values mean is for the caller to check.

    Raises:
        ManifestError: it is missing, is not JSON, or is no object.
    """
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ManifestError(f"{path} cannot be read: {error!s:.300}") from None
    if not isinstance(config, dict):
        raise ManifestError(f"{path} holds no object, but a {type(config).__name__}")
    return config

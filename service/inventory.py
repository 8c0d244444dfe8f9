"""What a registry holds, for the command line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.checkpoint.load import load_checkpoint
from models.checkpoint.manifest import read_manifest
from models.checkpoint.registry import Registry, Version
from models.errors import LanguageModelError, ManifestError

CARD_FILE = "MODEL_CARD.md"


def overview(root: Path) -> list[dict[str, Any]]:
    """One row a version: address, aliases, family, figures; or what is wrong with it."""
    registry = Registry(root)
    rows: list[dict[str, Any]] = []
    for name in registry.models():
        try:
            aliases = registry.aliases(name)
        except ManifestError as error:
            aliases = {}
            rows.append({"model": name, "aliases": [], "problem": str(error)})
        for number in registry.versions(name):
            version = registry.resolve(f"{name}@{number}")
            pointing = sorted(alias for alias, target in aliases.items() if target == number)
            rows.append({"model": version.address, "aliases": pointing, **_facts(version)})
    return rows


def details(root: Path, address: str) -> dict[str, Any]:
    """Manifest, metrics and provenance of one version.

    Raises:
        CheckpointError: a file of it is damaged.
    """
    version = Registry(root).resolve(address)
    manifest = read_manifest(version.path).model_dump(mode="json")
    return {
        "model": version.address,
        "path": str(version.path),
        "manifest": manifest,
        **{name: _json(version.path / f"{name}.json") for name in ("metrics", "provenance")},
    }


def card(root: Path, address: str) -> str:
    """One version's model card, in Markdown.

    Raises:
        ManifestError: it has none.
    """
    version = Registry(root).resolve(address)
    try:
        return (version.path / CARD_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{version.path / CARD_FILE}: {error}") from None


def verify(root: Path, address: str | None, *, device: str) -> Iterator[tuple[str, str | None]]:
    """Load each version in full; its address, and what is wrong with it or None."""
    registry = Registry(root)
    if address is not None:
        versions = [registry.resolve(address)]
    else:
        versions = [
            registry.resolve(f"{name}@{n}") for name in registry.models() for n in registry.versions(name)
        ]
    for version in versions:
        try:
            loaded = load_checkpoint(version.path, device=device)
            if loaded.precision != "float32":  # whose answers were published too
                load_checkpoint(version.path, device=device, precision="float32")
        except LanguageModelError as error:
            yield version.address, str(error)
        else:
            yield version.address, None


def _facts(version: Version) -> dict[str, Any]:
    try:
        manifest = read_manifest(version.path)
        metrics = _json(version.path / "metrics.json")
    except LanguageModelError as error:
        return {"problem": str(error)}
    split = next(
        (split for split in ("test", "valid") if split in metrics), None
    )  # an import may have neither
    figures = metrics.get(split, {})
    return {
        "family": manifest.family,
        "created": manifest.created,
        "parameters": manifest.parameters,
        "vocab_size": manifest.vocab_size,
        "split": split,
        "perplexity": figures.get("perplexity"),
        "word_perplexity": figures.get("word_perplexity"),
    }


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: {error}") from None

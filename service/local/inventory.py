"""Listing, description and verification of versions, without slow numerical modules."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

from models.checkpoint.load import load_checkpoint
from models.checkpoint.manifest import Version
from models.checkpoint.registry import Address, open_registry
from models.checkpoint.registry_interface import Registry
from models.errors import DomainError, ManifestError

CARD_FILE = "MODEL_CARD.md"


def list_versions(root: Address) -> list[dict[str, Any]]:
    """Return a row per version: address, aliases, family and figures, or problem."""
    registry = open_registry(root)
    rows: list[dict[str, Any]] = []
    for name, versions in itertools.groupby(registry.published(), lambda version: version.name):
        try:
            aliases = registry.aliases(name)
        except ManifestError as error:
            aliases = {}
            rows.append({"model": name, "aliases": [], "problem": str(error)})
        for version in versions:
            pointing = sorted(alias for alias, target in aliases.items() if target == version.number)
            rows.append({"model": version.address, "aliases": pointing, **_version_facts(registry, version)})
    return rows


def version_details(root: Address, address: str) -> dict[str, Any]:
    """Return the manifest, metrics and provenance of a version.

    Raises:
        CheckpointError: a file of the version is damaged.
    """
    registry = open_registry(root)
    version = registry.resolve(address)
    return {
        "model": version.address,
        "path": registry.location_of(version),
        "manifest": registry.manifest(version).model_dump(mode="json"),
        **{name: _read_json(registry, version, f"{name}.json") for name in ("metrics", "provenance")},
    }


def version_card(root: Address, address: str) -> str:
    """Return a version's model card, in Markdown.

    Raises:
        ManifestError: the version has no card, or the card is not UTF-8.
    """
    registry = open_registry(root)
    version = registry.resolve(address)
    try:
        return registry.read_file(version, CARD_FILE).decode()
    except UnicodeDecodeError as error:
        raise ManifestError(f"{version.address}: {CARD_FILE}: {error}") from None


def verify_versions(root: Address, address: str | None, *, device: str) -> Iterator[tuple[str, str | None]]:
    """Load each version completely; yield its address, and any problem."""
    registry = open_registry(root)
    versions = registry.published() if address is None else [registry.resolve(address)]
    for version in versions:
        try:
            directory = registry.fetch(version)
            loaded = load_checkpoint(directory, device=device)
            if loaded.precision != "float32":  # also verify float32's golden values
                load_checkpoint(directory, device=device, precision="float32")
        except DomainError as error:
            yield version.address, str(error)
        else:
            yield version.address, None


def _version_facts(registry: Registry, version: Version) -> dict[str, Any]:
    try:
        manifest = registry.manifest(version)
        metrics = _read_json(registry, version, "metrics.json")
    except DomainError as error:
        return {"problem": str(error)}
    # an imported model may have no metrics
    split = next((split for split in ("test", "valid") if split in metrics), None)
    figures = metrics[split] if split is not None and isinstance(metrics[split], dict) else {}
    facts = {name: getattr(manifest, name) for name in ("family", "created", "parameters", "vocab_size")}
    perplexities = {name: figures.get(name) for name in ("perplexity", "word_perplexity")}
    return {**facts, "split": split, **perplexities, "restores": metrics.get("restores")}


def _read_json(registry: Registry, version: Version, name: str) -> dict[str, Any]:
    try:
        read = json.loads(registry.read_file(version, name))
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{version.address}: {name}: {error}") from None
    if not isinstance(read, dict):
        raise ManifestError(f"{version.address}: {name} is {str(read)[:40]!r}; it must be an object")
    return read

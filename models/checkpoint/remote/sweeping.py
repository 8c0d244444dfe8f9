"""Removing contents that no version refers to: of deleted versions, and of publishers who died."""

import math

from models.checkpoint.manifest import MANIFEST_FILE, parse_manifest
from models.checkpoint.remote.contents import BLOBS_FOLDER
from models.checkpoint.remote.object_store import ConditionalStore

_CLOCK_KEY = f"{BLOBS_FOLDER}/.clock"
"""An empty object, which is there while somebody sweeps."""


def sweep_blobs(store: ConditionalStore, *, older_than_s: float) -> int:
    """Remove contents that are old and that no manifest names.

    Whoever publishes stores all contents of a version anew, so those that will be named soon are young; ages are
    looked at once more when it is known which are named. A manifest that cannot be read stops the sweep.

    Args:
        store: where they are.
        older_than_s: how old, by the store's own clock, as this machine's may be wrong; far longer than any
            publishing takes.

    Returns:
        How many were removed.

    Raises:
        CheckpointError: a manifest is damaged: what it names is not known.
        RegistryError: the store cannot be reached.
    """
    before_s = _store_time_s(store) - older_than_s
    unnamed = _blobs_older_than(store, before_s)
    if unnamed:
        unnamed -= _referenced_blobs(store)
    doomed = unnamed & _blobs_older_than(store, before_s) if unnamed else unnamed
    for key in sorted(doomed):
        store.delete(key)
    return len(doomed)


def _store_time_s(store: ConditionalStore) -> float:
    """When the store has taken something just now, in seconds since 1970; long ago if it cannot tell."""
    store.put(_CLOCK_KEY, b"")
    now_s = next(
        (entry.modified_s for entry in store.entries(BLOBS_FOLDER) if entry.key == _CLOCK_KEY), math.inf
    )
    store.delete(_CLOCK_KEY)
    return now_s if math.isfinite(now_s) else -math.inf


def _blobs_older_than(store: ConditionalStore, before_s: float) -> set[str]:
    """The keys of contents that were stored before a time."""
    old = {entry.key for entry in store.entries(BLOBS_FOLDER) if entry.modified_s < before_s}
    return old - {_CLOCK_KEY}  # somebody else's


def _referenced_blobs(store: ConditionalStore) -> set[str]:
    """The keys of all contents that a manifest names."""
    named: set[str] = set()
    for entry in store.entries():
        if entry.num_bytes and entry.key.endswith(f"/{MANIFEST_FILE}"):
            found = store.read(entry.key)
            if found is not None and found.content:
                manifest = parse_manifest(found.content, f"{store.location}/{entry.key}")
                named |= {f"{BLOBS_FOLDER}/{file.sha256}" for file in manifest.files.values()}
    return named

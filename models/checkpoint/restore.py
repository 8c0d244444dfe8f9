"""Restore of a backup into a registry in a folder, while services use it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from models.checkpoint.copies import copy_and_verify
from models.checkpoint.documents import MAX_DOCUMENT_BYTES, DocumentStore
from models.checkpoint.folders import (
    fsync_path,
    fsync_tree,
    locked_folder,
    make_read_only,
    report_write_errors,
    temporary_folder,
)
from models.checkpoint.manifest import (
    MANIFEST_FILE,
    Manifest,
    Version,
    choose_default,
    read_manifest,
    verify_files,
)
from models.checkpoint.registry import LocalRegistry
from models.checkpoint.registry_interface import Registry
from models.errors import CheckpointError, IncompatibleVersionError, InputError, ManifestError, RegistryError

ConflictPolicy: TypeAlias = Literal["refuse", "keep", "replace"]
"""Treatment of intact items of the target that differ from the backup."""

RestoreProgress: TypeAlias = Callable[[str, int, int], None]
"""Callback with the current activity, the bytes done and the total bytes."""

_MAX_NAMED = 5


class RestoreResult(NamedTuple):
    """Names of the items of a restore, by outcome.

    Attributes:
        restored: items that were missing, damaged or replaced.
        kept: items that differ and were kept.
        same: items that were already equal.
    """

    restored: list[str]
    kept: list[str]
    same: list[str]


class _RestoreItem(NamedTuple):
    """A version, the aliases of a model, or a document.

    Attributes:
        name: name in messages.
        here: current value; None if it is missing or damaged.
        wanted: value in the backup.
        stage: prepares a copy until the stack closes; returns a function to put it in place.
    """

    name: str
    here: object
    wanted: object
    stage: Callable[[ExitStack], Callable[[], None]]


def restore_backup(
    backup: Registry,
    target: Registry,
    documents: Iterable[type[DocumentStore[Any]]],
    *,
    differing: ConflictPolicy,
    progress: RestoreProgress,
) -> RestoreResult:
    """Restore versions, aliases, the default and documents from a backup.

    All versions are copied next to the existing ones and verified before renames put them in place.
    Damaged items are replaced.

    Args:
        backup: source; version numbers deleted there are not reused.
        target: destination.
        documents: kinds of documents to restore.
        differing: treatment of items that differ.
        progress: callback for progress.

    Raises:
        InputError: the target is not a folder, or items differ and the policy is to refuse; nothing is changed.
        CheckpointError: the backup is damaged; nothing is changed.
        RegistryError: the backup is empty or cannot be read, or the target cannot be written.
    """
    if not isinstance(target, LocalRegistry):
        raise InputError(
            f"restore writes only to registries in folders, not to {target.location}: copy the backup unchanged, for "
            "example with `aws s3 sync`, and check it with `gramophone models verify`",
            param="registry",
        )
    versions = backup.published()
    if not versions:
        raise RegistryError(f"the backup {backup.location} holds no model")
    names = sorted({version.name for version in versions})
    items = [
        *_version_items(backup, target, versions, progress),
        *(item for name in names for item in _alias_items(backup, target, name)),
        *_default_items(backup, target),
        *(
            item
            for kind in documents
            for item in _document_items(kind(backup.location), kind(target.location))
        ),
    ]
    same = [item.name for item in items if item.here == item.wanted]
    changed = [item.name for item in items if item.here not in (None, item.wanted)]
    if changed and differing == "refuse":
        raise InputError(
            f"nothing was restored, because these differ from the backup: {', '.join(changed[:_MAX_NAMED])}"
            f"{f' and {len(changed) - _MAX_NAMED} more' * (len(changed) > _MAX_NAMED)}; --differing keep keeps them, "
            "--differing replace restores the backup's",
            param="differing",
        )
    kept = changed if differing == "keep" else []
    chosen = [item for item in items if item.name not in {*same, *kept}]
    with ExitStack() as beside:
        puts = [item.stage(beside) for item in chosen]
        for name in names:
            target.pin_default(name)
        for put in puts:
            put()
    if isinstance(backup, LocalRegistry):
        for name in names:
            target.retire_numbers(name, backup)
    return RestoreResult([item.name for item in chosen], kept, same)


def _version_items(
    backup: Registry, target: LocalRegistry, versions: list[Version], progress: RestoreProgress
) -> Iterator[_RestoreItem]:
    manifests = [backup.manifest(version) for version in versions]
    sizes = [sum(entry.bytes for entry in manifest.files.values()) for manifest in manifests]
    copied, folders = 0, dict[Path, Path]()

    def tell(num_bytes: int) -> None:
        nonlocal copied
        copied += num_bytes
        progress("copying", copied, sum(sizes))

    for done, (version, manifest) in enumerate(zip(versions, manifests, strict=True)):
        progress("comparing", sum(sizes[:done]), sum(sizes))
        own = target.version(version.name, version.number)
        yield _RestoreItem(
            version.address,
            _current_manifest(own, manifest),
            manifest,
            partial(_stage_version, backup, version, own, folders, tell),
        )


def _current_manifest(version: Version, wanted: Manifest) -> object:
    """Return the manifest; None if unreadable, or equal to `wanted` with damaged files."""
    try:
        manifest = read_manifest(version.path)
        if manifest == wanted:
            verify_files(version.path, manifest)
    except IncompatibleVersionError as newer:
        return newer
    except CheckpointError:
        return None
    return manifest


def _stage_version(
    backup: Registry,
    version: Version,
    own: Version,
    folders: dict[Path, Path],
    copied: Callable[[int], None],
    beside: ExitStack,
) -> Callable[[], None]:
    """Copy a version to its model's temporary folder; return a function to put it in place."""
    versions, folder = own.path.parent, backup.fetch(version)
    with report_write_errors(versions):
        if versions not in folders:
            folders[versions] = beside.enter_context(temporary_folder(versions))
        new, old = (folders[versions] / f"{what}-{own.number}" for what in ("new", "old"))
        new.mkdir()
        copy_and_verify(folder, read_manifest(folder), new, copied)
        (new / MANIFEST_FILE).write_bytes((folder / MANIFEST_FILE).read_bytes())
        read_manifest(new)
        make_read_only(new)
        fsync_tree(new)

    def put() -> None:
        with report_write_errors(versions), locked_folder(versions):
            if own.path.exists():
                own.path.rename(old)
            new.rename(own.path)
            fsync_path(versions)

    return put


def _alias_items(backup: Registry, target: LocalRegistry, name: str) -> Iterator[_RestoreItem]:
    wanted = backup.aliases(name)
    try:
        here = target.aliases(name) or None
    except ManifestError:
        here = None
    if here or wanted:
        yield _RestoreItem(
            f"aliases of {name}", here, wanted, lambda _: partial(target.replace_aliases, name, wanted)
        )


def _default_items(backup: Registry, target: LocalRegistry) -> Iterator[_RestoreItem]:
    """Yield the backup's default, stored or implied, if the target has no model."""
    theirs, ours = backup.models(), target.models()
    here = choose_default(ours, target.default()).name if ours else None
    chosen = choose_default(theirs, backup.default())
    if chosen.name == backup.default() or (here is None and len(theirs) > 1):
        yield _RestoreItem(
            "the default model", here, chosen.name, lambda _: partial(target.set_default, chosen.name)
        )


def _document_items(theirs: DocumentStore[Any], ours: DocumentStore[Any]) -> Iterator[_RestoreItem]:
    for name in theirs.names():
        content = theirs.read_bytes(name)
        if content is None:
            continue
        if len(content) > MAX_DOCUMENT_BYTES:
            raise ManifestError(
                f"{theirs.display_path(name)} has more than {MAX_DOCUMENT_BYTES} bytes, the maximum"
            )
        put = partial(ours.write_bytes, name, content)
        label = f"{ours.folder}/{name}.json"
        yield _RestoreItem(label, ours.read_bytes(name), content, partial(lambda put, _: put, put))

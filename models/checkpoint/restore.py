"""Restore of a backup into a registry in a folder, while services use it.

All versions are copied beside the present ones and verified; then renames put them in place.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from models.checkpoint import documents
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
from models.errors import (
    CheckpointError,
    IncompatibleVersionError,
    InvalidInputError,
    ManifestError,
    RegistryError,
)

ConflictPolicy: TypeAlias = Literal["refuse", "keep", "replace"]
"""What becomes of what is here, whole, and is not what the backup has under its name."""

RestoreProgress: TypeAlias = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""

_MAX_NAMED = 5


class RestoreResult(NamedTuple):
    """Result of a restore, by name.

    Attributes:
        restored: what was missing or damaged here, or was replaced.
        kept: what differs and was kept.
        same: what was here already.
    """

    restored: list[str]
    kept: list[str]
    same: list[str]


class _RestoreItem(NamedTuple):
    """A version, the aliases of a model, or a file beside the models.

    Attributes:
        name: for messages.
        here: what there is; None if it is missing or damaged.
        wanted: what the backup has.
        stage: copies it beside, until the stack is left; what it returns puts it in its place.
    """

    name: str
    here: object
    wanted: object
    stage: Callable[[ExitStack], Callable[[], None]]


def restore_backup(
    backup: Registry, target: Registry, *, differing: ConflictPolicy, progress: RestoreProgress
) -> RestoreResult:
    """Put versions, aliases, the default, profiles and calibrations of a backup back.

    All versions are copied beside and verified before the first has its name. What is damaged here is replaced.

    Args:
        backup: where from; numbers that were deleted there are not used again here.
        target: where to.
        differing: what becomes of what differs.
        progress: told how far it is.

    Raises:
        InvalidInputError: the target is no folder, or something differs, and that is to be refused; nothing is changed.
        CheckpointError: something in the backup is damaged; nothing is changed.
        RegistryError: the backup holds no model or cannot be read, or the target cannot be written to.
    """
    if not isinstance(target, LocalRegistry):
        raise InvalidInputError(
            f"restore writes to registries in folders, and {target.location} is none: copy the backup there as it is, "
            "by `aws s3 sync` say, and look with `gramophone models verify`",
            parameter="registry",
        )
    versions = backup.published()
    if not versions:
        raise RegistryError(f"the backup {backup.location} holds no model")
    names = sorted({version.name for version in versions})
    items = [
        *_version_items(backup, target, versions, progress),
        *(item for name in names for item in _alias_items(backup, target, name)),
        *_default_items(backup, target),
        *_document_items(backup, target),
    ]
    same = [item.name for item in items if item.here == item.wanted]
    changed = [item.name for item in items if item.here not in (None, item.wanted)]
    if changed and differing == "refuse":
        raise InvalidInputError(
            f"nothing was restored, because this is not as in the backup: {', '.join(changed[:_MAX_NAMED])}"
            f"{f' and {len(changed) - _MAX_NAMED} more' * (len(changed) > _MAX_NAMED)}; --differing keep leaves it, "
            "--differing replace takes the backup's",
            parameter="differing",
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
    """The manifest of what is here; None if that cannot be read, or promises the same and does not hold it."""
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
    """Copy a version into a temporary folder of its model's, one for all of them; what is returned puts it in place."""
    versions, directory = own.path.parent, backup.fetch(version)
    with report_write_errors(versions):
        if versions not in folders:
            folders[versions] = beside.enter_context(temporary_folder(versions))
        new, old = (folders[versions] / f"{what}-{own.number}" for what in ("new", "old"))
        new.mkdir()
        copy_and_verify(directory, read_manifest(directory), new, copied)
        (new / MANIFEST_FILE).write_bytes((directory / MANIFEST_FILE).read_bytes())
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
    """The default that the backup remembers, or that it had, where nothing is here yet."""
    theirs, ours = backup.models(), target.models()
    here = choose_default(ours, target.default()).name if ours else None
    chosen = choose_default(theirs, backup.default())
    if chosen.name == backup.default() or (here is None and len(theirs) > 1):
        yield _RestoreItem(
            "the default model", here, chosen.name, lambda _: partial(target.set_default, chosen.name)
        )


def _document_items(backup: Registry, target: LocalRegistry) -> Iterator[_RestoreItem]:
    for folder in (documents.PROFILES_FOLDER, documents.CALIBRATIONS_FOLDER):
        from_ = DocumentStore(backup.location, folder)
        to = DocumentStore(target.location, folder)
        for name in sorted(from_.names()):
            # the keys of a bucket may have any shape
            is_document = name.endswith(".json") and not name.startswith(".") and "/" not in name
            content = from_.read(name) if is_document else None
            if content is None:
                continue
            if len(content) > MAX_DOCUMENT_BYTES:
                raise ManifestError(
                    f"{from_.display_path(name)} has more than {MAX_DOCUMENT_BYTES} bytes, the most that is read"
                )
            put = partial(to.write, name, content)
            yield _RestoreItem(f"{folder}/{name}", to.read(name), content, partial(lambda put, _: put, put))

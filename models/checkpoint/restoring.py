"""Putting a backup back into a registry in a folder that services follow: beside what is there, then by renames."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from models.checkpoint import calibrations, profiles
from models.checkpoint.copies import copy_verified
from models.checkpoint.default_name import choose_default
from models.checkpoint.documents import MAX_DOCUMENT_BYTES, Documents, open_documents
from models.checkpoint.folders import flush, flush_tree, forbid_writing, held, temporary_folder, writing
from models.checkpoint.local import LocalRegistry
from models.checkpoint.manifest import MANIFEST_FILE, Manifest, read_manifest, verify_files
from models.checkpoint.registry import Registry, Version
from models.errors import (
    CheckpointError,
    IncompatibleVersionError,
    InvalidInputError,
    ManifestError,
    RegistryError,
)

Differing: TypeAlias = Literal["refuse", "keep", "replace"]
"""What becomes of what is here, whole, and is not what the backup has under its name."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""

_NAMED = 5


class Restored(NamedTuple):
    """What came of it, by name.

    Attributes:
        restored: what was missing or damaged here, or was replaced.
        kept: what differs and was kept.
        same: what was here already.
    """

    restored: list[str]
    kept: list[str]
    same: list[str]


class _Thing(NamedTuple):
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


def restore(backup: Registry, target: Registry, *, differing: Differing, progress: Progress) -> Restored:
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
    things = [
        *_versions(backup, target, versions, progress),
        *(thing for name in names for thing in _aliases(backup, target, name)),
        *_default(backup, target),
        *_documents(backup, target),
    ]
    same = [thing.name for thing in things if thing.here == thing.wanted]
    other = [thing.name for thing in things if thing.here not in (None, thing.wanted)]
    if other and differing == "refuse":
        raise InvalidInputError(
            f"nothing was restored, because this is not as in the backup: {', '.join(other[:_NAMED])}"
            f"{f' and {len(other) - _NAMED} more' * (len(other) > _NAMED)}; --differing keep leaves it, --differing "
            "replace takes the backup's",
            parameter="differing",
        )
    kept = other if differing == "keep" else []
    chosen = [thing for thing in things if thing.name not in {*same, *kept}]
    with ExitStack() as beside:
        puts = [thing.stage(beside) for thing in chosen]
        for name in names:
            target.pin_default(name)
        for put in puts:
            put()
    if isinstance(backup, LocalRegistry):
        for name in names:
            target.retire_numbers(name, backup.deleted_numbers(name) - {*target.versions(name)})
    return Restored([thing.name for thing in chosen], kept, same)


def _versions(
    backup: Registry, target: LocalRegistry, versions: list[Version], progress: Progress
) -> Iterator[_Thing]:
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
        yield _Thing(
            version.address,
            _standing(own, manifest),
            manifest,
            partial(_lay, backup, version, own, folders, tell),
        )


def _standing(version: Version, wanted: Manifest) -> object:
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


def _lay(
    backup: Registry,
    version: Version,
    own: Version,
    folders: dict[Path, Path],
    copied: Callable[[int], None],
    beside: ExitStack,
) -> Callable[[], None]:
    """Copy a version into a temporary folder of its model's, one for all of them; what is returned puts it in place."""
    versions, directory = own.path.parent, backup.fetch(version)
    with writing(versions):
        if versions not in folders:
            folders[versions] = beside.enter_context(temporary_folder(versions))
        new, old = (folders[versions] / f"{what}-{own.number}" for what in ("new", "old"))
        new.mkdir()
        copy_verified(directory, read_manifest(directory), new, copied)
        (new / MANIFEST_FILE).write_bytes((directory / MANIFEST_FILE).read_bytes())
        read_manifest(new)
        forbid_writing(new)
        flush_tree(new)

    def put() -> None:
        with writing(versions), held(versions):
            if own.path.exists():
                own.path.rename(old)
            new.rename(own.path)
            flush(versions)

    return put


def _aliases(backup: Registry, target: LocalRegistry, name: str) -> Iterator[_Thing]:
    wanted = backup.aliases(name)
    try:
        here = target.aliases(name) or None
    except ManifestError:
        here = None
    if here or wanted:
        yield _Thing(
            f"aliases of {name}", here, wanted, lambda _: partial(target.replace_aliases, name, wanted)
        )


def _default(backup: Registry, target: LocalRegistry) -> Iterator[_Thing]:
    """The default that the backup remembers, or that it had, where nothing is here yet."""
    theirs, ours = backup.models(), target.models()
    here = choose_default(ours, target.default()).name if ours else None
    chosen = choose_default(theirs, backup.default())
    if chosen.name == backup.default() or (here is None and len(theirs) > 1):
        yield _Thing(
            "the default model", here, chosen.name, lambda _: partial(target.set_default, chosen.name)
        )


def _documents(backup: Registry, target: LocalRegistry) -> Iterator[_Thing]:
    for folder in (profiles.FOLDER, calibrations.FOLDER):
        from_ = open_documents(backup.location, folder)
        to = open_documents(target.location, folder)
        for name in sorted(filter(_is_document, from_.names())):
            content = from_.read(name)
            if content is not None and len(content) > MAX_DOCUMENT_BYTES:
                raise ManifestError(
                    f"{from_.display_path(name)} has more than {MAX_DOCUMENT_BYTES} bytes, the most that is read"
                )
            if content is not None:
                yield _Thing(f"{folder}/{name}", to.read(name), content, partial(_written, to, name, content))


def _is_document(name: str) -> bool:
    """Whether it names a file of the folder itself: the keys of a bucket may have any shape."""
    return name.endswith(".json") and not name.startswith(".") and "/" not in name


def _written(to: Documents, name: str, content: bytes, _beside: ExitStack) -> Callable[[], None]:
    return partial(to.write, name, content)

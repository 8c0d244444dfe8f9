"""Small files beside the models of a registry, each replaced as a whole: profiles, calibrations.

<root>/<folder>/<name>     visible once its file has this name
<root>/<folder>/.tmp-…     one being written; ignored by readers
"""

from pathlib import Path
from typing import Protocol

from models.checkpoint.folders import replace_file
from models.checkpoint.registry import Address, local_registry_folder
from models.errors import RegistryError

MAX_DOCUMENT_BYTES = 1 << 20


class DocumentStore(Protocol):
    """The files of one folder of a registry. Names are checked by whoever asks."""

    def display_path(self, name: str) -> str | Path:
        """What messages call a file."""
        ...

    def names(self) -> list[str]:
        """The files there are, in no order.

        Raises:
            RegistryError: they cannot be listed.
        """
        ...

    def read(self, name: str) -> bytes | None:
        """The beginning of a file, at most a byte more than MAX_DOCUMENT_BYTES; None if there is none.

        Raises:
            RegistryError: it cannot be read.
        """
        ...

    def write(self, name: str, content: bytes) -> None:
        """Store a file; one of the same name is replaced, by whoever comes last.

        Raises:
            RegistryError: the registry cannot be written to.
        """
        ...

    def delete(self, name: str) -> bool:
        """Remove a file.

        Returns:
            Whether there was one.

        Raises:
            RegistryError: the registry cannot be written to.
        """
        ...


class LocalDocumentStore:
    """Documents in a local folder, which need not be there; the registry that it belongs to must be."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def display_path(self, name: str) -> Path:
        """The file's path."""
        return self._folder / name

    def names(self) -> list[str]:
        """See `DocumentStore`."""
        try:
            return [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            self._check_registry()
            return []
        except OSError as error:
            raise RegistryError(f"cannot read {self._folder}: {error.strerror}") from None

    def read(self, name: str) -> bytes | None:
        """See `DocumentStore`."""
        try:
            with self.display_path(name).open("rb") as file:
                return file.read(MAX_DOCUMENT_BYTES + 1)
        except FileNotFoundError:
            self._check_registry()
            return None
        except OSError as error:
            raise RegistryError(f"cannot read {self.display_path(name)}: {error.strerror}") from None

    def write(self, name: str, content: bytes) -> None:
        """See `DocumentStore`."""
        try:
            replace_file(self.display_path(name), content)
        except OSError as error:
            raise RegistryError(f"cannot write to {self._folder}: {error.strerror}") from error

    def delete(self, name: str) -> bool:
        """See `DocumentStore`."""
        try:
            self.display_path(name).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise RegistryError(f"cannot remove {self.display_path(name)}: {error.strerror}") from None
        return True

    def _check_registry(self) -> None:
        """Tell a registry that is gone from one without such a file: the file may come back with it."""
        if not self._folder.parent.is_dir():
            raise RegistryError(f"cannot read the registry {self._folder.parent}: it is not there")


def open_document_store(registry: Address, folder: str) -> DocumentStore:
    """The documents in a folder of a registry, which need hold no model.

    Args:
        registry: its address.
        folder: by name; no model's can begin with a dot, as these do.

    Raises:
        RegistryError: a remote registry needs a package that is not installed.
        InvalidInputError: the address cannot be a registry's.
    """
    root = local_registry_folder(registry)
    if root is not None:
        return LocalDocumentStore(root / folder)
    from models.checkpoint.remote.documents import RemoteDocumentStore
    from models.checkpoint.remote.stores import open_store

    return RemoteDocumentStore(open_store(str(registry)), folder)

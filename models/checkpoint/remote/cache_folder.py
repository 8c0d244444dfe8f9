"""Where this process keeps what it fetched from remote registries."""

from pathlib import Path

from models.errors import RegistryError

_DEFAULT_CACHE_FOLDER = Path("~/.cache/gramophone")
_chosen_cache_folder: list[Path] = []


def set_cache_folder(folder: Path) -> None:
    """Choose the folder for the whole process; the root of the command line does, which reads the environment."""
    _chosen_cache_folder[:] = [folder]


def cache_folder(given: Path | None = None) -> Path:
    """The folder that is given, else the one that was chosen, else `~/.cache/gramophone`.

    Raises:
        RegistryError: the user has no home folder, as in some containers, or there is no such user.
    """
    folder = given or (_chosen_cache_folder or [_DEFAULT_CACHE_FOLDER])[0]
    try:
        return folder.expanduser()
    except RuntimeError:
        raise RegistryError(
            f"there is no home folder to keep models of remote registries in: {folder}; name a folder by "
            "GRAMOPHONE_REGISTRY_CACHE"
        ) from None

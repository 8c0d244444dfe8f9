"""The object store that a URL means."""

import re

from models.checkpoint.remote.object_store import ObjectStore, StoreTimeouts
from models.errors import InvalidInputError, RegistryError

STORE_TIMEOUTS = StoreTimeouts()
"""How long every store is waited for."""

_FORBIDDEN = re.compile(r"[@?#\s]|::")


def open_store(url: str) -> ObjectStore:
    """The store that a URL means; nothing is asked of it yet.

    Raises:
        InvalidInputError: the URL holds credentials or a query, or names no bucket or folder.
        RegistryError: it needs a package that is not installed, or fsspec knows no such protocol.
    """
    protocol, _, rest = url.partition("://")
    if _FORBIDDEN.search(rest):  # not quoted: it may hold a password
        raise InvalidInputError(
            f"the registry's {protocol}:// URL has one of @ ? # or a space: credentials and options do not go there "
            "but into the environment, such as AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL",
            parameter="registry",
        )
    if not rest.strip("/"):
        raise InvalidInputError(
            f"the registry is {url!r}, which names no bucket or folder", parameter="registry"
        )
    if protocol == "memory":
        from models.checkpoint.remote.memory_store import MemoryStore

        return MemoryStore(url, STORE_TIMEOUTS)
    if protocol == "s3":
        try:
            from models.checkpoint.remote.s3_store import S3Store
        except ImportError as error:
            raise RegistryError(
                f"registries at s3:// need the extra s3: pip install 'gramophone-lm[s3]' ({error})"
            ) from None
        return S3Store(url, STORE_TIMEOUTS)
    from models.checkpoint.remote.file_system_store import FsspecStore

    return FsspecStore(url, STORE_TIMEOUTS)

"""Changing `aliases.json` in an object store: compare and swap, so that no change of another's is lost."""

import random
import time
from collections.abc import Callable

from models.checkpoint.remote.object_store import ConditionalStore
from models.checkpoint.versions import format_aliases, parse_aliases
from models.errors import ManifestError, RegistryError

_MAX_ALIAS_ATTEMPTS = 40
_ALIAS_RETRY_PAUSE_S = 0.02


def update_aliases(
    store: ConditionalStore,
    key: str,
    place: str,
    change: Callable[[dict[str, int]], dict[str, int]],
    *,
    replace_damaged: bool = False,
) -> dict[str, int]:
    """Change a model's aliases, on top of whatever others changed.

    Args:
        store: where they are.
        key: their object's.
        place: what messages call it.
        change: from what is there to what is to be; called again if somebody else was faster.
        replace_damaged: whether damaged aliases are replaced.

    Returns:
        What was there before.

    Raises:
        ManifestError: they are damaged.
        RegistryError: the store cannot be reached, or others change them without end.
        What `change` raises.
    """
    for attempt in range(_MAX_ALIAS_ATTEMPTS):
        current = store.read(key)
        aliases: dict[str, int] = {}
        if current is not None:
            try:
                aliases = parse_aliases(current.content, place)
            except ManifestError:
                if not replace_damaged:
                    raise
        content = format_aliases(change(aliases))
        if (
            store.put_if_absent(key, content)
            if current is None
            else store.put_if_match(key, content, current.tag)
        ):
            return aliases
        time.sleep(_ALIAS_RETRY_PAUSE_S * random.random() * min(attempt + 1, 10))
    raise RegistryError(f"{place} was changed by others {_MAX_ALIAS_ATTEMPTS} times in a row: try again")

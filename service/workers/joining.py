"""A worker that takes a dead one's place serves what the others serve by now."""

import asyncio
import json
from collections.abc import Callable, Mapping

import structlog

from models.errors import LanguageModelError
from service.routes.serving import Services
from service.workers.link import Peer, PeerConnectionError
from service.workers.private import SERVED_PATH, served_addresses

_log = structlog.get_logger(__name__)
_POLL_S = 0.05


async def wait_until(condition: Callable[[], bool]) -> None:
    """Return once it holds."""
    while not condition():  # noqa: ASYNC110 - told from other threads and processes
        await asyncio.sleep(_POLL_S)


async def sync_with_peers(services: Services, siblings: Mapping[int, Peer]) -> None:
    """Load what was loaded by hand, unload what was unloaded, as the first sibling that answers says."""
    for sibling in siblings.values():
        try:
            theirs = json.loads((await sibling.get(SERVED_PATH)).body)
        except PeerConnectionError:
            continue  # it is being started again, too, or hangs
        ours = served_addresses(services)
        changes = [(services.reloader.load, address) for address in theirs["served"] if address not in ours]
        # what ours has and theirs has not may be new in the registry: only what was unloaded goes
        changes += [(services.reloader.unload, address) for address in theirs["unloaded"] if address in ours]
        for change, address in changes:
            try:
                await change(address)
            except LanguageModelError as error:
                _log.warning("could not take over from another worker", model=address, reason=str(error))
        return

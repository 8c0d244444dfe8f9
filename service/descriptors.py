"""How many connections this process has descriptors for."""

import resource

import structlog

_log = structlog.get_logger(__name__)
_OTHER_FILES = 128
"""Models, the registry and its connections, other workers, the log; with some to spare."""


def reserve_descriptors(max_connections: int) -> int:
    """Have room for so many connections, and as many again that are only refused; how many there is room for.

    Shells and service managers give a process 1,024 descriptors and let it take more (the soft and the hard limit).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * max_connections + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if wanted > soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY:
        return max_connections
    room = max(1, (soft - _OTHER_FILES) // 2)
    if room < max_connections:
        _log.warning("fewer connections than GRAMOPHONE_MAX_CONNECTIONS", room=room, max_open_files=soft)
    return min(room, max_connections)

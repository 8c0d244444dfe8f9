"""A look ahead by a child process: whether the service can be put together, and what of."""

import json
import os
import sys
from collections.abc import Callable


def probe_in_child(look: Callable[[], list[str]]) -> list[str]:
    """What a look finds that is done by a child process, so that nothing of it stays in this one.

    Threads that it starts, of a library for remote files say, would not be there in workers that are forked later.
    Should it raise, the child tells, as this process would, and this process ends with the same exit code.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        found = look()
        with os.fdopen(writing, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)  # not by the ways out of a program that goes on in its parent
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        sys.exit(code if code > 0 else 1)
    found_there: list[str] = json.loads(said)
    return found_there

"""Whether requests should be sent to this process: one answer for the probe and for the metrics."""

from service.engine.host import ModelHost
from service.engine.hosted import LoadState
from service.engine.keeping import ModelReloader
from service.engine.scheduler import Scheduler

READY = "ok"


def readiness(host: ModelHost, keeper: ModelReloader, scheduler: Scheduler) -> str:
    """READY; or else why not: `loading`, `failed` (of the default model) or `draining`.

    It is READY once every model named at start is loaded or has failed, and the default is loaded, until shutting
    down. Later versions that are loaded, or fail to, change nothing: the old ones answer.
    """
    state = host.default.state
    if scheduler.draining:
        return "draining"
    if state is not LoadState.LOADED:
        return state.value
    return READY if keeper.started else LoadState.LOADING.value

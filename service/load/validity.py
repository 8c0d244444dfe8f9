"""Whether a measurement says something about the service, or about the one who measured."""

from service.load.loads import OpenLoop
from service.load.observation import Recording
from service.load.spread import Percentiles

MAX_LATE_SHARE = 0.25
"""Of the 99th percentile of latency: more lateness of the generator's own would be most of what is seen."""
MAX_WAITED_SHARE = 0.01
"""Of the requests: if more wait for a connection, the service never saw the load that was asked for."""
MAX_CPU_SHARE = 0.9
"""Of one core: beyond it a generator of one thread has nothing left."""


def validity_problems(
    recording: Recording, latency: Percentiles | None, lateness: Percentiles | None
) -> tuple[str, ...]:
    """Reasons why the figures are not the service's own; none if they are.

    Args:
        recording: of the run.
        latency: of its answers.
        lateness: from when requests were due to when the generator took them up.
    """
    found = []
    if latency is not None and lateness is not None:
        late_s, whole_s = lateness.highest_s, latency.highest_s
        if late_s > MAX_LATE_SHARE * whole_s:
            found.append(
                f"the generator fell behind its schedule: at p99 by {1e3 * late_s:.2f} ms, which is "
                f"{late_s / whole_s:.0%} of the latency (limit {MAX_LATE_SHARE:.0%}); a lower rate, or another "
                "machine for the generator, would tell more"
            )
    due = len(recording.observations)
    if isinstance(recording.load, OpenLoop) and recording.num_waited > MAX_WAITED_SHARE * due:
        found.append(
            f"{recording.num_waited:,} of {due:,} requests waited for one of the "
            f"{recording.terms.max_connections:,} connections: the service saw a lower load than was asked for"
        )
    if recording.cpu_share > MAX_CPU_SHARE:
        found.append(
            f"the generator used {recording.cpu_share:.0%} of a core (limit {MAX_CPU_SHARE:.0%}): it may be what is "
            "measured; run several, or send larger requests"
        )
    return tuple(found)

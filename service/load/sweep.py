"""Several loads on one target, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.load.driver import RecordingCallback, run_load
from service.load.loads import Load, LoadSettings
from service.load.objectives import Objective
from service.load.probing import probe
from service.load.summary import LoadSummary, summarise_load
from service.load.target import Request, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What is to be measured.

    Attributes:
        target: who is asked.
        requests: that are sent in turn.
        loads: one after the other; each waits for the last answer to the one before.
        terms: of each.
        objectives: of a good answer.
    """

    target: Target
    requests: Sequence[Request]
    loads: Sequence[Load]
    terms: LoadSettings
    objectives: Sequence[Objective] = ()

    def run(self, watch: RecordingCallback | None = None) -> list[LoadSummary]:
        """Measure; Ctrl-C ends the load that is on, and the rest is left out.

        Raises:
            EngineError: a single request beforehand was not answered, or refused.
        """
        probe(self.target, self.requests[0], self.terms.timeout_s)
        summaries = []
        for load in self.loads:
            recording = run_load(self.target, self.requests, load, self.terms, watch=watch)
            summaries.append(summarise_load(recording, self.objectives))
            if recording.interrupted:
                break
        return summaries

    def to_json(self) -> dict[str, Any]:
        """What the loads have in common, for programs."""
        return {
            "warmup_s": self.terms.warmup_s,
            "max_connections": self.terms.max_connections,
            "timeout_s": self.terms.timeout_s,
            "objectives_ms": {objective.metric: 1e3 * objective.limit_s for objective in self.objectives},
        }

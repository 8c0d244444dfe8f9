"""What `gramophone train` tells of the version that it published."""

import json
from collections.abc import Sequence
from typing import Any

from models.checkpoint.registry import Registry
from models.checkpoint.versions import Version
from training.notes import card_notes, fitted_note, overlap_notes
from training.publishing import RunContext
from training.trained import Trained


def training_result(
    store: Registry, version: Version, trained: Trained, run: RunContext, *, said: Sequence[str]
) -> dict[str, Any]:
    """The version's address, directory, notes and held-out figures.

    Args:
        store: where it was published.
        version: what was.
        trained: the model.
        run: it came from.
        said: what else the user should know, first.
    """
    metrics = json.loads(store.read_file(version, "metrics.json"))
    told = [
        *said,
        *filter(None, [fitted_note(metrics)]),
        *card_notes(metrics),
        *overlap_notes(run.overlap),
    ]
    return {
        "model": version.address,
        "path": store.location_of(version),
        "seconds": trained.seconds,
        "notes": told,
        **metrics,
    }

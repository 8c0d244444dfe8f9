"""Publishers and a watcher of a registry, each in a process of its own; they report their results as JSON.

python -m tests.fault.registry_processes publish ADDRESS CACHE COUNT FIRST_SEED
python -m tests.fault.registry_processes watch ADDRESS CACHE STOP_FILE
"""

import json
import sys
import time
from pathlib import Path

from models.checkpoint.load import FAMILIES, CheckpointDescription, load_checkpoint, write_checkpoint
from models.checkpoint.registry import open_registry
from models.errors import CheckpointError
from models.tokenizers import WordTokenizer
from tests.support.fake_models import FakeModel, fake_vocabulary

FAMILIES["fake"] = ("tests.support.fake_models", "FakeModel")
DESCRIPTION = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {})


def publish(registry, seed):
    """Publish a version whose model has this seed; return its number."""
    words = WordTokenizer(fake_vocabulary())
    model = FakeModel(words.vocabulary, seed=seed)
    return registry.publish("m", lambda folder: write_checkpoint(folder, model, words, DESCRIPTION)).number


def publish_many(address, cache, count, first_seed):
    """Return the seed of each published version, by number."""
    registry = open_registry(address, create=True, cache=Path(cache))
    seeds = range(int(first_seed), int(first_seed) + int(count))
    return {publish(registry, seed): seed for seed in seeds}


def watch(address, cache, stop_file):
    """Return the seed of each listed and loaded version by number, and errors of versions that did not load."""
    registry = open_registry(address, create=True, cache=Path(cache))
    seen, partial = {}, []
    stopping = False
    while not stopping:
        stopping = Path(stop_file).exists()  # then this is the last iteration
        for number in registry.versions("m"):
            if number not in seen:
                try:
                    seen[number] = loaded_seed(registry, number)
                except CheckpointError as error:
                    partial.append(str(error))
        time.sleep(0.5)  # listing is expensive for the server
    return {"seen": seen, "partial": partial}


def loaded_seed(registry, number):
    """Load a version's model as for serving; return its seed."""
    checkpoint = load_checkpoint(registry.fetch(registry.version("m", number)))
    return checkpoint.model.options["seed"]


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    told = {"publish": publish_many, "watch": watch}[role](*arguments)
    sys.stdout.write(json.dumps(told))

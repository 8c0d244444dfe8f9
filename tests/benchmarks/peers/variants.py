"""The ways in which each peer may sensibly be set up, and what was fastest where the results were measured."""

import sys
from pathlib import Path

from peers.workloads import FASTAPI, LITSERVE

_HERE = Path(__file__).parent

VARIANTS = {
    LITSERVE: (
        (("--workers=2", "--threads=1"), ("--workers=1", "--threads=2"), ("--workers=1", "--threads=1")),
        (("--batch-size=32",), ("--batch-size=16",), ("--batch-size=64",)),
        (("--batch-timeout=0.005",), ("--batch-timeout=0.001",), ("--batch-timeout=0.01",)),
        ((), ("--fast-queue",)),
    ),
    FASTAPI: (
        (("--threads=1",), ("--threads=2",)),
        (("--handlers=2",), ("--handlers=0",), ("--handlers=40",)),
    ),
}
"""Choices that are made one after the other: options to try for each."""

BUSY = {LITSERVE: 64, FASTAPI: 4}
"""Clients with whom a peer is about as fast as it gets."""

CHOSEN = {
    "score": {
        LITSERVE: ("--workers=2", "--threads=1", "--batch-size=32", "--batch-timeout=0.005"),
        FASTAPI: ("--threads=1", "--handlers=2"),
    },
    "generate": {
        LITSERVE: ("--workers=2", "--threads=1", "--batch-size=16", "--batch-timeout=0.005", "--fast-queue"),
        FASTAPI: ("--threads=1", "--handlers=40"),
    },
}


def litserve_command(python, version, endpoint, options):
    """Starts LitServe with one endpoint and the model in a folder."""
    return [python, str(_HERE / "litserve_app.py"), str(version), endpoint, *options]


def fastapi_command(version, options):
    """Starts the FastAPI handlers."""
    return [sys.executable, str(_HERE / "fastapi_app.py"), str(version), *options]

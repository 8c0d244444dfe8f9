"""What a process pays for importing parts of the service."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("service.app", {"torch", "numba", "matplotlib", "training"}),
        ("service.client", {"torch", "numpy", "fastapi", "models", "sentencepiece"}),
        (
            "service.fusion",
            {"torch", "numpy", "fastapi", "models", "sentencepiece", "pyctcdecode", "torchaudio"},
        ),
    ],
)
def test_heavy_packages_are_not_imported(module, unwanted):
    """A server without neural models starts without torch; a client needs httpx and pydantic alone."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert unwanted.isdisjoint(done.stdout.split())

"""Every error has an HTTP status, light imports stay light, and the service's source follows its conventions."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from models import errors
from models.errors import DomainError
from service.api_errors import ERROR_STATUSES, error_status

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, DomainError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_answered_on_purpose(kind):
    """Each error has its own entry, or a base class other than the root has one."""
    assert kind is DomainError or any(
        above in ERROR_STATUSES
        for above in kind.__mro__
        if issubclass(above, DomainError) and above is not DomainError
    )


@pytest.mark.parametrize("kind", KINDS)
def test_statuses_are_errors_and_codes_are_own(kind):
    answer = error_status(kind.__new__(kind))
    assert 400 <= answer.status < 600
    assert kind is DomainError or kind.code != DomainError.code


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("service.app", {"torch", "numba", "matplotlib", "training"}),
        ("gramophone_client", {"torch", "numpy", "fastapi", "models", "sentencepiece"}),
        ("gramophone_client.kenlm", {"torch", "numpy", "fastapi", "models", "sentencepiece", "kenlm"}),
        (
            "gramophone_client.fusion",
            {"torch", "numpy", "fastapi", "models", "sentencepiece", "pyctcdecode", "torchaudio"},
        ),
    ],
)
def test_heavy_packages_are_not_imported(module, unwanted):
    """A server without neural models starts without torch; a client needs only httpx and pydantic."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert unwanted.isdisjoint(done.stdout.split())


ROOT = Path(__file__).parents[2] / "service"
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}


def having(pattern):
    return {name for name, text in SOURCES.items() if re.search(pattern, text, re.MULTILINE)}


def test_only_settings_read_the_environment():
    assert having(r"os\.environ|getenv") == {"settings.py"}


def test_no_middleware_hides_disconnects():
    assert having(r"BaseHTTPMiddleware") == set()

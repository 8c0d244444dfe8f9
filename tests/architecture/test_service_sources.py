"""Habits of the service's code that no linter knows."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2] / "service"
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}


def having(pattern):
    return {name for name, text in SOURCES.items() if re.search(pattern, text, re.MULTILINE)}


def test_everything_is_caught_in_two_places_only():
    """The engine's step, and the last resort around all requests."""
    assert having(r"except (Base)?Exception\b|except:") == {
        "engine/scheduler.py",
        "middleware/request_log.py",
    }


def test_only_settings_read_the_environment():
    assert having(r"os\.environ|getenv") == {"settings.py"}


def test_no_middleware_hides_disconnects():
    assert having(r"BaseHTTPMiddleware") == set()

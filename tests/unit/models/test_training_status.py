"""The files by which trainings tell services of a registry what they do."""

import json

import pytest

from models import training_status
from models.checkpoint.registry import LocalRegistry
from models.training_status import (
    RUNS_FOLDER,
    TrainingStatus,
    is_quickstart_due,
    quickstart_mark,
    read_statuses,
    remove_status,
    write_status,
)

HALF = TrainingStatus("mixture", "training the lstm network", 0.5, 30.0)


def test_statuses_are_read_by_name_until_they_are_removed(tmp_path):
    write_status(tmp_path, HALF)
    write_status(tmp_path, TrainingStatus("code", "reading"))
    assert read_statuses(tmp_path) == [TrainingStatus("code", "reading"), HALF]
    remove_status(tmp_path, "code")
    remove_status(tmp_path, "code")
    assert read_statuses(tmp_path) == [HALF]


def test_a_registry_without_trainings_has_none(tmp_path):
    assert read_statuses(tmp_path / "missing") == []


def test_the_status_of_a_killed_training_gets_stale(tmp_path, monkeypatch):
    write_status(tmp_path, HALF)
    now = training_status.time.monotonic()
    monkeypatch.setattr(training_status.time, "monotonic", lambda: now + 301)
    assert read_statuses(tmp_path) == []
    monkeypatch.setattr(training_status.time, "monotonic", lambda: 0.5)  # after a restart of the machine
    assert read_statuses(tmp_path) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'["now", {}]',
        b'[0, {"nme": "m", "stage": "s"}]',
        b"[0, null]",
    ],
)
def test_damaged_statuses_are_skipped(tmp_path, content):
    write_status(tmp_path, HALF)
    (tmp_path / RUNS_FOLDER / ".status" / "damaged.json").write_bytes(content)
    assert read_statuses(tmp_path) == [HALF]


@pytest.mark.parametrize(
    "values",
    [{"name": 1}, {"stage": None}, {"done": "half"}, {"seconds_left": []}],
)
def test_a_status_with_values_of_another_kind_is_skipped(tmp_path, values):
    given = (
        training_status.time.monotonic(),
        {"name": "m", "stage": "s", "done": None, "seconds_left": None} | values,
    )
    write_status(tmp_path, HALF)
    (tmp_path / RUNS_FOLDER / ".status" / "other.json").write_text(json.dumps(given))
    assert read_statuses(tmp_path) == [HALF]


def test_a_file_in_the_place_of_the_folder_stops_no_training(tmp_path):
    (tmp_path / RUNS_FOLDER).write_text("a file")
    write_status(tmp_path, HALF)
    remove_status(tmp_path, "mixture")
    assert read_statuses(tmp_path) == []


def test_the_default_models_are_due_in_an_empty_registry_and_after_a_stop(tmp_path):
    registry = LocalRegistry(tmp_path, create=True)
    assert is_quickstart_due(registry)
    (tmp_path / "m" / "versions" / "1").mkdir(parents=True)
    (tmp_path / "m" / "versions" / "1" / "manifest.json").write_text("{}")
    assert not is_quickstart_due(registry)
    quickstart_mark(registry).parent.mkdir()
    quickstart_mark(registry).touch()
    assert is_quickstart_due(registry)

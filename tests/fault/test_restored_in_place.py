"""A backup is copied over the registry of a service under load: serving continues, and a fatal signal is logged."""

import os
import signal
from pathlib import Path

import pytest

from models.checkpoint.registry import LocalRegistry
from tests.fault.restore_in_place import damage_and_mend, large_registry, restored_in_place
from tests.support.services import faulty_service, made_up_registry, wait_until

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return large_registry(tmp_path_factory.mktemp("large") / "registry").root


@pytest.mark.parametrize("workers", [1, 2])
def test_a_copy_over_the_registry_harms_nothing_that_is_served(root, tmp_path, workers):
    told = restored_in_place(LocalRegistry(root), tmp_path, workers=workers)
    assert (told.wrong, told.deaths) == ([], 0)
    assert told.copies > 3
    assert told.right > 10


def test_a_registry_is_damaged_and_restored_under_a_service_that_follows_it(root, tmp_path):
    told = restored_in_place(LocalRegistry(root), tmp_path, workers=1, put_back=damage_and_mend)
    assert (told.wrong, told.deaths) == ([], 0)
    assert told.copies > 3
    assert told.right > 10


def test_without_room_for_a_copy_it_is_served_from_where_it_lies_and_that_is_logged(root, tmp_path):
    (tmp_path / "file").touch()
    cache = {"GRAMOPHONE_REGISTRY_CACHE": str(tmp_path / "file" / "cache")}
    with faulty_service(made_up_registry(tmp_path), tmp_path, **cache) as service:
        assert service.serves_newcomers()
        assert "is served without a copy" in (tmp_path / "log").read_text()


def test_the_log_says_what_signal_ended_a_worker_and_where(tmp_path):
    with faulty_service(made_up_registry(tmp_path), tmp_path, workers=2) as service:
        os.kill(service.pids[0], signal.SIGBUS)
        wait_until(lambda: "worker died" in (tmp_path / "log").read_text())
        log = (tmp_path / "log").read_text()
        assert "Fatal Python error: Bus error" in log
        assert "Current thread" in log
        assert '"how":"SIGBUS"' in log


@pytest.mark.parametrize("workers", [1, 2])
def test_copies_are_shared_and_go_with_the_service_however_it_ends(tmp_path, workers):
    cache = tmp_path / "cache"
    given = {"workers": workers, "GRAMOPHONE_REGISTRY_CACHE": str(cache)}
    registry = made_up_registry(tmp_path, names=("a", "b"))
    with faulty_service(registry, tmp_path, drains=False, **given) as service:
        assert len(list((cache / "copies").iterdir())) == 2
        for pid in [service.child.pid, *service.pids]:
            os.kill(pid, signal.SIGKILL)
        service.child.wait()
        service.child.poll = lambda: None
    assert list((cache / "copies").iterdir())
    with faulty_service(registry, tmp_path, GRAMOPHONE_MODELS="a", **given):
        assert len(list((cache / "copies").iterdir())) == 1
    assert not list(Path(cache / "copies").iterdir())

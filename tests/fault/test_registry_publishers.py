"""Four publishers at once, each a process, and a watcher that loads all it sees: nothing is lost, nothing partial."""

import json
import os
import subprocess
import sys

import pytest

from models.checkpoint.registry import open_registry
from tests.object_stores import s3_server

PUBLISHERS, VERSIONS = 4, 200


@pytest.fixture(scope="module", params=["folder", "s3"])
def outcome(request, tmp_path_factory):
    """What the publishers told, what the watcher saw, and what is there in the end."""
    folder = tmp_path_factory.mktemp("publishers")
    with s3_server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        address = folder / "registry" if request.param == "folder" else server.make_bucket("publishers")
        stop = folder / "stop"
        watcher = started("watch", address, folder / "watcher", stop)
        each = VERSIONS // PUBLISHERS
        publishers = [
            started("publish", address, folder / f"cache-{number}", each, number * each)
            for number in range(PUBLISHERS)
        ]
        published = [told(publisher) for publisher in publishers]
        stop.touch()
        there = open_registry(address, cache=folder / "cache").versions("m")
        yield published, told(watcher), there


def started(*arguments):
    command = [sys.executable, "-m", "tests.fault.registry_processes", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ.copy())  # noqa: TID251 - it is passed on


def told(process):
    output, _ = process.communicate()
    assert process.returncode == 0
    return json.loads(output)


def test_every_publisher_got_a_number_of_its_own_each_time(outcome):
    published, _, there = outcome
    numbers = sorted(int(number) for seeds in published for number in seeds)
    assert numbers == there == list(range(1, VERSIONS + 1))


def test_what_was_published_under_a_number_is_what_is_loaded_by_it(outcome):
    published, watched, _ = outcome
    seeds = {number: seed for told in published for number, seed in told.items()}
    assert watched["seen"] == seeds
    assert sorted(seeds.values()) == list(range(VERSIONS))


def test_no_version_was_ever_seen_in_part(outcome):
    assert outcome[1]["partial"] == []

"""A full disk under a registry, its cache, its documents or the shared weights."""

import contextlib
import itertools
import logging
import uuid

import numpy as np
import pytest

from models.arrays import to_numpy
from models.checking.error_model import Calibration, CalibrationPoint, CalibrationStore
from models.checkpoint.load import CheckpointDescription, load_checkpoint, write_checkpoint
from models.checkpoint.manifest import read_manifest, verify_files
from models.checkpoint.registry import LocalRegistry, open_registry
from models.errors import RegistryError
from models.reranking.ranking import Profile, ProfileStore
from models.tensor_files import PackedWeightCache
from tests.fault.disks import KINDS, disk_of_kind
from tests.support import families

ROOMS = (0, 1000, 4096, 10_000, 20_000, 40_000, 80_000)
DESCRIPTION = CheckpointDescription(
    "2026-01-01T00:00:00+00:00", {}, {}, [[5, 6, 7], [9]], {"MODEL_CARD.md": b"# m\n"}
)
NAMES = ("ngram", "lstm", "mixture")


@pytest.fixture(params=KINDS)
def disk(request, tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    with disk_of_kind(request.param, folder) as disk:
        yield disk


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Write the parts of the mixture as checkpoints."""
    folders = [tmp_path_factory.mktemp("parts") / name for name in NAMES[:2]]
    for folder in folders:
        folder.mkdir()
        write(folder, folder.name)
    return folders


def write(folder, name, parts=()):
    write_checkpoint(folder, families.model(name), families.tokenizer(), DESCRIPTION, parts=parts)


def writer(name, parts):
    return lambda folder: write(folder, name, parts if name == "mixture" else ())


def refused(disk, room_bytes, work):
    """True if a full disk refused the work, with one line that names the file; False if it succeeded."""
    try:
        with disk.full(room_bytes):
            work()
    except RegistryError as error:
        told = str(error)
    else:
        return False
    assert told.startswith("cannot write ")
    assert disk.refusal in told
    assert "\n" not in told
    return True


def assert_whole(registry, count):
    """Check the number of versions, that each is complete, and that no temporary file is left."""
    numbers = registry.versions("m")
    assert len(numbers) == count
    for number in numbers:
        folder = registry.fetch(registry.version("m", number))
        verify_files(folder, read_manifest(folder))
    assert [path.name for path in registry.work_folder.rglob(".tmp-*")] == []


@pytest.mark.parametrize("name", NAMES)
def test_publishing_into_a_folder_is_refused_whole_until_there_is_room(disk, parts, name):
    registry = LocalRegistry(disk.folder / "registry", create=True)
    publish = lambda: registry.publish("m", writer(name, parts))  # noqa: E731 - said in many places
    publish()
    refusals = 0
    for room_bytes in ROOMS:
        refusals += refused(disk, room_bytes, publish)
        assert_whole(registry, registry.resolve("m").number)
    assert refusals >= 3
    before = registry.resolve("m").number
    assert publish().number == before + 1


@pytest.mark.parametrize("name", NAMES)
def test_publishing_at_a_store_needs_room_in_the_cache_and_leaves_nothing_in_either(disk, parts, name):
    registry = open_registry(f"memory://{uuid.uuid4().hex}", cache=disk.folder)
    published = 0
    for room_bytes in ROOMS:
        published += not refused(disk, room_bytes, lambda: registry.publish("m", writer(name, parts)))
        assert_whole(registry, published)
    assert published < len(ROOMS) - 2
    assert registry.publish("m", writer(name, parts)).number == published + 1


@pytest.mark.parametrize("name", NAMES)
def test_fetching_into_a_cache_that_is_full_keeps_nothing_half(disk, parts, name, tmp_path):
    address = f"memory://{uuid.uuid4().hex}"
    open_registry(address, cache=tmp_path / "elsewhere").publish("m", writer(name, parts))
    registry = open_registry(address, cache=disk.folder)
    version = registry.resolve("m")
    assert sum(refused(disk, room_bytes, lambda: registry.fetch(version)) for room_bytes in ROOMS) >= 3
    load_checkpoint(registry.fetch(version))
    assert_whole(registry, 1)


def test_aliases_stay_as_they_were(disk):
    registry = LocalRegistry(disk.folder / "registry", create=True)
    for _ in range(2):
        registry.publish("m", writer("ngram", ()))
    registry.set_alias("m", "champion", 1)
    registry.set_alias("m", "candidate", 1)
    assert refused(disk, 0, lambda: registry.set_alias("m", "champion", 2))
    assert refused(disk, 0, lambda: registry.delete_alias("m", "candidate"))
    assert registry.aliases("m") == {"champion": 1, "candidate": 1}
    registry.set_alias("m", "champion", 2)
    assert registry.aliases("m") == {"champion": 2, "candidate": 1}


def test_a_version_can_be_deleted_to_make_room(disk):
    registry = LocalRegistry(disk.folder / "registry", create=True)
    for _ in range(2):
        registry.publish("m", writer("ngram", ()))
    with disk.full():
        registry.delete("m", 1)
    assert_whole(registry, 1)


def profile(weight):
    about = {"name": "p", "metric": "wer", "signature": "", "models": [], "decision": "tuned", "figures": {}}
    return Profile(weights={"am": weight}, created="2026-01-01T00:00:00+00:00", **about)


def calibration(precision):
    points = [CalibrationPoint(threshold=0.5, precision=precision, recall=0.5)]
    about = {"model": "m@1", "kinds": ["typo"], "words_per_error": 10.0, "corpus_sha256": "0" * 64}
    return Calibration(points=points, created="2026-01-01T00:00:00+00:00", **about)


def test_profiles_and_calibrations_stay_as_they_were(disk):
    profiles, calibrations = ProfileStore(disk.folder), CalibrationStore(disk.folder)
    old, new = (calibration(precision) for precision in (0.5, 0.9))
    profiles.write(profile(1.0))
    calibrations.write(old)
    assert refused(disk, 0, lambda: profiles.write(profile(2.0)))
    assert refused(disk, 0, lambda: calibrations.write(new))
    assert profiles.read("p") == profile(1.0)
    assert calibrations.read("m@1") == old
    assert list(disk.folder.rglob(".tmp-*")) == []
    profiles.write(profile(2.0))
    assert profiles.read("p") == profile(2.0)


@pytest.mark.parametrize("room_bytes", [0, 300, 5000])
def test_weights_that_find_no_room_on_the_shelf_are_this_processs_own(disk, room_bytes, caplog):
    """As in a container with a small /dev/shm."""
    caplog.set_level(logging.WARNING)
    made = {"values": np.arange(30_000, dtype=np.int32)}
    with disk.full(room_bytes):
        taken = PackedWeightCache(disk.folder, "key").get_or_make("a", lambda: made)
        np.testing.assert_array_equal(taken["values"], made["values"])
    assert disk.refusal in caplog.text
    assert not (disk.folder / "key.a").exists()
    laid = PackedWeightCache(disk.folder, "key").get_or_make("a", lambda: made)
    np.testing.assert_array_equal(laid["values"], made["values"])
    assert (disk.folder / "key.a").exists()


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_model_answers_the_same_whether_its_weights_found_room_or_not(disk, tmp_path, precision):
    lstm = tmp_path / "lstm"
    lstm.mkdir()
    description = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[5, 6, 7], [9]], {})
    write_checkpoint(lstm, families.model("lstm"), families.tokenizer(), description)
    answers = []
    for room_bytes in (0, 3000, None):
        with disk.full(room_bytes) if room_bytes is not None else contextlib.nullcontext():
            model = load_checkpoint(lstm, precision=precision, shared=disk.folder).model
            answers.append(to_numpy(model.next_log_probs(model.initial_state(1))))
    assert all((one == other).all() for one, other in itertools.pairwise(answers))

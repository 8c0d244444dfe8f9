"""Files of compiled kernels: found wherever they lie, never wrong, never in the way of an answer."""

import itertools
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from numba import types

from models import precompile
from models.errors import InputError
from models.kernels.compilation import DECLARED, kernel
from models.kernels.target import LEVEL, LEVELS, supported_levels
from models.precompile import ALL_GROUPS, KernelGroup, precompile_levels

ROOT = Path(__file__).parents[4]
HELPER = """
import numba
SCALE = 2.0
@numba.njit
def scaled(value):
    return SCALE * value
"""
SUMS = """
from numba import types
from models.kernels.compilation import kernel
from helper import scaled

@kernel(types.float64(types.Array(types.float64, 1, "C", readonly=True)))
def total(values):
    result = 0.0
    for index in range(len(values)):
        result += scaled(values[index])
    return result

@kernel()
def first(values):
    return values[0]
"""
PROGRAM = """
import logging, resource, sys
logging.basicConfig(format="%(message)s")
import numba.core.event
compiled = numba.core.event.RecordingListener()
numba.core.event.register("numba:compile", compiled)
import numpy as np, sums
if "no space" in sys.argv:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
print(sums.total(np.arange(4.0)), sums.first(np.arange(5, 8)), len(compiled.buffer) // 2)
"""
NOTHING_COMPILED, ALL_COMPILED = "12.0 5 0", "12.0 5 3"


def write_package(folder):
    """Write a module of kernels and a module of functions that they use."""
    folder.mkdir()
    (folder / "helper.py").write_text(HELPER)
    (folder / "sums.py").write_text(SUMS)
    return folder


@pytest.fixture
def package(tmp_path):
    return write_package(tmp_path / "package")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Files of the package's kernels as the program stores them; tests copy the folder."""
    folder = tmp_path_factory.mktemp("compiled")
    assert asked(write_package(folder / "package"), folder / "cache") == (ALL_COMPILED, "")
    assert len(list((folder / "cache").iterdir())) == 2
    return folder / "cache"


def asked(package, cache, *words, level=None):
    """Run the program; return its answer with the number of compiled functions, and what it logged."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{package}", "NUMBA_CACHE_DIR": str(cache)}  # noqa: TID251 - a child's
    # Python takes bytecode for current if the source has the same size and the same second of change.
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    environment |= {} if level is None else {"NUMBA_CPU_NAME": level}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip(), done.stderr


def test_code_is_found_wherever_it_lies_and_the_package_too(package, compiled, tmp_path):
    moved = shutil.copytree(compiled, tmp_path / "moved")  # the package too, with other file times
    assert asked(package, moved) == (NOTHING_COMPILED, "")


@pytest.mark.parametrize(
    ("file", "old", "new", "answer"),
    [
        ("helper.py", "SCALE * value", "SCALE + value", "14.0"),
        ("helper.py", "SCALE = 2.0", "SCALE = 3.0", "18.0"),
        ("sums.py", "result = 0.0", "result = 1.0", "13.0"),
    ],
)
def test_code_of_changed_sources_is_not_used(package, compiled, tmp_path, file, old, new, answer):
    cache = shutil.copytree(compiled, tmp_path / "cache")
    path = package / file
    path.write_text(path.read_text().replace(old, new))
    assert asked(package, cache)[0].split()[0] == answer


@pytest.mark.parametrize(
    "damage", [lambda code: code[:-1], lambda _: b"", lambda code: code[:-9] + b"x" + code[-8:]]
)
def test_damaged_code_is_compiled_again_and_replaced(package, compiled, tmp_path, damage):
    cache = shutil.copytree(compiled, tmp_path / "cache")
    for path in cache.iterdir():
        path.write_bytes(damage(path.read_bytes()))
    answer, log = asked(package, cache)
    assert answer == ALL_COMPILED
    assert sorted(line.split(": ")[0] for line in log.splitlines()) == [
        f"{path} is damaged" for path in sorted(cache.iterdir())
    ]
    assert asked(package, cache) == (NOTHING_COMPILED, "")


@pytest.mark.parametrize(
    ("cache", "words"), [("/proc/none", ()), (None, ("no space",))], ids=["unwritable", "full"]
)
def test_code_that_cannot_be_stored_is_used_all_the_same(package, tmp_path, cache, words):
    answer, log = asked(package, cache or tmp_path / "cache", *words)
    assert answer == ALL_COMPILED
    assert log.count("\n") == 1  # once for both kernels
    assert log.startswith(f"compiled kernels cannot be stored in {cache or tmp_path / 'cache'} (")
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())


def give_away(path):
    os.chown(path, 65534, -1, follow_symlinks=False)


def replace_by_link(cache, target):
    """Move a folder to a target beside it, and leave a link to it; return the parent of the target."""
    target.parent.mkdir(exist_ok=True)
    shutil.move(cache, target)
    cache.symlink_to(target.relative_to(cache.parent))
    return target.parent


WRITABLE, ANOTHERS = "other users can write to {}", "{} belongs to another user"
EXPOSURES = {
    "writable": (lambda cache: cache.chmod(0o777), WRITABLE, "gramophone/kernels"),
    "writable by the group": (lambda cache: cache.chmod(0o770), WRITABLE, "gramophone/kernels"),
    "writable and sticky": (lambda cache: cache.chmod(0o1777), WRITABLE, "gramophone/kernels"),
    "writable parent": (lambda cache: cache.parent.chmod(0o777), WRITABLE, "gramophone"),
    "writable target": (
        lambda cache: replace_by_link(cache, cache.parent / "hidden" / "kernels").chmod(0o777),
        WRITABLE,
        "gramophone/hidden",
    ),
}
if os.geteuid() == 0:  # only root can make files of other users
    EXPOSURES |= {
        "another's": (give_away, ANOTHERS, "gramophone/kernels"),
        "another's parent": (lambda cache: give_away(cache.parent), ANOTHERS, "gramophone"),
        "another's target": (
            lambda cache: give_away(replace_by_link(cache, cache.parent / "hidden" / "kernels")),
            ANOTHERS,
            "gramophone/hidden",
        ),
        "another's link": (
            lambda cache: (replace_by_link(cache, cache.parent / "moved"), give_away(cache)),
            ANOTHERS,
            "gramophone/kernels",
        ),
        "another's sticky parent": (
            lambda cache: (cache.parent.chmod(0o1777), give_away(cache.parent)),
            ANOTHERS,
            "gramophone",
        ),
    }


@pytest.mark.parametrize(("expose", "problem", "place"), EXPOSURES.values(), ids=EXPOSURES)
def test_code_that_others_could_have_written_is_not_run(package, compiled, tmp_path, expose, problem, place):
    (tmp_path / "gramophone").mkdir(mode=0o700)
    cache = shutil.copytree(compiled, tmp_path / "gramophone" / "kernels")
    expose(cache)
    answer, log = asked(package, cache)
    assert answer == ALL_COMPILED
    assert log.count("\n") == 1
    reason = problem.format(tmp_path / place)
    assert log.startswith(f"compiled kernels cannot be stored in {cache} ({reason}")


def test_code_below_a_shared_folder_and_through_an_own_link_is_run(package, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    asked(package, shared / "cache")
    (tmp_path / "link").symlink_to("shared/../shared/cache")
    assert asked(package, tmp_path / "link") == (NOTHING_COMPILED, "")


def test_folders_made_for_code_are_closed_to_others(package, tmp_path):
    before = os.umask(0)
    try:
        asked(package, tmp_path / "gramophone" / "kernels")
    finally:
        os.umask(before)
    assert asked(package, tmp_path / "gramophone" / "kernels") == (NOTHING_COMPILED, "")


def test_processes_that_write_at_the_same_time_lose_nothing(package, tmp_path):
    cache = tmp_path / "cache"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{package}", "NUMBA_CACHE_DIR": str(cache)}  # noqa: TID251 - a child's
    # Python takes bytecode for current if the source has the same size and the same second of change.
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = "import numpy as np, sums, sys; sums.first(np.zeros(1, sys.argv[1])); sums.total(np.zeros(1))"
    kinds = ["int8", "int16", "float32", "float64"]
    running = [subprocess.Popen([sys.executable, "-c", command, kind], env=environment) for kind in kinds]
    assert [process.wait() for process in running] == [0] * len(kinds)
    assert len(list(cache.iterdir())) == len(kinds) + 1
    assert asked(package, cache)[0] == "12.0 5 1"  # only `first` of int64 is new


def test_each_level_has_code_of_its_own_with_the_same_results(package, tmp_path):
    levels = [level.name for level in supported_levels()]
    for level in [*levels, "generic"]:  # below every level
        assert asked(package, tmp_path / "cache", level=level) == (ALL_COMPILED, "")
    assert len(list((tmp_path / "cache").iterdir())) == 2 * (len(levels) + 1)


def test_this_processor_uses_its_fastest_level():
    assert supported_levels()[:1] == [LEVEL] or not supported_levels()


def test_no_level_hides_a_faster_one():
    for faster, slower in itertools.combinations(LEVELS, 2):
        assert not faster.features <= slower.features, (
            "a processor of the slower level has the faster one too"
        )
    assert all(LEVELS[-1].features < level.features for level in LEVELS[:-1])


@pytest.mark.parametrize("name", ["x86-64-v9", "", "znver4"])
def test_unknown_levels_are_refused_with_those_that_this_processor_has(name, tmp_path):
    with pytest.raises(InputError, match=f"^target is {name!r}; this processor has .*{LEVEL.name}"):
        list(precompile_levels([LEVEL.name, name], tmp_path / "never"))
    assert not (tmp_path / "never").exists()


def test_arguments_of_other_types_are_errors():
    @kernel(types.int64(types.int64))
    def doubled(value):
        return 2 * value

    assert doubled(4) == 8
    with pytest.raises(TypeError, match="No matching definition"):
        doubled("4")


def test_a_kernel_calls_the_declared_version_whatever_was_compiled_before():
    @kernel(types.float64(types.float64))
    def exponential(value):
        return math.exp(value)

    @kernel(types.float64(types.float32))
    def exponential_of_single(value):
        return exponential(value)  # numba would compile it for float32, with fewer digits

    value = float(np.float32(0.1))
    before = exponential_of_single(value)
    assert before == exponential(value)
    assert before == pytest.approx(math.exp(value), rel=1e-14)


def test_every_name_of_a_group_is_a_kernel_and_every_kernel_of_models_is_in_a_group():
    groups = [*ALL_GROUPS, precompile._RECURRENT, precompile._FEED_FORWARD]
    for name in itertools.chain.from_iterable(group.names for group in groups):
        assert precompile.kernels_of(KernelGroup((name,))), name
    grouped = {declared.dispatcher for group in ALL_GROUPS for declared, _ in precompile.kernels_of(group)}
    declared = {declared.dispatcher for declared in DECLARED if declared.module.startswith("models.")}
    assert declared == grouped


def test_kernels_are_never_compiled_for_the_very_host():
    assert LEVEL.cpu == numba.core.config.CPU_NAME

"""Training states with errors: resumed, or refused by name; code in them never runs."""

import functools
import hashlib
import io
import os
import pickle  # noqa: TID251 - to make what must be refused
import shutil
import tempfile
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.errors import FormatError
from tests.fuzz.damage import NASTY_VALUES, any_bytes, damaged
from tests.fuzz.parsing import Parser, ParserProcess, fuzz_slowly
from tests.support.resumable import fit, saved_state
from training.progress import Progress

VALUES = [
    *NASTY_VALUES,
    torch.zeros(0),
    torch.zeros(3, 5),
    torch.full((2,), float("nan")),
    torch.ones(4, dtype=torch.int8),
]


class Interrupting(Progress):
    """Raises Ctrl-C after three updates."""

    def __init__(self):
        self.left = 4

    def advance(self, _=1, note=""):
        self.left -= 1
        if note and self.left <= 0:
            raise KeyboardInterrupt


def go_on(path: Path) -> None:
    """Resume a run for a few more updates, from a copy, since the run replaces its file."""
    copied = path.with_name(f"copy-{path.name}")
    shutil.copyfile(path, copied)
    fit(copied, max_steps=5, batch_size=4)


@functools.cache
def interrupted():
    """Return the content of a run's file after three updates."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.pt"
        fit(path, progress=Interrupting(), max_steps=5, batch_size=4)
        return path.read_bytes()


def sealed(written):
    """Prefix a file's content with the right hash."""
    return hashlib.sha256(written).digest() + written


@pytest.fixture(scope="module")
def process():
    with ParserProcess(__name__) as asked:
        yield asked


@pytest.fixture(scope="module")
def run(process, tmp_path_factory):
    return Parser(process, "go_on", tmp_path_factory.mktemp("run") / "state.pt", interrupted())


@fuzz_slowly
@given(st.data())
def test_states_with_other_bytes(run, data):
    damage = damaged(st.just(run.good[32:]), [b"cos\nsystem\n", b"\x80\x02c__builtin__\neval\n"])
    ways = st.one_of(damaged(st.just(run.good)), damage.map(sealed), any_bytes())
    run.ask(data.draw(ways, label="content"), named=run.path.parent.name)


@fuzz_slowly
@given(st.data())
def test_states_that_say_something_else(run, data):
    """Everything but the optimizer's moments and the history, which nothing can validate yet."""
    state = torch.load(io.BytesIO(run.good[32:]), weights_only=True)
    apart = {"optimizer": state.pop("optimizer"), "history": state.pop("history")}
    for _ in range(data.draw(st.integers(1, 2))):
        where = state
        while True:
            keys = sorted(where, key=str) if isinstance(where, dict) else range(len(where))
            key = data.draw(st.sampled_from(list(keys)))
            if not isinstance(where[key], dict | list) or not where[key] or data.draw(st.booleans()):
                break
            where = where[key]
        if data.draw(st.booleans()) or not isinstance(where, dict):
            where[key] = data.draw(st.sampled_from(VALUES))
        else:
            del where[key]
    content = io.BytesIO()
    torch.save({**state, **apart}, content)
    run.ask(sealed(content.getvalue()), named=run.path.parent.name)


class Hostile:
    """Creates a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def archived(pickled):
    """Return torch's archive with another pickle in it."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(interrupted()[32:])) as good, zipfile.ZipFile(target, "w") as bad:
        for name in good.namelist():
            bad.writestr(name, pickled if name.endswith("data.pkl") else good.read(name))
    return target.getvalue()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("pack", [bytes, archived], ids=["pickle", "archive"])
def test_objects_with_code_are_refused_and_not_run(tmp_path, pack, protocol):
    made, path = tmp_path / "made", tmp_path / "state.pt"
    path.write_bytes(sealed(pack(pickle.dumps({"format": 1, "network": Hostile(made)}, protocol))))
    with pytest.raises(FormatError, match=r"state\.pt"):
        saved_state(path)
    assert not made.exists()

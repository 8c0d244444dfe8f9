"""Commands and logs on a full disk: one clear message, no partial files, no lost replies."""

import errno
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.errors import RegistryError
from models.tokenizers import WordTokenizer
from service.cli.main import main
from tests.contract.conftest import publish as conftest_publish
from tests.fault.disks import GrowthLimit
from tests.fault.test_full_disk_registry import write
from tests.support.fake_models import FakeModel, fake_vocabulary
from tests.support.resumable import fit, saved_state
from tests.support.services import running_process
from training import publish
from training.neural import diagnostics
from training.progress import Progress, Terminated, exit_on_sigterm

LINES = [
    f"the {a} {b} the {c}\n" for a in ("cat", "dog", "cow") for b in ("saw", "ate") for c in ("sun", "hay")
]
FULL = GrowthLimit(None)


@pytest.fixture
def typed(capsys, monkeypatch, tmp_path):
    """Run `gramophone …` in a folder with a text; return exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("".join(LINES * 3))

    def run(*argv, room_bytes=1 << 40):
        monkeypatch.setattr(sys, "argv", ["gramophone", *map(str, argv)])
        code = 0
        try:
            with FULL.full(room_bytes):
                main()
        except SystemExit as stopped:
            code = stopped.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def assert_told(outcome, place):
    code, out, errors = outcome
    assert (code, out) == (2, "")
    last = errors.splitlines()[-1]
    assert last.startswith(f"gramophone: {place}")
    assert "File too large" in last


def test_a_training_whose_model_finds_no_room_publishes_nothing_and_then_all(typed, tmp_path):
    train = ["train", "ngram", "--corpus", "corpus.txt", "--registry", "registry", "--name", "m", "--json"]
    for room_bytes in (0, 300, 2000):
        assert_told(typed(*train, room_bytes=room_bytes), "cannot write to registry/m")
        assert LocalRegistry(tmp_path / "registry").models() == []
    assert typed(*train)[0] == 0
    load_checkpoint(LocalRegistry(tmp_path / "registry").resolve("m").path)


def test_a_report_that_finds_no_room_is_named_and_an_older_one_stays(typed, tmp_path):
    registry = LocalRegistry(tmp_path / "registry", create=True)
    registry.publish("m", lambda folder: write(folder, "ngram"))
    (tmp_path / "report.html").write_text("of yesterday")
    evaluate = ["evaluate", "m", "--task", "autocomplete", "--corpus", "corpus.txt", "--registry", "registry"]
    command = [*evaluate, "--sample", "20", "--report", "report.html"]
    assert_told(typed(*command, room_bytes=1000), "report.html: cannot be written")
    assert (tmp_path / "report.html").read_text() == "of yesterday"
    assert typed(*command)[0] == 0
    assert (tmp_path / "report.html").read_text().startswith("<!")


def test_the_parts_of_a_mixture_that_find_no_room_are_told_by_their_place(tmp_path, monkeypatch):
    """The parts are written to the temporary folder first."""
    part = tmp_path / "part"
    part.mkdir()
    write(part, "ngram")
    monkeypatch.setattr(publish, "_has_embedded_parts", lambda _: True)
    monkeypatch.setattr(publish, "_part_directory", lambda *_: write(tmp_path / "scratch", "mixture", [part]))
    (tmp_path / "scratch").mkdir()
    recipe = SimpleNamespace(mixture=SimpleNamespace(publish_parts=False))
    trained = SimpleNamespace(recipe=recipe, parts=[None])
    with (
        FULL.full(1000),
        pytest.raises(RegistryError, match=r"^cannot write to /[^\[]*\[Errno 27\] File too large[^\[]*$"),
    ):
        publish.publish(LocalRegistry(tmp_path / "r", create=True), "m", trained, None)


class Meddling(Progress):
    """Calls a function at the n-th update of a training."""

    def __init__(self, updates, meddle):
        self._left, self._meddle = updates, meddle

    def advance(self, _amount, _note=""):
        self._left -= 1
        if self._left == 0:
            self._meddle()


def test_a_state_that_finds_no_room_is_told_once_and_saved_when_there_is_room(tmp_path):
    """Saving is tried, and refused, after every update."""
    state = tmp_path / "state.pt"
    with FULL.full(1000):
        result = fit(state, max_steps=6)
    [note] = result.notes
    assert note.startswith(f"cannot save the training state in {state}: ")
    assert list(tmp_path.iterdir()) == []
    fit(state, max_steps=6)
    assert saved_state(state)["step"] == 6


def test_the_state_saved_before_the_disk_was_full_is_gone_on_with(tmp_path):
    state = tmp_path / "state.pt"
    fit(state, max_steps=3)
    with FULL.full(1000):
        fit(state, max_steps=6)
    assert saved_state(state)["step"] == 3
    assert "resumed after 3 updates" in fit(state, max_steps=6).notes[0]


def test_sigterm_on_a_full_disk_says_why_nothing_was_saved(tmp_path):
    progress = Meddling(3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with FULL.full(1000), pytest.raises(Terminated) as ended, exit_on_sigterm():
        fit(tmp_path / "state.pt", progress=progress, save_minutes=100)
    assert ended.value.unsaved.startswith("cannot save the training state in ")
    assert "File too large" in ended.value.unsaved


def test_a_training_goes_on_without_tensorboard_where_that_finds_no_room(tmp_path, monkeypatch):
    class Full:
        def __init__(self, *_, **__):
            pass

        def add_scalar(self, *_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Full))
    monkeypatch.setattr(diagnostics, "require_package", lambda *_, **__: None)
    result = fit(max_steps=4, tensorboard=str(tmp_path))
    assert result.history[-1].step == 4
    assert result.notes == (f"cannot write to {tmp_path} for TensorBoard: No space left on device",)


@pytest.mark.parametrize("form", ["json", "console"])
def test_every_request_is_answered_though_no_line_can_be_written(tmp_path, form):
    registry = LocalRegistry(tmp_path, create=True)
    words = WordTokenizer(fake_vocabulary())
    conftest_publish(registry, "m", FakeModel(words.vocabulary), words)
    with running_process(registry, Path("/dev/full"), GRAMOPHONE_LOG_FORMAT=form) as (_, url):
        asked = [httpx.post(f"{url}/v1/score", json={"texts": ["the cat"]}) for _ in range(3)]
        refused = httpx.post(f"{url}/v1/score", content=b"no JSON")
        ready = httpx.get(f"{url}/health/ready")
    assert [reply.status_code for reply in (*asked, refused, ready)] == [200, 200, 200, 400, 200]

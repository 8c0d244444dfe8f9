"""Stages on disk: what is there is taken, what was half done is not."""

import shutil

import pytest

from models.errors import InvalidInputError, RegistryError
from training.scale.tables import stage_key, workspace


def writer(text):
    def write(folder):
        (folder / "part.parquet").write_text(text)
        (folder / "kept.txt").write_text(text)
        return {"said": text}

    return write


def never(_):
    pytest.fail("the stage was run again")


def test_a_stage_that_is_there_is_not_run_again(tmp_path):
    with workspace(tmp_path) as work:
        assert work.stage("one", "key", writer("a")) == {"said": "a"}
    with workspace(tmp_path) as work:
        assert work.stage("one", "key", never) == {"said": "a"}
        assert (work.path("one") / "part.parquet").read_text() == "a"
        assert work.notes() == ["1 stages of the estimation were done already"]


def test_a_stage_of_something_else_is_run_anew(tmp_path):
    with workspace(tmp_path) as work:
        work.stage("one", "key", writer("a"))
        assert work.stage("one", "another key", writer("b")) == {"said": "b"}
        assert (work.path("one") / "part.parquet").read_text() == "b"
        assert work.notes() == []


def test_the_stages_of_another_estimation_are_removed_and_that_is_told(tmp_path):
    with workspace(tmp_path) as work:
        work.claim("this")
        work.stage("one", "key", writer("a"))
    with workspace(tmp_path) as work:
        work.claim("this")
        assert work.stage("one", "key", never) == {"said": "a"}
        work.claim("that")
        assert not work.path("one").exists()
        assert work.notes()[0].startswith("an unfinished estimation of another text or recipe in")


def test_a_stage_whose_removal_was_interrupted_is_not_half_there(tmp_path, monkeypatch):
    with workspace(tmp_path) as work:
        work.claim("this")
        work.stage("one", "key", writer("a"))
    really = shutil.rmtree

    def killed(path, **_):
        (path / "part.parquet").unlink()
        raise KeyboardInterrupt

    for remove in (lambda work: work.claim("that"), lambda work: work.stage("one", "other key", writer("b"))):
        with workspace(tmp_path) as work:
            work.claim("this")
            work.stage("one", "key", writer("a"))
            monkeypatch.setattr("shutil.rmtree", killed)
            with pytest.raises(KeyboardInterrupt):
                remove(work)
            monkeypatch.setattr("shutil.rmtree", really)
        with workspace(tmp_path) as work:
            work.claim("this")
            assert work.stage("one", "key", writer("again")) == {"said": "again"}
            assert work.stage("one", "key", never) == {"said": "again"}


def test_a_stage_that_failed_is_not_there(tmp_path):
    def fail(folder):
        writer("half")(folder)
        raise OSError(28, "No space left on device")

    with workspace(tmp_path) as work:
        with pytest.raises(RegistryError, match=r"cannot write to .*: No space left on device"):
            work.stage("one", "key", fail)
        assert not work.path("one").exists()
    with workspace(tmp_path) as work:
        assert sorted(path.name for path in tmp_path.iterdir()) == ["estimation", "spill"]
        assert work.stage("one", "key", writer("a")) == {"said": "a"}


def test_a_damaged_stage_is_run_anew(tmp_path):
    with workspace(tmp_path) as work:
        work.stage("one", "key", writer("a"))
        (work.path("one") / "stage.json").write_text("{")
        assert work.stage("one", "key", writer("b")) == {"said": "b"}


def test_the_table_of_a_stage_can_go_and_the_stage_stay(tmp_path):
    with workspace(tmp_path) as work:
        work.stage("one", "key", writer("a"))
        work.drop("one")
        assert [path.name for path in sorted(work.path("one").iterdir())] == ["kept.txt", "stage.json"]
        assert work.stage("one", "key", never) == {"said": "a"}


def test_nothing_is_left_of_what_was_published(tmp_path):
    with workspace(tmp_path) as work:
        work.stage("one", "key", writer("a"))
        work.remove()
    assert list(tmp_path.iterdir()) == []


def test_two_processes_do_not_share_a_workspace(tmp_path):
    with (
        workspace(tmp_path),
        pytest.raises(InvalidInputError, match="another process is estimating in"),
        workspace(tmp_path),
    ):
        pass


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InvalidInputError, match="is not empty and holds no stages"), workspace(tmp_path):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RegistryError, match="cannot write to"), workspace(tmp_path / "file" / "inside"):
        pass


def test_keys_depend_on_every_part():
    assert stage_key(1, "a", [2]) == stage_key(1, "a", [2])
    assert (
        len({stage_key(1, "a", [2]), stage_key(1, "a", [3]), stage_key(1, "b", [2]), stage_key(1, "a")}) == 4
    )


def test_what_a_killed_change_of_estimation_left_is_not_gone_on_with(tmp_path, monkeypatch):
    """Of the old estimation some stages are gone by then, and tables of others."""
    with workspace(tmp_path) as work:
        work.claim("this")
        work.stage("one", "key", writer("a"))
        work.stage("two", "key", writer("b"))

    with monkeypatch.context() as patched, workspace(tmp_path) as work:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            work.claim("that")
    with workspace(tmp_path) as work:
        work.claim("this")
        assert not list(tmp_path.glob("stage-*"))


def killed(*_, **__):
    raise KeyboardInterrupt

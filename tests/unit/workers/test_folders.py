"""Folders that are held while anybody lives who shares them."""

import os
import tempfile
from pathlib import Path

from service.workers.supervisor import LockedFolder


def left_over(parent, kind="weights"):
    """A folder whose holder has died, with something in it."""
    folder = LockedFolder(kind, parent)
    (folder.path / "file").write_text("x")
    os.close(folder._descriptor)
    return folder.path


def test_what_nobody_holds_is_removed_when_the_next_is_made(tmp_path):
    old = left_over(tmp_path)
    new = LockedFolder("weights", tmp_path)
    assert (old.exists(), new.path.exists()) == (False, True)
    new.remove()
    assert not new.path.exists()


def test_what_somebody_holds_stays(tmp_path):
    held = LockedFolder("weights", tmp_path)
    other = LockedFolder("weights", tmp_path)
    assert held.path.exists()
    held.remove()
    other.remove()


def test_one_that_another_service_sweeps_before_it_is_held_is_made_anew(tmp_path, monkeypatch):
    make, made = tempfile.mkdtemp, []

    def swept_at_first(*names):
        made.append(Path(make(*names)))
        if len(made) == 1:
            made[0].rmdir()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept_at_first)
    folder = LockedFolder("weights", tmp_path)
    assert [folder.path] == [one for one in made if one.exists()]
    folder.remove()


def test_other_kinds_links_and_files_are_left_alone(tmp_path):
    kept = left_over(tmp_path, "sockets")
    (tmp_path / "gramophone-file.weights").write_text("x")
    (tmp_path / "gramophone-link.weights").symlink_to(kept)
    LockedFolder("weights", tmp_path).remove()
    assert (kept / "file").exists()
    assert (tmp_path / "gramophone-file.weights").exists()
    assert (tmp_path / "gramophone-link.weights").exists()


def test_a_folder_of_somebody_s_with_such_a_name_is_left_alone(tmp_path):
    theirs = tmp_path / "gramophone-weights-of-mine"
    theirs.mkdir()
    LockedFolder("weights", tmp_path).remove()
    assert theirs.exists()

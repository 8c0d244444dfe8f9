"""Progress output for people."""

import os
import pty
import re
import subprocess
import sys

import pytest

from models.errors import InputError
from models.training_status import TrainingStatus, read_statuses
from training.progress import LogProgress, TerminalProgress, _duration, console_progress, shown_progress

NOTE = "loss 6.21, valid ppl 399.2, 3,986 tokens/s"


def test_a_bar_has_room_for_time_and_note_on_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    progress = TerminalProgress()
    progress.start("training LSTM", 100.0)
    progress.advance(50, NOTE)
    progress.finish()
    shown = capsys.readouterr().err
    assert re.search(r"training LSTM .* 100% +0:00:00 " + re.escape(NOTE), shown)


def test_a_plain_line_says_how_far_how_fast_and_how_long(capsys, monkeypatch):
    monkeypatch.setattr("training.progress.LogProgress._interval_s", 0.0)
    progress = LogProgress()
    progress.start("reading text", 4)
    progress.advance(0.5)
    progress.advance(0.5, "half way soon")
    progress.finish()
    _, line, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"reading text:  25% at [\d.]+[kMG]?/s, 0 s left · half way soon", line)
    assert re.fullmatch(r"reading text: done in 0\.0 s · half way soon", last)


def test_resumed_progress_does_not_count_for_the_rate(capsys, monkeypatch):
    """The remaining time of a run resumed at 90 % uses only the current rate."""
    clock = iter([0.0, 1.0, 61.0])
    monkeypatch.setattr("training.progress.time.monotonic", lambda: next(clock))
    progress = LogProgress()
    progress.start("training", 100.0)
    progress.advance(90)
    progress.advance(1)
    assert capsys.readouterr().err == "training:  91%, 9 min left\n"


@pytest.mark.parametrize(("seconds", "shown"), [(45.4, "45 s"), (700.0, "12 min"), (12600.0, "3.5 h")])
def test_time_left_is_told_in_fitting_units(seconds, shown):
    assert _duration(seconds) == shown


def test_an_error_amid_a_stage_leaves_the_terminal_its_cursor(monkeypatch):
    terminal, end = pty.openpty()
    program = "import training.progress as c; c.TerminalProgress().start('reading', 10); raise SystemExit(2)"
    monkeypatch.setenv("TERM", "xterm")
    subprocess.run([sys.executable, "-c", program], stderr=end, check=False, timeout=60)
    os.close(end)
    shown = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert shown.index("\x1b[?25l") < shown.rindex("\x1b[?25h")  # cursor hidden, then shown


def test_services_of_the_registry_are_told_the_stage_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("training.progress.StatusProgress._interval_s", 0.0)
    with shown_progress(tmp_path, "mixture") as progress:
        progress.start("training the lstm network", 100.0)
        assert read_statuses(tmp_path) == [TrainingStatus("mixture", "training the lstm network")]
        progress.advance(25, "perplexity 99")
        progress.advance(25)
        (status,) = read_statuses(tmp_path)
        assert status.done == 0.5
        assert 0 < status.seconds_left < 10
        progress.finish()
    assert read_statuses(tmp_path) == []
    assert "perplexity 99" in capsys.readouterr().err


def test_a_training_that_fails_is_no_longer_told(tmp_path):
    def fail():
        with shown_progress(tmp_path, "mixture") as progress, progress.stage("reading text"):
            raise InputError("no text")

    with pytest.raises(InputError):
        fail()
    assert read_statuses(tmp_path) == []


@pytest.mark.parametrize(("is_foreground", "kind"), [(True, TerminalProgress), (False, LogProgress)])
def test_only_a_process_in_the_foreground_of_a_terminal_draws_a_bar(monkeypatch, is_foreground, kind):
    terminal, end = pty.openpty()
    with open(end, "w") as stream:  # noqa: PTH123 - a descriptor
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp() + (not is_foreground))
        assert isinstance(console_progress(), kind)
    os.close(terminal)


def test_another_session_s_terminal_gets_lines(monkeypatch):
    terminal, end = pty.openpty()  # not the controlling terminal of this process
    with open(end, "w") as stream:  # noqa: PTH123 - a descriptor
        monkeypatch.setattr(sys, "stderr", stream)
        assert isinstance(console_progress(), LogProgress)
    os.close(terminal)

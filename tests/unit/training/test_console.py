"""Progress output for people."""

import os
import pty
import re
import subprocess
import sys

import pytest

from training.progress import LogProgress, TerminalProgress, _duration

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
    monkeypatch.setattr("training.progress._LOG_INTERVAL_S", 0.0)
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

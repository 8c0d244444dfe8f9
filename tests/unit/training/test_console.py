"""Progress for people."""

import re

from training.console import LogProgress, TerminalProgress

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
    monkeypatch.setattr("training.console._LOG_EVERY_S", 0.0)
    progress = LogProgress()
    progress.start("reading text", 4)
    progress.advance(1, "half way soon")
    progress.finish()
    line, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"reading text:  25% at [\d.]+[kMG]?/s, 0 s left · half way soon", line)
    assert re.fullmatch(r"reading text: done in 0\.0 s · half way soon", last)

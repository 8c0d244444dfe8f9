"""`gramophone bench` with a failing service, and its progress output."""

import sys
import time

from service.bench.plan import ClosedLoop, LoadSettings, OpenLoop
from service.bench.results import Observation, Recording
from service.console.bench import LoadProgress
from tests.support.http import answering, whole


def test_a_load_that_nobody_answers_is_a_failure(typed):
    async def once(writer, number, _request):
        status = "500 Internal Server Error" if number else "200 OK"
        writer.write(whole(b'{"detail": "out of order"}', status))

    with answering(once) as url:
        code, out, err = typed("bench", url, "--clients", "1", "--requests", "3", "--warmup", "0")
    assert code == 1
    assert "3 http_500: out of order" in out
    assert "no request got a reply" in err


def half_done(load, **terms):
    recording = Recording(load, LoadSettings(**terms), window_start_s=time.perf_counter() - 5)
    recording.examples["http_429"] = "full"
    for _ in range(10):
        recording.add(Observation(time.perf_counter(), time.perf_counter()))
    return recording


def test_a_terminal_shows_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with LoadProgress() as progress:
        progress._written_s -= 0.1
        progress(half_done(OpenLoop(20), duration_s=10))
        assert "━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌ 20/s:  50%, 5 s left · 10 replies, http_429" in capsys.readouterr().err
    assert capsys.readouterr().err == "\r\x1b[K"


def test_a_log_gets_a_line_now_and_then(capsys):
    progress = LoadProgress()
    progress(half_done(ClosedLoop(4), num_requests=20))
    assert not capsys.readouterr().err
    progress._written_s -= 10
    progress(half_done(ClosedLoop(4), num_requests=20))
    assert capsys.readouterr().err == "4 clients:  50% · 10 replies, http_429\n"

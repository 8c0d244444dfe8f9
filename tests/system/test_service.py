"""The service as a process: shutdown, failed starts, a moved alias."""

import signal
import subprocess
import threading

import httpx
import pytest

from tests.system.conftest import GRAMOPHONE


def test_it_finishes_what_is_under_way_when_told_to_stop(start):
    process, url = start()
    replies = []

    def ask():
        request = {"prompt": "Return", "max_tokens": 300, "seed": 1, "temperature": 3.0, "model": "ngram"}
        replies.append(httpx.post(f"{url}/v1/generate", json=request, timeout=30))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    while httpx.get(f"{url}/metrics").text.count("gramophone_num_requests_running 0.0"):
        if replies:
            break
    process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    assert {reply.status_code for reply in replies} <= {200, 503}
    assert 200 in {reply.status_code for reply in replies}
    assert process.wait(timeout=30) in {0, -signal.SIGTERM}


def test_a_port_that_is_taken_is_one_line_and_exit_code_2(served, default_models):
    port = served.rpartition(":")[2]
    command = [*GRAMOPHONE, "serve", "--registry", str(default_models), "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"GRAMOPHONE_PORT": "many"}, "GRAMOPHONE_PORT is 'many'"),
        ({"GRAMOPHONE_PROT": "8000"}, "GRAMOPHONE_PROT"),
        ({"GRAMOPHONE_REGISTRY": "/nosuch/registry"}, "no registry at /nosuch/registry"),
        ({"GRAMOPHONE_MODELS": "nosuch"}, "no model 'nosuch'"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(default_models, variables, said):
    import os

    environment = {**os.environ, "GRAMOPHONE_REGISTRY": str(default_models), **variables}  # noqa: TID251 - a child's environment
    done = subprocess.run(
        [*GRAMOPHONE, "serve"], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["next lstm --json", "next ngram", "score ngram", "models show ngram"])
def test_a_terminal_a_disk_or_an_input_that_fails_is_no_traceback(default_models, command):
    """Output to a full disk, closed input, and an ASCII-only terminal."""
    python = f"{' '.join(GRAMOPHONE)} {command} --registry {default_models}"
    environment = {"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"}
    for shell in (f"{python} >/dev/full </dev/null", f"{python} <&-"):
        done = subprocess.run(
            ["sh", "-c", shell], capture_output=True, text=True, env=environment, check=False
        )
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        assert len(done.stderr.splitlines()) <= 1

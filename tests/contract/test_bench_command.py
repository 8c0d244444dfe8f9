"""`gramophone bench` against a real service."""

import json
from functools import partial

import httpx
import pytest
from structlog.testing import capture_logs

from service.api_keys import create_key
from service.bench.workloads import WORKLOADS
from service.settings import Settings
from tests.support.services import running, typed_line

QUICK = ["--requests", "20", "--warmup", "0"]
pytestmark = pytest.mark.timeout(method="thread")  # the clock uses the alarm signal of the default method


@pytest.fixture(scope="module", autouse=True)
def _silent_service():
    """Silence the service: it runs in this process and would log to the command's output."""
    with capture_logs():
        yield


@pytest.fixture
def bench(capsys, monkeypatch):
    """Run `gramophone bench …` as from a shell; return exit code, standard output, standard error."""
    return partial(typed_line, capsys, monkeypatch, "bench")


@pytest.fixture
def measured(bench, server):
    """Run the command against the service; return the runs of its JSON output."""

    def run(*argv):
        code, out, err = bench(server.url, "--json", *QUICK, *argv)
        assert code == 0, err
        return json.loads(out)["runs"]

    return run


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_is_answered(measured, workload):
    (run,) = measured("--workload", workload, "--model", "mixture", "--clients", 4)
    assert (run["requests"], run["answered"], run["errors"]) == (20, 20, {})
    assert run["achieved_per_s"] > 0
    assert run["latency_ms"]["p50"] > 0


@pytest.mark.parametrize("workload", ["generate", "completions"])
def test_tokens_are_counted_as_the_service_counts_them(measured, server, workload):
    def generated():
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
        return sum(
            float(line.split()[1]) for line in lines if line.startswith("gramophone_generation_tokens_total")
        )

    before = generated()
    (run,) = measured("--workload", workload, "--model", "chars", "--max-tokens", 9, "--clients", 2)
    # the warm-up probe is the 21st request
    assert run["tokens_per_s"] * run["duration_s"] == pytest.approx((generated() - before) * 20 / 21)
    assert run["ttft_ms"]["count"] == 20
    assert run["itl_ms"]["count"] == 20 * 8


def test_an_open_loop_sends_what_it_is_told(measured):
    (run,) = measured("--rate", "100", "--arrivals", "constant")
    assert run["offered_per_s"] == 100
    assert run["sent_per_s"] == pytest.approx(100, rel=0.3)


def test_typists_press_a_key_after_each_pause(measured, bench, server):
    options = ["--typists", "4", "--pause", "50ms", "--model", "chars"]
    (run,) = measured(*options)
    assert (run["typists"], run["offered_per_s"], run["arrivals"], run["requests"]) == (
        4,
        80,
        "constant",
        20,
    )
    assert run["answered"] + sum(error["count"] for error in run["errors"].values()) == 20
    assert set(run["errors"]) <= {"http_409"}  # a reply took more than the pause
    code, out, _ = bench(server.url, *QUICK, *options)
    assert code == 0
    assert next(line.split()[:2] for line in out.splitlines() if "typists" in line) == [
        "4",
        "typists",
    ]


def test_a_key_before_the_reply_to_the_last_is_a_refusal_of_that(measured):
    (run,) = measured("--typists", "1", "--pause", "1us", "--model", "mixture")
    assert run["errors"]["http_409"]["count"] > 0
    assert "newer" in run["errors"]["http_409"]["example"]


def test_people_get_tables(bench, server):
    options = ["--workload", "generate", "--model", "chars", "--max-tokens", 4]
    code, out, _ = bench(server.url, *QUICK, *options, "--clients", 2)
    assert code == 0
    assert next(line.split()[:2] for line in out.splitlines() if "clients" in line) == [
        "2",
        "clients",
    ]
    assert all(title in out for title in ("answers/s", "first token", "between tokens"))


def test_bodies_of_a_file_go_to_the_url_as_they_stand(bench, server, tmp_path):
    (tmp_path / "bodies.jsonl").write_text('{"texts": ["the cat"]}\n{"texts": [""]}\n')
    url = f"{server.url}/v1/score"
    code, out, _ = bench(url, "--body", tmp_path / "bodies.jsonl", "--clients", 1, "--json", *QUICK)
    (run,) = json.loads(out)["runs"]
    assert code == 0
    assert (run["answered"], run["errors"]["http_400"]["count"]) == (10, 10)
    assert "texts[0] is empty" in run["errors"]["http_400"]["example"]


def test_a_key_is_an_option_or_in_the_environment(bench, registry, monkeypatch):
    key = create_key("load", ["infer"])
    with running(Settings(registry=registry.root, models=("mixture",), api_keys=(key.key.line,))) as server:
        code, _, err = bench(server.url, *QUICK, "--clients", 1)
        assert (code, err.count("\n")) == (1, 1)
        assert "got status 401" in err
        assert bench(server.url, *QUICK, "--clients", 1, "--key", key.secret)[0] == 0
        monkeypatch.setenv("GRAMOPHONE_API_KEY", key.secret)
        assert bench(server.url, *QUICK, "--clients", 1)[0] == 0


def test_nobody_there_ends_it_at_once(bench):
    code, out, err = bench("http://127.0.0.1:1", "--rate", 10)
    assert (code, out) == (1, "")
    assert "POST /v1/next-token at 127.0.0.1:1 got no reply" in err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "--rate (requests per second"),
        (["--rate", "5", "--clients", "5"], "--rate (requests per second"),
        (["--rate", "0"], "rate is 0"),
        (["--clients", "1", "--duration", "5"], "duration is '5'"),
        (
            ["--clients", "1", "--duration", "5s", "--requests", "5"],
            "either a duration or a number",
        ),
        (["--clients", "1", "--workload", "chat"], "workload is 'chat'"),
        (
            ["--clients", "1", "--workload", "score", "--body", "pyproject.toml"],
            "--workload shapes requests",
        ),
        (["--typists", "0"], "typists is 0; it must be at least 1"),
        (["--typists", "-3"], "typists is -3; it must be at least 1"),
        (
            ["--typists", "5", "--rate", "5"],
            "--clients (who wait for replies) and --typists",
        ),
        (["--typists", "5", "--pause", "0"], "pause is 0 s; it must be above 0"),
        (
            ["--clients", "1", "--pause", "1s"],
            "--pause is 1s, but it is a time between keys of --typists",
        ),
        (
            ["--typists", "1", "--workload", "score"],
            "--typists requires --workload autocomplete, given score",
        ),
        (
            ["--typists", "1", "--body", "pyproject.toml"],
            "--typists shapes requests of a workload",
        ),
        (
            ["--clients", "1", "--body", "pyproject.toml"],
            "pyproject.toml: line 1 is not JSON",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(bench, options, problem):
    code, out, err = bench("http://127.0.0.1:1", *options)
    assert (code, out) == (2, "")
    assert problem in err
    assert err.count("\n") == 1


def test_a_bad_url_is_refused(bench):
    assert bench("localhost:8000", "--rate", 5)[0] == 2

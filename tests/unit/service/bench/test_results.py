"""Summaries of recorded requests; parsing of times and loads."""

import math
import statistics
from array import array

import numpy as np
import pytest

from models.errors import FormatError, InputError
from service.bench.plan import ClosedLoop, LoadSettings, OpenLoop, parse_duration_s
from service.bench.results import Observation, Percentiles, Recording, summarise_load
from service.bench.workloads import parse_fields, read_bodies


def seen(due, ended, *, late=0.0, error=None, tokens=(), status=200):
    """Observation of a request with a due time, and of its reply with token times."""
    observation = Observation(due, due + late, sent_s=due + late, ended_s=ended, status=status, error=error)
    observation.token_times_s, observation.num_tokens = array("d", tokens), len(tokens)
    return observation


def recording(*observations, load=OpenLoop(100), began_s=10.0, **terms):  # noqa: B008 - frozen
    made = Recording(
        load, LoadSettings(**(terms or {"duration_s": 2.0})), began_s - 1, began_s, began_s + 2.5
    )
    made.examples = {one.error: "what it said" for one in observations if one.error}
    for observation in observations:
        made.add(observation)
    return made


def test_percentiles_are_those_of_the_values():
    values = np.random.default_rng(0).gamma(2, size=2000)
    spread = Percentiles.of(values)
    cuts = statistics.quantiles(values, n=1000, method="inclusive")
    expected = (cuts[499], cuts[899], cuts[989], cuts[998], values.max(), values.mean())
    found = (spread.p50, spread.p90, spread.p99, spread.p999, spread.max, spread.mean)
    assert found == pytest.approx(1e3 * np.array(expected))


@pytest.mark.parametrize(("count", "known"), [(9, []), (10, ["p90"]), (999, ["p90", "p99"])])
def test_percentiles_beyond_the_values_are_not_made_up(count, known):
    told = Percentiles.of(range(count)).model_dump(by_alias=True)
    assert [name for name in ("p90", "p99", "p99.9") if told[name] is not None] == known


def test_nothing_has_no_spread():
    assert Percentiles.of([]) is None


def test_latency_counts_from_when_a_request_was_due():
    summary = summarise_load(recording(seen(10, 10.5, late=0.4), seen(11, 11.1)))
    assert summary.latency_ms.max == pytest.approx(500)
    assert summary.generator.lateness_ms.max == pytest.approx(400)


def test_the_warm_up_is_not_counted():
    summary = summarise_load(recording(seen(9.5, 9.9), seen(10, 10.1), seen(11, 11.1)))
    assert (summary.requests, summary.achieved_per_s) == (2, 1.0)
    assert summary.latency_ms.max == pytest.approx(100)


def test_answers_that_come_too_late_are_not_achieved():
    """An overloaded service answers every request eventually, but below the offered rate."""
    summary = summarise_load(recording(seen(10, 10.1), seen(11, 11.1), seen(11, 12.3), seen(11, 12.4)))
    assert (summary.sent_per_s, summary.achieved_per_s) == (2.0, 1.0)
    assert summary.answered == 4


def test_errors_are_counted_by_kind_and_have_no_latency():
    failed = [seen(10, 10.001, error="http_429", status=429)] * 3 + [seen(10, 10.001, error="cut")]
    summary = summarise_load(recording(seen(10, 10.5), *failed))
    assert {kind: error.count for kind, error in summary.errors.items()} == {"http_429": 3, "cut": 1}
    assert summary.rejected_share == 0.6
    assert summary.latency_ms.count == 1


def test_timed_out_request_counts_with_its_timeout():
    summary = summarise_load(recording(seen(10, 10.1), seen(10, 12.0, error="timeout", status=0)))
    assert summary.latency_ms.max == pytest.approx(2000)
    assert summary.answered == 1


def test_streams_have_times_of_tokens():
    summary = summarise_load(
        recording(seen(10, 10.4, tokens=[10.1, 10.2, 10.4]), seen(10, 10.3, tokens=[10.3]))
    )
    assert summary.ttft_ms.max == pytest.approx(300)
    assert (summary.itl_ms.count, summary.itl_ms.max) == (2, pytest.approx(200))
    assert (summary.tpot_ms.count, summary.tpot_ms.mean) == (1, pytest.approx(150))
    assert summary.tokens_per_s == pytest.approx(4 / 2)


def test_only_tokens_of_the_time_measured_are_counted():
    summary = summarise_load(recording(seen(9, 12.6, tokens=[9.5, 10.5, 11.5, 12.5])))
    assert summary.tokens_per_s == pytest.approx(2 / 2)


def test_lateness_of_the_generator_makes_figures_invalid():
    assert summarise_load(recording(seen(10, 10.1, late=0.01))).valid
    doubtful = summarise_load(recording(seen(10, 10.1, late=0.05)))
    assert not doubtful.valid
    assert "fell behind its schedule: at p99 by 50.00 ms" in doubtful.invalid_because[0]


def test_waiting_for_connections_makes_figures_invalid():
    crowded = recording(*[seen(10, 10.1)] * 100, duration_s=2.0, max_connections=3)
    crowded.num_waited = 1
    assert summarise_load(crowded).valid
    crowded.num_waited = 2
    assert (
        "2 of 100 requests waited for one of the 3 connections" in summarise_load(crowded).invalid_because[0]
    )


def test_a_generator_without_time_to_spare_makes_figures_invalid():
    busy = recording(seen(10, 10.1), load=ClosedLoop(1))
    busy.cpu_s = 0.95 * (busy.ended_s - busy.started_s)
    assert "95% of a core" in summarise_load(busy).invalid_because[0]


def test_programs_get_it_as_json():
    told = summarise_load(recording(seen(10, 10.5))).model_dump(by_alias=True)
    assert (told["load"], told["offered_per_s"], told["clients"]) == ("open", 100, None)
    assert told["latency_ms"]["p50"] == pytest.approx(500)
    assert told["ttft_ms"] is None
    assert told["valid"] is True


def test_an_interrupted_run_is_as_long_as_it_was():
    short = recording(seen(10, 10.1), duration_s=60.0)
    short.interrupted = True
    assert summarise_load(short).duration_s == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("text", "seconds"), [("250us", 250e-6), ("50ms", 0.05), (".5s", 0.5), ("1.5min", 90.0), ("0", 0.0)]
)
def test_times_have_units(text, seconds):
    assert parse_duration_s(text, "warmup") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["10", "", "ms", "-1s", "1 s", "1h", "nan", f"{'9' * 400}s"])
def test_invalid_duration_is_refused_by_name(text):
    with pytest.raises(InputError, match=r"warmup is .*such as 200ms"):
        parse_duration_s(text, "warmup")


def test_fields_are_json_and_else_text():
    fields = parse_fields(["n=2", 'stop=["."]', "model=lstm@3", "user=a=b"])
    assert fields == {"n": 2, "stop": ["."], "model": "lstm@3", "user": "a=b"}
    with pytest.raises(InputError, match="NAME=JSON"):
        parse_fields(["n"])


@pytest.mark.parametrize(
    ("content", "bodies"),
    [('{\n "a": 1\n}\n', [b'{\n "a": 1\n}']), ('{"a": 1}\n\n{"a": 2}\n', [b'{"a": 1}', b'{"a": 2}'])],
)
def test_a_file_holds_one_body_or_one_a_line(tmp_path, content, bodies):
    (tmp_path / "bodies").write_text(content)
    assert [request.body for request in read_bodies(tmp_path / "bodies")] == bodies


@pytest.mark.parametrize(("content", "problem"), [('{"a": 1}\n{"a"\n', "line 2"), (" \n", "is empty")])
def test_a_file_of_other_things_is_refused_with_the_place(tmp_path, content, problem):
    (tmp_path / "bodies").write_text(content)
    with pytest.raises(FormatError, match=problem):
        read_bodies(tmp_path / "bodies")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(FormatError, match="No such file"):
        read_bodies(tmp_path / "bodies")


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf, 2e6])
def test_a_rate_is_a_number_above_nothing(rate):
    with pytest.raises(InputError, match="rate is"):
        OpenLoop(rate)


def test_there_is_a_client_at_least():
    with pytest.raises(InputError, match="clients is 0"):
        ClosedLoop(0)


@pytest.mark.parametrize("terms", [{}, {"duration_s": 1, "num_requests": 1}, {"duration_s": 0}])
def test_a_load_ends_by_time_or_by_number(terms):
    with pytest.raises(InputError):
        LoadSettings(**terms)

"""What people write: times, objectives, fields, bodies, loads."""

import math

import pytest

from models.errors import FormatError, InvalidInputError
from service.bench.plan import ClosedLoop, LoadSettings, OpenLoop, parse_duration_s
from service.bench.results import Objective, parse_objective
from service.bench.workloads import parse_fields, read_bodies


@pytest.mark.parametrize(
    ("text", "seconds"), [("250us", 250e-6), ("50ms", 0.05), (".5s", 0.5), ("1.5min", 90.0), ("0", 0.0)]
)
def test_times_have_units(text, seconds):
    assert parse_duration_s(text, "warmup") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["10", "", "ms", "-1s", "1 s", "1h", "nan", f"{'9' * 400}s"])
def test_what_is_no_time_is_refused_by_name(text):
    with pytest.raises(InvalidInputError, match=r"warmup is .*such as 200ms"):
        parse_duration_s(text, "warmup")


def test_an_objective_is_a_figure_and_its_limit():
    assert parse_objective("ttft=50ms") == Objective("ttft", 0.05)


@pytest.mark.parametrize("text", ["speed=50ms", "ttft", "ttft=50", "=50ms", "ttft=fast"])
def test_other_objectives_are_refused(text):
    with pytest.raises(InvalidInputError, match="objective"):
        parse_objective(text)


def test_fields_are_json_and_else_text():
    fields = parse_fields(["n=2", 'stop=["."]', "model=lstm@3", "user=a=b"])
    assert fields == {"n": 2, "stop": ["."], "model": "lstm@3", "user": "a=b"}
    with pytest.raises(InvalidInputError, match="NAME=JSON"):
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
    with pytest.raises(InvalidInputError, match="rate is"):
        OpenLoop(rate)


def test_there_is_a_client_at_least():
    with pytest.raises(InvalidInputError, match="clients is 0"):
        ClosedLoop(0)


@pytest.mark.parametrize("terms", [{}, {"duration_s": 1, "num_requests": 1}, {"duration_s": 0}])
def test_a_load_ends_by_time_or_by_number(terms):
    with pytest.raises(InvalidInputError):
        LoadSettings(**terms)

"""Every benchmark runs without arguments, and `make bench` runs all of them even if one fails."""

import argparse
import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

from models.language_model import Vocabulary, pad_sequences, score_sequences
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network

FOLDER = Path(__file__).parents[1] / "benchmarks"
NAMES = sorted(path.stem for path in FOLDER.glob("bench_*.py"))
MADE_UP = {
    "bench_a": "print('3.5 x the peer'); print('more')",
    "bench_b": "raise ValueError('broken')",
    "bench_c": "from preparation import leave_out; leave_out('no CUDA device')",
    "bench_d": "import time; print('begins'); time.sleep(60)",
    "bench_e": "print('left out: LitServe'); print('the last line')",
}


class ParsedError(Exception):
    """Raised instead of running: every argument has a default."""


@pytest.fixture
def driver(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    return importlib.import_module("run")


@pytest.fixture
def run(driver, monkeypatch, tmp_path, capfd):
    """Run the driver over made-up benchmarks; return its status, the table's lines by name, and the last line."""
    for name, source in MADE_UP.items():
        (tmp_path / f"{name}.py").write_text(source)
    plans = {"bench_a": driver.Plan(headline="peer"), "bench_e": driver.Plan(long_only="it takes hours")}
    monkeypatch.setattr(driver, "PLANS", plans)

    def main(*arguments):
        status = driver.main(["--limit", "4", *arguments], scripts=tmp_path)
        *rows, last = capfd.readouterr().out.partition("\nbenchmark ")[2].splitlines()[1:]
        return status, {row.split()[0]: row for row in rows}, last

    return main


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_needs_no_arguments_and_tells_its_options(driver, monkeypatch, name):
    parse = argparse.ArgumentParser.parse_args

    def parse_nothing(parser):
        assert parser.format_help()
        parse(parser, [])
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_nothing)
    with pytest.raises(ParsedError):
        importlib.import_module(name).main()


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_gives_arguments_that_the_benchmark_takes(driver, monkeypatch, tmp_path, name):
    plan = driver.PLANS.get(name, driver.Plan())
    given = [*plan.short.split(), *(["--registry", str(tmp_path)] if plan.models else [])]
    parse = argparse.ArgumentParser.parse_args

    def parse_given(parser):
        parse(parser, given)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_given)
    with pytest.raises(ParsedError):
        importlib.import_module(name).main()


def test_every_plan_is_of_a_benchmark(driver):
    assert set(driver.PLANS) <= set(NAMES)


def test_a_run_goes_on_after_failures_and_fails(run):
    status, rows, last = run("--long")
    assert status == 1
    assert list(rows) == list(MADE_UP)
    assert "FAILED" in rows["bench_b"]
    assert rows["bench_b"].endswith("ValueError: broken")
    assert "FAILED" in rows["bench_d"]
    assert "stopped after" in rows["bench_d"]
    assert last.endswith("2 done, 1 left out, 2 FAILED")


def test_omitted_benchmarks_are_reported_without_failure(run):
    status, rows, _ = run("--only", "bench_a", "bench_c", "bench_e")
    assert status == 0
    assert rows["bench_a"].endswith("3.5 x the peer")
    assert rows["bench_c"].endswith("no CUDA device")
    assert "left out" in rows["bench_e"]
    assert "it takes hours: make bench LONG=1 ONLY=bench_e" in rows["bench_e"]
    _, rows, _ = run("--long", "--only", "bench_e")
    assert rows["bench_e"].endswith("the last line (left out: LitServe)")


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("int8", 0.1)])
def test_peers_compute_our_network(driver, precision, tolerance):
    torch.manual_seed(0)
    network = Network(NetworkConfig(layers=2, embedding_size=32, hidden_size=32), 50)
    torch.nn.init.normal_(network.output.weight)  # far from uniform
    tensors = {name: tensor.detach() for name, tensor in network.state_dict().items()}
    peer = importlib.import_module("peers.network").TorchNetwork(tensors, precision)
    ours, texts = NeuralModel(network, Vocabulary([f"w{i}" for i in range(47)])), [[7, 9, 30, 4], [12, 40]]
    expected = score_sequences(ours, ours.initial_state(2), *pad_sequences(texts))
    np.testing.assert_allclose(peer.score(texts), expected.sum(axis=1), atol=tolerance)
    together = peer.generate(texts, 5, [1, 2])
    assert [len(set(ids) & {0, 1, 2}) for ids in together] == [0, 0]
    if precision == "float32":
        assert together == [peer.generate([text], 5, [seed])[0] for seed, text in enumerate(texts, 1)]

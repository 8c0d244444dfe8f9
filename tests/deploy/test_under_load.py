"""The real deployment without containers: a service under the bundled load test, scraped by a real Prometheus.

Every panel of the dashboards must then show data, and every rule must use existing series.
"""

import subprocess

import httpx
import pytest
import yaml

from service.api_keys import KeyScope, create_key
from tests.deploy.monitoring import FOLDER, metrics, monitoring, queries
from tests.deploy.tools import GRAMOPHONE, PATH, ROOT, serving_processes, train_small

QUERIES = queries("30s")
SMALL = (
    "tokenizer.vocab_size=1000",
    "train.max_steps=5",
    "neural.hidden_size=32",
    "neural.embedding_size=32",
    "mixture.drop_unused=false",
)
RULES = [
    rule for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]
]


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """Train models like those of `gramophone quickstart`, but small."""
    folder = tmp_path_factory.mktemp("deploy") / "registry"
    options = ["--name", "mixture", "--corpus", "README.md", "--registry", str(folder)]
    settings = [f"--set={setting}" for setting in SMALL]
    subprocess.run([*GRAMOPHONE, "train", "quickstart", *options, *settings], check=True, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def monitor(registry, tmp_path_factory):
    """Run the bundled load test (15 requests per second, 12 s) on a service of two processes, scraped by Prometheus."""
    with serving_processes(registry, ["loaded"], WORKERS="2") as services:
        ((_, port),) = services.values()
        with monitoring(port, tmp_path_factory.mktemp("prometheus") / "data") as prometheus:
            load = ["deploy/load_test/run.sh", f"http://127.0.0.1:{port}", "15", "12s"]
            subprocess.run(load, cwd=ROOT, env={"PATH": PATH, "HOME": "/tmp"}, check=True)  # noqa: S108
            yield prometheus


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_every_panel_shows_something(monitor, query):
    assert monitor.ask(query.expression)


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_every_metric_of_a_panel_is_exported(monitor, query):
    assert metrics(query.expression) <= monitor.names()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_every_metric_of_a_rule_is_exported(monitor, rule):
    assert metrics(rule["expr"]) <= monitor.names()


def test_every_recorded_series_is_recorded(monitor):
    for rule in RULES:
        if "record" in rule:
            assert monitor.wait_for(rule["record"])


def test_rules_are_evaluated_without_errors_and_nobody_is_alarmed(monitor):
    rules = monitor.rules()
    assert len(rules) == len(RULES)
    assert {rule["health"] for rule in rules} == {"ok"}
    assert {rule["name"] for rule in rules if rule.get("state") == "firing"} == set()


@pytest.mark.parametrize(
    "endpoint", ["next-token", "autocomplete", "score", "check", "rerank", "generate", "completions"]
)
def test_the_load_test_asks_all_that_clients_ask(monitor, endpoint):
    assert monitor.ask(f'gramophone_http_requests_total{{handler="/v1/{endpoint}", status="200"}} >= 2')


@pytest.mark.parametrize("status", ["400", "404"])
def test_the_load_test_makes_mistakes_too(monitor, status):
    assert monitor.ask(f'gramophone_http_requests_total{{handler="/v1/score", status="{status}"}}')


def test_a_load_test_of_a_service_that_is_not_there_fails():
    command = ["deploy/load_test/run.sh", "http://127.0.0.1:9", "10", "1s"]
    done = subprocess.run(command, cwd=ROOT, env={"PATH": PATH}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "run.sh: no answer to " in done.stderr


def test_prometheus_shows_its_key_to_a_service_that_asks_for_one(tmp_path, monkeypatch):
    made = create_key("prometheus", {KeyScope.METRICS})
    train_small(tmp_path / "registry")
    with serving_processes(tmp_path / "registry", ["locked"], API_KEYS=made.key.line) as services:
        ((_, port),) = services.values()
        assert httpx.get(f"http://127.0.0.1:{port}/metrics").status_code == 401
        with monitoring(port, tmp_path / "prometheus", key=made.secret) as prometheus:
            assert prometheus.wait_for('up{job="gramophone"} == 1')

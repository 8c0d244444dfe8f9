"""Grafana dashboards and their provisioning; Prometheus' configuration and rules under promtool."""

import itertools
import json
import warnings

import pytest
import yaml

from tests.deploy.monitoring import boards, panels, queries
from tests.deploy.tools import ROOT, run, tool

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the package's own warnings
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

BOARDS = boards()
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in panels(board)]
each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=list(BOARDS))
each_panel = pytest.mark.parametrize(
    "panel", [p for _, p in PANELS], ids=[f"{n}-{p['title']}" for n, p in PANELS]
)


def covered(panel):
    """Return the grid squares of a panel."""
    place = panel["gridPos"]
    columns = range(place["x"], place["x"] + place["w"])
    return set(itertools.product(columns, range(place["y"], place["y"] + place["h"])))


@each_board
def test_grafanas_own_types_know_every_field(board):
    register_default_plugins()
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    assert lost(board, read) == []


def lost(wanted, read, place=""):
    """Return the places where a document's value is missing or different in another."""
    if isinstance(wanted, dict) and isinstance(read, dict):
        return [at for key, value in wanted.items() for at in lost(value, read.get(key), f"{place}.{key}")]
    if isinstance(wanted, list) and isinstance(read, list) and len(wanted) == len(read):
        pairs = enumerate(zip(wanted, read, strict=True))
        return [at for i, (one, other) in pairs for at in lost(one, other, f"{place}[{i}]")]
    return [] if wanted == read else [place]


@each_board
def test_panels_have_ids_and_places_of_their_own(board):
    ids = [panel["id"] for panel in board["panels"]]
    squares = [square for panel in board["panels"] for square in covered(panel)]
    assert len(set(ids)) == len(ids)
    assert len(set(squares)) == len(squares)
    assert max(column for column, _ in squares) < 24


def test_dashboards_have_ids_of_their_own():
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)


@each_panel
def test_a_panel_says_what_it_shows_and_in_what_unit(panel):
    assert panel["title"]
    assert panel["description"].endswith((".", ")"))
    assert panel["type"] == "table" or panel["fieldConfig"]["defaults"]["unit"]


@each_panel
def test_a_panel_asks_the_data_source_that_was_chosen(panel):
    sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)


@each_panel
def test_a_panel_is_of_the_instances_that_were_chosen(panel):
    """Queries also sum over their processes: each has a label `worker` if there are several."""
    expressions = [target["expr"] for target in panel["targets"]]
    assert all('instance=~"$instance"' in expression for expression in expressions)
    assert not any("worker" in expression for expression in expressions)


def test_every_query_is_one(tmp_path):
    rules = [{"record": f"panel:{i}", "expr": query.expression} for i, query in enumerate(queries("1m"))]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run(
        tool("promtool", "Debian's prometheus"), "check", "rules", str(file)
    )


def test_provisioning_finds_the_dashboards_where_compose_puts_them():
    provisioning = ROOT / "deploy/grafana/provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards/gramophone.yml").read_text())["providers"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    mounted = compose["services"]["grafana"]["volumes"]
    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:ro" in mounted
    assert "./deploy/grafana/provisioning:/etc/grafana/provisioning:ro" in mounted


def test_the_data_source_is_composes_prometheus_and_knows_how_often_it_scrapes():
    folder = ROOT / "deploy"
    (source,) = yaml.safe_load((folder / "grafana/provisioning/datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    scraping = yaml.safe_load((folder / "prometheus/prometheus.yml").read_text())
    assert source["url"] == "http://prometheus:9090"
    assert source["jsonData"]["timeInterval"] == scraping["global"]["scrape_interval"]


FOLDER = ROOT / "deploy/prometheus"
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
UNIT_TESTS = yaml.safe_load((FOLDER / "rules_test.yml").read_text())["tests"]


def promtool(*arguments):
    return run(tool("promtool", "Debian's prometheus"), *map(str, arguments))


def expectations(alert):
    """Return the expected results of an alert at each evaluation of the unit tests: labels, or nothing."""
    looks = [look for test in UNIT_TESTS for look in test.get("alert_rule_test", [])]
    return [look["exp_alerts"] for look in looks if look["alertname"] == alert]


def test_the_configuration_is_one(tmp_path):
    """The configuration is valid, with the container's paths replaced."""
    here = (FOLDER / "prometheus.yml").read_text()
    here = here.replace("/etc/prometheus/rules.yml", str(FOLDER / "rules.yml"))
    (key := tmp_path / "key").touch()
    (tmp_path / "prometheus.yml").write_text(here.replace("/run/secrets/metrics_key", str(key)))
    assert "SUCCESS" in promtool("check", "config", tmp_path / "prometheus.yml")


def test_the_rules_are_rules():
    promtool("check", "rules", "--lint=all", "--lint-fatal", FOLDER / "rules.yml")


def test_the_unit_tests_of_the_rules_pass():
    promtool("test", "rules", FOLDER / "rules_test.yml")


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_is_made_to_fire(alert):
    assert any(expectations(alert))


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_is_seen_silent(alert):
    assert any(not expected for expected in expectations(alert))


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_says_how_bad_it_is_and_where_to_read_on(alert):
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["runbook"] == f"deploy/RUNBOOK.md#{alert.lower()}"


@pytest.mark.parametrize("alert", ALERTS)
def test_no_alert_depends_on_the_number_of_processes(alert):
    """Alerts aggregate over the processes: each has a label `worker` if there are several."""
    expected = [labels for fired in expectations(alert) for labels in fired]
    assert not any("worker" in labels["exp_labels"] for labels in expected)

"""deploy/prometheus: the configuration and the rules, checked and tested by Prometheus' own promtool."""

import pytest
import yaml

from tests.deploy.tools import ROOT, run, tool

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
    """What the unit tests expect of an alert, each time they look: labels of those that fire, or nothing."""
    looks = [look for test in UNIT_TESTS for look in test.get("alert_rule_test", [])]
    return [look["exp_alerts"] for look in looks if look["alertname"] == alert]


def test_the_configuration_is_one(tmp_path):
    """As it stands, but for files that lie elsewhere in a container."""
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
    """Each has a label `worker` where there are several: what fires must take them together."""
    expected = [labels for fired in expectations(alert) for labels in fired]
    assert not any("worker" in labels["exp_labels"] for labels in expected)

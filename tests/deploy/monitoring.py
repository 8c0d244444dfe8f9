"""A Prometheus with the configuration of deploy/prometheus, and the queries of the Grafana dashboards."""

import contextlib
import json
import re
import subprocess
import time
from typing import NamedTuple

import httpx
import yaml

from tests.deploy.tools import QUIET, ROOT, tool, wait_until_it_answers
from tests.support.http import free_port

FOLDER = ROOT / "deploy/prometheus"


class Monitor:
    """A running Prometheus.

    Args:
        http: client of its API.
    """

    def __init__(self, http):
        self._http = http

    def ask(self, expression):
        """Return the current values of an expression with their labels, without NaN."""
        found = self._get("query", query=expression)["result"]
        pairs = ((sample["metric"], float(sample["value"][1])) for sample in found)
        return [(labels, value) for labels, value in pairs if value == value]  # noqa: PLR0124 - NaN is not itself

    def wait_for(self, expression, seconds=20.0):
        """Wait until an expression has a value."""
        deadline = time.monotonic() + seconds
        while not (found := self.ask(expression)):
            assert time.monotonic() < deadline, f"{expression} had no value in {seconds} s"
            time.sleep(0.2)
        return found

    def rules(self):
        """Return all rules with their health and the state of alerts."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def names(self):
        """Return the names of all series."""
        return set(self._get("label/__name__/values"))

    def _get(self, path, **parameters):
        reply = self._http.get(path, params=parameters).json()
        assert reply["status"] == "success", reply
        return reply["data"]


def configuration(port, key):
    """Return prometheus.yml with this test's addresses and intervals."""
    whole = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    whole["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    whole["rule_files"] = [str(FOLDER / "rules.yml")]
    (ours,) = [job for job in whole["scrape_configs"] if job["job_name"] == "gramophone"]
    ours["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    ours["authorization"]["credentials_file"] = str(key)
    whole["scrape_configs"] = [ours]
    return yaml.safe_dump(whole)


@contextlib.contextmanager
def monitoring(port, folder, key=""):
    """Run a Prometheus that scrapes the service on a port, with a key file that may be empty."""
    folder.mkdir()
    (key_file := folder / "key").write_text(key)
    (file := folder / "prometheus.yml").write_text(configuration(port, key_file))
    address = f"127.0.0.1:{free_port()}"
    command = [
        tool("prometheus", "Debian's prometheus"),
        f"--config.file={file}",
        f"--web.listen-address={address}",
    ]
    process = subprocess.Popen([*command, f"--storage.tsdb.path={folder / 'data'}"], **QUIET)
    try:
        wait_until_it_answers(f"http://{address}", process, "/-/ready")
        with httpx.Client(base_url=f"http://{address}/api/v1/", timeout=30) as http:
            yield Monitor(http)
    finally:
        process.terminate()
        process.wait(30)


FILES = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
_METRIC = re.compile(r"\b(?:gramophone|process)_\w+")


class Query(NamedTuple):
    """Expression of a panel."""

    board: str
    panel: str
    expression: str

    def __str__(self):
        return f"{self.board}: {self.panel}"


def boards():
    """Return each dashboard by its file name."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in FILES}


def panels(board):
    """Return the panels of a dashboard, without row headings."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries(rate_interval):
    """Return every expression, with the initial values of Grafana's variables."""
    values = {"$__rate_interval": rate_interval, "$instance": ".*"}
    found = []
    for name, board in boards().items():
        for panel in panels(board):
            for target in panel["targets"]:
                expression = target["expr"]
                for variable, value in values.items():
                    expression = expression.replace(variable, value)
                found.append(Query(name, panel["title"], expression))
    return found


def metrics(expression):
    """Return the service's metrics in an expression; recorded series, which have colons, are omitted."""
    return set(_METRIC.findall(re.sub(r"\w*:gramophone_[\w:]+", "", expression)))

"""Debian's Prometheus with the configuration of deploy/prometheus, scraping a service of this machine every second."""

import contextlib
import subprocess
import time

import httpx
import yaml

from tests.deploy.gramophones import QUIET, free_port, wait_until_it_answers
from tests.deploy.tools import ROOT, tool

FOLDER = ROOT / "deploy/prometheus"


class Monitor:
    """A running Prometheus.

    Args:
        http: asks its API.
    """

    def __init__(self, http):
        self._http = http

    def ask(self, expression):
        """The values of an expression now, by their labels; NaN is none."""
        found = self._get("query", query=expression)["result"]
        pairs = ((sample["metric"], float(sample["value"][1])) for sample in found)
        return [(labels, value) for labels, value in pairs if value == value]  # noqa: PLR0124 - NaN is not itself

    def wait_for(self, expression, seconds=20.0):
        """Return once an expression has a value."""
        deadline = time.monotonic() + seconds
        while not (found := self.ask(expression)):
            assert time.monotonic() < deadline, f"{expression} had no value in {seconds} s"
            time.sleep(0.2)
        return found

    def rules(self):
        """All rules with how they are and, of alerts, who fires."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def names(self):
        """Names of all series."""
        return set(self._get("label/__name__/values"))

    def _get(self, path, **parameters):
        reply = self._http.get(path, params=parameters).json()
        assert reply["status"] == "success", reply
        return reply["data"]


def configuration(port, key):
    """prometheus.yml as it stands, but for where things are and how often it looks."""
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
    """A Prometheus that has scraped the service on a port, with a file that holds a key or nothing."""
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

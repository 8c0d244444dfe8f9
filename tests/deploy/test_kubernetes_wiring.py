"""References between the resources match: selectors, ports, volumes, metrics, network."""

import pytest
import yaml

from service.app import create_app
from service.cli.options import EXIT_BAD_INPUT
from service.settings import Settings
from tests.deploy.manifests import (
    COMPONENT,
    KUBERNETES,
    OVERLAYS,
    containers,
    named,
    of_kind,
    pod_templates,
    rendered,
    selects,
)
from tests.deploy.tools import train_small

HTTP = "http"


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    registry = tmp_path_factory.mktemp("wiring") / "registry"
    train_small(registry)
    return registry


def labels_of(overlay, component):
    """Return the labels of a component's pods."""
    found = [template["metadata"]["labels"] for _, template in pod_templates(overlay)]
    return next(labels for labels in found if labels[COMPONENT] == component)


def allowed(overlay, direction, labels):
    """Return the rules that allow traffic to or from pods with these labels."""
    return [
        rule
        for policy in of_kind(overlay, "NetworkPolicy")
        if selects(policy["spec"]["podSelector"], labels)
        and direction.title() in policy["spec"]["policyTypes"]
        for rule in policy["spec"].get(direction, [])
    ]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_everything_lies_in_the_namespace(overlay):
    places = {r["metadata"].get("namespace") for r in rendered(overlay) if r["kind"] != "Namespace"}
    assert places == {"gramophone"}
    (namespace,) = of_kind(overlay, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_deployments_select_their_own_pods_and_no_others(overlay):
    for deployment in of_kind(overlay, "Deployment"):
        chosen = [
            name
            for name, template in pod_templates(overlay)
            if selects(deployment["spec"]["selector"], template["metadata"]["labels"])
        ]
        assert chosen == [deployment["metadata"]["name"]]


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("kind", ["Service", "PodDisruptionBudget"])
def test_services_and_budgets_select_pods_of_one_component(overlay, kind):
    for resource in of_kind(overlay, kind):
        selector = resource["spec"]["selector"]
        selector = selector if "matchLabels" in selector else {"matchLabels": selector}
        found = [t for _, t in pod_templates(overlay) if selects(selector, t["metadata"]["labels"])]
        assert len(found) == 1, resource["metadata"]["name"]
        if kind == "Service":
            ports = {port["name"] for port in containers(found[0])[0]["ports"]}
            assert {port["targetPort"] for port in resource["spec"]["ports"]} <= ports


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_mounted_volumes_exist(overlay):
    kinds = {
        "persistentVolumeClaim": ("PersistentVolumeClaim", "claimName"),
        "configMap": ("ConfigMap", "name"),
    }
    for name, template in pod_templates(overlay):
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        for container in containers(template):
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes, name
        for volume in template["spec"]["volumes"]:
            for source, (kind, key) in kinds.items():
                if source in volume:
                    assert named(overlay, kind, volume[source][key])


@pytest.mark.parametrize(("overlay", "mode"), [("small", "ReadWriteOnce"), ("gpu", "ReadWriteMany")])
def test_the_registrys_volume_is_one_that_the_clusters_nodes_can_have(overlay, mode):
    """The volumes of kind and k3s, where the one-node overlay is tested, cannot be shared between nodes."""
    assert named(overlay, "PersistentVolumeClaim", "gramophone-registry")["spec"]["accessModes"] == [mode]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_environments_come_from_config_maps_that_are_there(overlay):
    for _, template in pod_templates(overlay):
        for container in containers(template):
            for source in container.get("envFrom", []):
                if "configMapRef" in source:
                    assert named(overlay, "ConfigMap", source["configMapRef"]["name"])


def test_the_service_in_the_bucket_reads_its_registry_from_there():
    (address,) = (
        m["data"]["GRAMOPHONE_REGISTRY"]
        for m in of_kind("s3", "ConfigMap")
        if "GRAMOPHONE_REGISTRY" in m["data"]
    )
    assert address.startswith("s3://")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_is_let_in_or_out_that_no_policy_names(overlay):
    for name, template in pod_templates(overlay):
        denials = [
            policy
            for policy in of_kind(overlay, "NetworkPolicy")
            if selects(policy["spec"]["podSelector"], template["metadata"]["labels"])
            and set(policy["spec"]["policyTypes"]) == {"Ingress", "Egress"}
        ]
        assert denials, name
    for policy in of_kind(overlay, "NetworkPolicy"):
        assert {} not in policy["spec"].get("ingress", []) + policy["spec"].get("egress", [])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_clients_reach_the_service(overlay):
    rules = allowed(overlay, "ingress", labels_of(overlay, "service"))
    from_clients = [
        r
        for r in rules
        if {"namespaceSelector": {"matchLabels": {"gramophone.io/client": "true"}}} in r["from"]
    ]
    assert [rule["ports"] for rule in from_clients] == [[{"protocol": "TCP", "port": HTTP}]]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_all_pods_may_ask_for_names(overlay):
    for _, template in pod_templates(overlay):
        ports = {
            (port["protocol"], port["port"])
            for rule in allowed(overlay, "egress", template["metadata"]["labels"])
            for port in rule["ports"]
        }
        assert {("UDP", 53), ("TCP", 53)} <= ports


@pytest.mark.parametrize("overlay", ["gpu", "s3"])
def test_prometheus_reaches_every_pod_once(overlay):
    (monitor,) = of_kind(overlay, "ServiceMonitor")
    scraped = [
        s
        for s in of_kind(overlay, "Service")
        if selects(monitor["spec"]["selector"], s["metadata"]["labels"])
    ]
    assert [service["spec"]["clusterIP"] for service in scraped] == ["None"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in scraped[0]["spec"]["ports"]}
    assert scraped[0]["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "gramophone"  # `job` in the rules
    rules = allowed(overlay, "ingress", labels_of(overlay, "service"))
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert [rule for rule in rules if monitoring in rule["from"]]


@pytest.mark.parametrize("component", ["service", "trainer"])
def test_the_bucket_is_reached(component):
    rules = allowed("s3", "egress", labels_of("s3", component))
    (outside,) = (rule for rule in rules if any("ipBlock" in place for place in rule["to"]))
    assert outside["ports"] == [{"protocol": "TCP", "port": 443}]


def test_the_proxy_reaches_the_pods_and_they_let_it_in():
    proxy, service = labels_of("s3", "proxy"), labels_of("s3", "service")
    out = [
        r
        for r in allowed("s3", "egress", proxy)
        if any(selects(p.get("podSelector", {}), service) for p in r["to"])
    ]
    into = [
        r
        for r in allowed("s3", "ingress", service)
        if any("podSelector" in p and selects(p["podSelector"], proxy) for p in r["from"])
    ]
    assert out
    assert into


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_autoscaler_scales_the_service_by_a_metric_that_is_exported(overlay, registry):
    (autoscaler,) = of_kind(overlay, "HorizontalPodAutoscaler")
    target = autoscaler["spec"]["scaleTargetRef"]
    assert "replicas" not in named(overlay, target["kind"], target["name"])["spec"]
    asked = {m["pods"]["metric"]["name"] for m in autoscaler["spec"]["metrics"] if m["type"] == "Pods"}
    exported = create_app(Settings(registry=registry)).state.services.metrics.exposition().decode()
    assert {name for name in asked if f"\n{name} " not in exported} == set()
    assert {m["resource"]["name"] for m in autoscaler["spec"]["metrics"] if m["type"] == "Resource"} == {
        "cpu"
    }


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_autoscaler_has_no_metric_that_nothing_in_the_overlay_provides(overlay):
    """An autoscaler without a value for one of its metrics never scales down."""
    (autoscaler,) = of_kind(overlay, "HorizontalPodAutoscaler")
    is_monitored = bool(of_kind(overlay, "ServiceMonitor"))
    kinds = {metric["type"] for metric in autoscaler["spec"]["metrics"]}
    assert kinds == ({"Resource", "Pods"} if is_monitored else {"Resource"})
    assert autoscaler["spec"]["behavior"]["scaleDown"].get("selectPolicy") != "Disabled"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_process_that_keeps_one_core_busy_is_reason_to_scale(overlay):
    """A process rarely uses more than one core, so a share of several would never be reached."""
    (autoscaler,) = of_kind(overlay, "HorizontalPodAutoscaler")
    (share,) = (
        metric["resource"]["target"]["averageUtilization"] / 100
        for metric in autoscaler["spec"]["metrics"]
        if metric["type"] == "Resource"
    )
    (container,) = containers(named(overlay, "Deployment", "gramophone")["spec"]["template"])
    asked = container["resources"]["requests"]["cpu"]
    assert share * (float(asked[:-1]) / 1000 if asked.endswith("m") else float(asked)) < 0.8


def test_the_adapter_offers_the_autoscalers_metric():
    (autoscaler,) = of_kind("s3", "HorizontalPodAutoscaler")
    (asked,) = (m["pods"]["metric"]["name"] for m in autoscaler["spec"]["metrics"] if m["type"] == "Pods")
    (rule,) = yaml.safe_load((KUBERNETES / "prometheus-adapter.yaml").read_text(encoding="utf-8"))["rules"][
        "custom"
    ]
    assert rule["seriesQuery"].startswith(asked + "{")
    assert set(rule["resources"]["overrides"]) == {"namespace", "pod"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_update_never_takes_a_pod_away_before_its_successor_is_ready(overlay):
    for deployment in of_kind(overlay, "Deployment"):
        assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_trainings_never_overlap_and_go_on_where_they_stopped(overlay):
    (job,) = of_kind(overlay, "CronJob")
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    (container,) = containers(job["spec"]["jobTemplate"]["spec"]["template"])
    assert "--resume" in container["args"]
    rules = job["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["Ignore", "FailJob"]
    assert rules[1]["onExitCodes"]["values"] == [EXIT_BAD_INPUT]

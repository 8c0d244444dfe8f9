"""Unmodified clients, over HTTP and HTTPS: the JDK's and `curl --http2`, which offer HTTP/2, and Node's fetch.

Raw upgrade requests, whose bodies come in the same or in a later segment, are in tests/contract/test_http.py.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.deploy.image_build import DOCKERFILE, command, stages
from tests.deploy.tools import ROOT, run, serving_processes, tool, train_small

SCORE = '{"texts": ["the cat sat"]}'
STREAM = '{"max_tokens": 20, "ignore_eos": true, "stream": true}'
JSON = ("--header", "content-type: application/json")
LAST = "stream 200 data: [DONE]"
ENVIRONMENT = dict(os.environ)  # noqa: TID251 - the environment of children


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clients") / "registry"
    train_small(folder)
    return folder


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Make a certificate and its key as the guide says."""
    folder = tmp_path_factory.mktemp("tls")
    guide = (ROOT / "docs/guides/production.md").read_text(encoding="utf-8")
    script = guide[guide.index("openssl req") :].partition("```")[0]
    tool("openssl", "Debian's openssl")
    subprocess.run(["bash", "-c", script], cwd=folder, check=True, capture_output=True)
    return folder / "trial.pem"


@pytest.fixture(scope="module", params=["http", "https", "https of two workers"])
def url(request, registry, certificate):
    """Run a service; a single process accepts two connections at a time, and answers a third 503.

    Node's fetch opens a second one if the first is not yet back in its pool.
    """
    settings = {"MAX_CONNECTIONS": "2"}
    if request.param.startswith("https"):
        settings |= {"TLS_CERTIFICATE": str(certificate), "TLS_KEY": str(certificate.with_suffix(".key"))}
    if "workers" in request.param:
        settings |= {"WORKERS": "2", "MAX_CONNECTIONS": "8"}
    with serving_processes(registry, ["a"], **settings) as started:
        yield f"{request.param.partition(' ')[0]}://localhost:{started['a'][1]}"


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Write a body of many segments; curl sends it with `Expect: 100-continue`."""
    path = tmp_path_factory.mktemp("clients") / "large.json"
    path.write_text(SCORE + " " * 2_000_000, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def curl(certificate):
    """Return the output of curl, which must succeed."""
    program = tool("curl", "Debian's curl")
    options = ("--http2", "--silent", "--show-error", "--fail", "--ipv4", "--cacert", str(certificate))
    return lambda *arguments: run(program, *options, *JSON, *arguments)


def test_a_program_of_the_jdk_is_answered(url, certificate):
    tool("javac", "Debian's openjdk-17-jdk-headless")  # java needs it to run a source file
    java, keytool = tool("java", "the same"), tool("keytool", "the same")
    trust = certificate.with_suffix(".p12")
    if not trust.exists():
        storing = ("-importcert", "-noprompt", "-keystore", str(trust), "-storepass", "changeit")
        subprocess.run([keytool, *storing, "-file", str(certificate)], check=True, capture_output=True)
    store = (f"-Djavax.net.ssl.trustStore={trust}", "-Djavax.net.ssl.trustStorePassword=changeit")
    options = ("-Djava.net.preferIPv4Stack=true", *store)
    lines = run(java, *options, str(ROOT / "tests/deploy/StockClient.java"), url, timeout=120).splitlines()
    bodies = [f"{what} 200 true" for what in ("small", "large", "chunked", "awaited")]
    assert lines == [*bodies, LAST] * 3


def test_a_program_of_node_is_answered(url, certificate):
    node = tool("node", "Debian's nodejs")
    environment = {**ENVIRONMENT, "NODE_EXTRA_CA_CERTS": str(certificate)}
    options = ("--dns-result-order=ipv4first", str(ROOT / "tests/deploy/StockClient.mjs"))
    lines = run(node, *options, url, timeout=60, env=environment).splitlines()
    assert lines == [*(f"{what} 200 true" for what in ("small", "large", "chunked")), LAST] * 3


@pytest.mark.parametrize("framing", [(), ("--header", "transfer-encoding: chunked")])
@pytest.mark.parametrize("body", ["small", "large"])
def test_curl_is_answered_over_one_connection(curl, url, large, framing, body):
    data = SCORE if body == "small" else f"@{large}"
    told = ("--write-out", " %{num_connects} %{http_version}\n", "--data-binary", data)
    first, second = curl(*framing, *told, f"{url}/v1/score", f"{url}/v1/score").splitlines()
    assert "logprob" in first
    assert (first.split()[-2:], second.split()[-2:]) == (["1", "1.1"], ["0", "1.1"])


@pytest.mark.parametrize("version", ["--http2", "--http1.0"])
def test_curl_reads_a_stream_to_its_end(curl, url, version):
    assert curl(version, "--data", STREAM, f"{url}/v1/generate").endswith("data: [DONE]\n\n")


def test_states_are_found_over_any_connection(curl, url):
    """With two workers, requests that reach the other worker are relayed to the one with the state."""
    opened = json.loads(curl("--data", '{"context": "the"}', f"{url}/v1/states"))
    continuation = {"state": opened["states"][0]["state"], "text": "cat", "keep": False}
    body = json.dumps({"continuations": [continuation]})
    found = {curl("--data", body, f"{url}/v1/states/advance") for _ in range(8)}
    assert len(found) == 1


def test_the_images_health_check_follows_the_scheme(url):
    check = command(stages(DOCKERFILE.read_text())[-1], "HEALTHCHECK")
    settings = {"GRAMOPHONE_PORT": url.rpartition(":")[2]}
    if url.startswith("https"):
        settings["GRAMOPHONE_TLS_CERTIFICATE"] = "trial.pem"
    run(sys.executable, *check[1:], env={**ENVIRONMENT, **settings})

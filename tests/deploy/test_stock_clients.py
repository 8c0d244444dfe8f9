"""Unmodified clients that offer HTTP/2 with each request: the JDK's, and `curl --http2`."""

import pytest

from tests.deploy.tools import ROOT, run, serving_processes, tool, train_small

SCORE = '{"texts": ["the cat sat"]}'
STREAM = '{"max_tokens": 20, "ignore_eos": true, "stream": true}'
JSON = ("--header", "content-type: application/json")


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Run a service that accepts one connection at a time; another is answered 503."""
    registry = tmp_path_factory.mktemp("clients") / "registry"
    train_small(registry)
    with serving_processes(registry, ["a"], MAX_CONNECTIONS="1") as started:
        yield f"http://127.0.0.1:{started['a'][1]}"


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Write a body of many segments; curl sends it with `Expect: 100-continue`."""
    path = tmp_path_factory.mktemp("clients") / "large.json"
    path.write_text(SCORE + " " * 2_000_000, encoding="utf-8")
    return path


def curl(*arguments):
    """Return the output of curl, which must succeed."""
    return run(
        tool("curl", "Debian's curl"), "--http2", "--silent", "--show-error", "--fail", *JSON, *arguments
    )


def test_a_program_of_the_jdk_is_answered(url):
    tool("javac", "Debian's openjdk-17-jdk-headless")  # java needs it to run a source file
    java = tool("java", "the same")
    lines = run(java, str(ROOT / "tests/deploy/StockClient.java"), url, timeout=120).splitlines()
    bodies = [f"{what} 200 true" for what in ("small", "large", "chunked", "awaited")]
    assert lines == [*bodies, "stream 200 data: [DONE]"] * 3


@pytest.mark.parametrize("framing", [(), ("--header", "transfer-encoding: chunked")])
@pytest.mark.parametrize("body", ["small", "large"])
def test_curl_is_answered_over_one_connection(url, large, framing, body):
    data = SCORE if body == "small" else f"@{large}"
    told = ("--write-out", " %{num_connects} %{http_version}\n", "--data-binary", data)
    first, second = curl(*framing, *told, f"{url}/v1/score", f"{url}/v1/score").splitlines()
    assert "logprob" in first
    assert (first.split()[-2:], second.split()[-2:]) == (["1", "1.1"], ["0", "1.1"])


@pytest.mark.parametrize("version", ["--http2", "--http1.0"])
def test_curl_reads_a_stream_to_its_end(url, version):
    assert curl(version, "--data", STREAM, f"{url}/v1/generate").endswith("data: [DONE]\n\n")

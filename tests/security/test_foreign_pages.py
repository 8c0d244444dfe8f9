"""Pages of other sites, which a browser lets send what they like to any address, and answer by names of their own."""

import httpx
import pytest

from service.api_keys import KeyScope, create_key
from service.settings import Settings
from tests.servers import running

KEY = create_key("a", list(KeyScope))
LISTED = "https://app.example.org"
WORDS = {"text": "bought words"}
TEACH = "/v1/autocomplete/users/default/accepted"


def serving(registry, **options):
    return running(Settings(registry=registry.root, models=("mixture",), **options))


@pytest.fixture(scope="module")
def url(registry):
    """A service as the command starts it: no keys, on 127.0.0.1."""
    with serving(registry, cors_origins=(LISTED,)) as server:
        yield server.url


def taught(url, **headers):
    """The status of what a page may send without asking first: a form's method and type."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(
        f"{url}{TEACH}", json=WORDS, headers={"content-type": "text/plain", **names}
    ).status_code


@pytest.mark.parametrize(
    "sent",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "https://app.example.org.evil.example"},
        {"origin": "http://[broken"},
        {"origin": "https://evil.example", "sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site"},
    ],
)
def test_a_page_of_another_site_changes_nothing(url, sent):
    assert taught(url, **sent) == 403
    assert httpx.get(f"{url}/v1/autocomplete/users/default").status_code == 404


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"sec_fetch_site": "same-origin", "origin": "https://behind-a-proxy.example"},
        {"sec_fetch_site": "none"},
        {"origin": LISTED, "sec_fetch_site": "cross-site"},
    ],
)
def test_programs_the_own_page_and_named_sites_do(url, sent):
    assert taught(url, **sent) == 200
    assert httpx.delete(f"{url}/v1/autocomplete/users/default").status_code == 200


def test_the_own_page_is_known_by_its_origin_alone(url):
    """Browsers leave `Sec-Fetch-Site` out where a page came without TLS from another machine."""
    assert taught(url, origin=url) == 200
    assert httpx.delete(f"{url}/v1/autocomplete/users/default").status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/v1/models", "/v1/autocomplete/users/default", "/metrics", "/health/live"]
)
@pytest.mark.parametrize(
    "name", ["evil.example", "127.0.0.1.evil.example:8000", "localhost.evil.example", "a.b."]
)
def test_a_name_that_was_pointed_at_this_machine_is_refused(url, path, name):
    answer = httpx.get(f"{url}{path}", headers={"host": name})
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "unknown_host")


@pytest.mark.parametrize(
    "name", ["localhost:8000", "127.0.0.1", "[::1]:8000", "box", "a.localhost", "LOCALHOST."]
)
def test_names_that_nobody_can_register_are_answered(url, name):
    assert httpx.get(f"{url}/v1/models", headers={"host": name}).status_code == 200


def test_keys_and_other_addresses_leave_names_open(registry):
    """Whoever has keys may call it what they like; elsewhere than on loopback its name is not known to it."""
    for options in ({"api_keys": (KEY.key.line,)}, {"host": "0.0.0.0"}):  # noqa: S104 - as in a container
        with serving(registry, **options) as server:
            headers = {"host": "lm.example.org", "authorization": f"Bearer {KEY.secret}"}
            assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200


def test_with_keys_a_page_of_another_site_needs_one(registry):
    with serving(registry, api_keys=(KEY.key.line,)) as server:
        assert taught(server.url, origin="https://evil.example") == 401
        with_key = {"authorization": f"Bearer {KEY.secret}", "origin": "https://evil.example"}
        assert taught(server.url, **with_key) == 200


def test_names_that_are_set_are_the_only_ones(registry):
    with serving(registry, host="0.0.0.0", allowed_hosts=("LM.example.org",)) as server:  # noqa: S104
        statuses = {
            name: httpx.get(f"{server.url}/v1/models", headers={"host": name}).status_code
            for name in ("lm.example.org:80", "10.0.0.1", "other.example.org", "localhost")
        }
        refused = httpx.get(f"{server.url}/metrics", headers={"host": "127.0.0.1"}).text
    assert statuses == {"lm.example.org:80": 200, "10.0.0.1": 200, "other.example.org": 421, "localhost": 421}
    assert 'auth_failures_total{reason="unknown_host"} 2.0' in refused

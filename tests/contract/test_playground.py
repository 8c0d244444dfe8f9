"""Files of the playground and of models; CORS and security headers."""

import re
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.tokenizers import WordTokenizer
from service.api_keys import create_key
from service.settings import Settings
from tests.support.fake_models import FakeModel, fake_vocabulary
from tests.support.services import running

STATIC = Path(__file__).parents[2] / "service" / "static"
KEY = create_key("page", ["infer"])


@pytest.fixture(scope="module")
def registry_root(tmp_path_factory):
    return tmp_path_factory.mktemp("playground") / "registry"


@pytest.fixture(scope="module")
def told(fake_family, registry_root):
    """Serve, with keys, a model that has a card, a picture and a report."""
    registry = LocalRegistry(registry_root, create=True)
    tokenizer = WordTokenizer(fake_vocabulary())

    def write(folder):
        (folder / "MODEL_CARD.md").write_text("# mixture\n")
        (folder / "curve.png").write_bytes(b"\x89PNG")
        (folder / "parts").mkdir()
        (folder / "parts" / "report.html").write_text("<script>1</script>")
        description = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {})
        write_checkpoint(folder, FakeModel(tokenizer.vocabulary), tokenizer, description)

    registry.publish("mixture", write)
    settings = Settings(registry=registry.root, api_keys=(KEY.key.line,))
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=10) as client:
        yield client


def ask(client, path, **headers):
    return client.get(path, headers={"authorization": f"Bearer {KEY.secret}", **headers})


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/docs", "/static/main.js", "/static/base.css", "/static/icon.svg"),
        *("/static/swagger-ui-bundle.js", "/static/swagger-ui.css"),
    ],
)
def test_the_page_needs_no_key(told, path):
    assert told.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_the_page_may_load_from_its_service_only(told, path):
    answer = told.get(path)
    policy = answer.headers["content-security-policy"]
    sources = set(re.findall(r"'[\w-]+'|\b(?:data|blob):|https?:|\*", policy))
    assert sources <= {"'self'", "'none'", "data:", "blob:", "'script'"}
    assert re.match(r"default-src '(self|none)'; ", policy)
    assert {"frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} <= set(policy.split("; "))
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_all_that_the_page_names_is_served(told):
    sources = {path.name: path.read_text() for path in STATIC.iterdir()}
    named = {name for text in sources.values() for name in re.findall(r'from "\./([\w.]+)"', text)}
    assert named <= set(sources)
    pages = sources["index.html"] + sources["docs.html"]
    named = {*sources, *re.findall(r'"static/([\w.-]+)"', pages)}
    assert {told.get(f"/static/{name}").status_code for name in named} == {200}


def test_the_page_is_small():
    assert sum(path.stat().st_size for path in STATIC.iterdir()) <= 120_000


def test_nothing_of_the_page_is_markup_made_of_text():
    """The content security policy would block it at run time."""
    for path in STATIC.glob("*.js"):
        found = re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", path.read_text()
        )
        assert found is None, path.name


@pytest.mark.parametrize("path", ["/", "/static/main.js"])
def test_matching_etag_gets_304(told, path):
    first = told.get(path)
    assert first.headers["cache-control"] == "no-cache"
    again = told.get(path, headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert told.get(path, headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "name", ["nosuch.js", "redoc.standalone.js", "..%2Fapp.py", "%2e%2e/app.py", "sub/main.js", ""]
)
def test_no_other_file_is_served(told, name):
    assert told.get(f"/static/{name}").status_code in {401, 404}
    assert ask(told, f"/static/{name}").status_code == 404


def test_the_card_of_a_model_is_told(told):
    answer = ask(told, "/v1/models/mixture/card")
    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    assert answer.headers["x-model"] == "mixture@1"
    assert answer.text == "# mixture\n"


def test_the_files_for_people_are_listed_and_no_others(told):
    reply = ask(told, "/v1/models/mixture@1/files").json()
    assert [file["name"] for file in reply["data"]] == ["MODEL_CARD.md", "curve.png", "parts/report.html"]
    assert reply["data"][1]["bytes"] == 4


def test_a_picture_comes_as_one(told):
    answer = ask(told, "/v1/models/mixture/files/curve.png")
    assert (answer.headers["content-type"], answer.content) == ("image/png", b"\x89PNG")
    assert (
        ask(
            told, "/v1/models/mixture/files/curve.png", **{"if-none-match": answer.headers["etag"]}
        ).status_code
        == 304
    )


def test_every_kind_of_file_is_documented(told):
    document, listed = ask(told, "/openapi.json").json(), ask(told, "/v1/models/mixture/files").json()["data"]
    replies = document["paths"]["/v1/models/{address}/files/{name}"]["get"]["responses"]
    told_types = {
        ask(told, f"/v1/models/mixture/files/{file['name']}").headers["content-type"].partition(";")[0]
        for file in listed
    }
    assert told_types == set(replies["200"]["content"])
    assert "304" in replies


def test_a_report_runs_nothing(told):
    policy = ask(told, "/v1/models/mixture/files/parts/report.html").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "sandbox" in policy
    assert "script" not in policy


@pytest.mark.parametrize(
    "name",
    [
        "weights.npy",
        "manifest.json",
        "tokenizer.json",
        "nosuch.png",
        "../1/curve.png",
        "%2e%2e/1/curve.png",
        "/etc/passwd",
    ],
)
def test_no_other_file_of_a_model_is_told(told, name):
    answer = ask(told, f"/v1/models/mixture/files/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] in {"not_found", "model_not_found"}


@pytest.mark.parametrize("path", ["card", "files", "files/curve.png"])
def test_files_of_models_need_a_key(told, path):
    assert told.get(f"/v1/models/mixture/{path}").status_code == 401
    assert ask(told, f"/v1/models/nosuch/{path}").status_code == 404


def test_a_file_that_was_deleted_since_is_not_found(told, registry_root):
    path = registry_root / "mixture" / "versions" / "1" / "curve.png"
    aside = path.rename(path.with_suffix(".aside"))
    assert ask(told, "/v1/models/mixture/files/curve.png").status_code == 404
    aside.rename(path)


@pytest.mark.parametrize("is_unmounted", [False, True])
def test_a_card_is_asked_for_later_while_the_registry_is_away(told, registry_root, is_unmounted):
    aside = registry_root.rename(registry_root.with_name("aside"))
    if is_unmounted:  # an unmounted volume leaves an empty folder
        registry_root.mkdir()
    answer = ask(told, "/v1/models/mixture/card")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "registry_unavailable")
    assert str(registry_root) not in answer.text
    aside.rename(registry_root)
    assert ask(told, "/v1/models/mixture/card").status_code == 200


def test_a_model_that_is_not_here_is_not_called_unknown_while_the_registry_is_away(told, registry_root):
    aside = registry_root.rename(registry_root.with_name("aside"))
    answer = ask(told, "/v1/models/mixture@9")
    aside.rename(registry_root)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "registry_unavailable")
    assert ask(told, "/v1/models/mixture@9").status_code == 404


def _luminance(colour):
    """Return the relative luminance of #rrggbb (WCAG 2)."""
    shares = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("ink", "ground"),
    [
        (ink, ground)
        for ink in ("ink", "quiet", "accent", "bad", "good", "ghost")
        for ground in ("paper", "card")
    ]
    + [("on-accent", "accent"), ("ink", "soft"), ("quiet", "soft")],
)
def test_text_has_the_contrast_that_reading_needs(scheme, ink, ground):
    """4.5 : 1, WCAG 2 level AA."""
    rule = re.compile(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)")
    found = rule.findall((STATIC / "base.css").read_text())
    colours = {name: pair[scheme == "dark"] for name, *pair in found}
    high, low = sorted((_luminance(colours[ink]), _luminance(colours[ground])), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 4.5


PAGE = "https://app.example.org"
APP_KEY = create_key("app", ["infer"])


@pytest.fixture(scope="module")
def cors(registry):
    settings = Settings(
        registry=registry.root, models=("mixture",), cors_origins=(PAGE,), api_keys=(APP_KEY.key.line,)
    )
    with running(settings) as server, httpx.Client(base_url=server.url) as client:
        yield client


def preflight(client, origin, headers="authorization"):
    asked = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": headers,
    }
    return client.options("/v1/completions", headers=asked)


def test_a_page_of_a_named_origin_may_ask_without_a_key_for_the_preflight(cors):
    wanted = "authorization, content-type, x-request-id, x-stainless-lang, x-stainless-retry-count"
    told = preflight(cors, PAGE, wanted)
    assert told.status_code == 200
    assert told.headers["access-control-allow-origin"] == PAGE
    assert told.headers["access-control-allow-headers"] == wanted
    assert "access-control-allow-credentials" not in told.headers


def test_another_origin_may_not(cors):
    assert preflight(cors, "https://evil.example.org").status_code == 403
    answer = cors.get("/health/live", headers={"origin": "https://evil.example.org"})
    assert "access-control-allow-origin" not in answer.headers


def test_pages_may_read_ids_times_and_errors(cors):
    answer = cors.post("/v1/score", headers={"origin": PAGE})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == PAGE
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "retry-after"} <= set(exposed)


def test_a_page_of_a_named_origin_may_read_the_reply_of_an_operation(cors):
    headers = {"origin": PAGE, "authorization": f"Bearer {APP_KEY.secret}"}
    answer = cors.post("/v1/next-token", json={"context": "the"}, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE


def test_without_the_setting_no_origin_is_named(http):
    answer = http.get("/health/live", headers={"origin": PAGE})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert preflight(http, PAGE).status_code == 403


@pytest.mark.parametrize("origin", ["app.example.org", "https://app.example.org/", "https://a.org/x", "a b"])
def test_invalid_origin_is_refused_at_start(origin):
    with pytest.raises(ValidationError, match="not an origin"):
        Settings(cors_origins=(origin,))


@pytest.mark.parametrize("path", ["/health/live", "/nowhere", "/v1/score", "/metrics"])
def test_every_reply_keeps_browsers_from_harm(http, path):
    headers = http.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert "server" not in headers

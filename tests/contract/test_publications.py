"""No publication makes a request fail that names a stored document or a bare model and was answered before.

Every kind of stored document, also as release 0.1.0 wrote it, over every kind of publication.
"""

import contextlib
import json
import shutil
import tarfile

import httpx
import pytest

from models.checking.error_model import CalibrationStore, ErrorTableStore, fit_error_table
from models.checkpoint.registry import LocalRegistry
from service.settings import Settings
from tests.compatibility.replies import ARCHIVE
from tests.support.services import running, typed_line

OLD = "ngram-word"
"""Model of release 0.1.0, with a profile and a calibration of that release."""

FURTHER = "ngram-char"
FOLDERS = (f"{OLD}/", f"{FURTHER}/", ".profiles", ".calibrations")
LISTS = [
    {"candidates": [{"text": "the cat", "features": {"am": -1}}, {"text": "a cat", "features": {"am": -2}}]}
]
LINES = {"content": json.dumps(LISTS[0]), "headers": {"content-type": "application/x-ndjson"}}


def write_profile(root, name, weights, models):
    """Write a profile in the form of release 0.1.0."""
    tuned = json.loads((root / ".profiles" / "tuned.json").read_text())
    changed = {**tuned, "name": name, "weights": weights, "models": models}
    (root / ".profiles" / f"{name}.json").write_text(json.dumps(changed))


@pytest.fixture
def registry(tmp_path):
    """Return a registry with two models of release 0.1.0, its documents, and one more of each kind."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path, [m for m in archive.getmembers() if m.name.startswith(FOLDERS)])  # noqa: S202
    registry = LocalRegistry(tmp_path)
    registry.set_alias(OLD, "champion", 1)
    write_profile(tmp_path, "one", {"lm": 1.0}, [{"name": "", "address": f"{OLD}@1", "weight": 1.0}])
    models = [
        {"name": "", "address": f"{OLD}@1", "weight": 0.5},
        {"name": "", "address": f"{OLD}@champion", "weight": 0.5},
        {"name": "further", "address": f"{FURTHER}@1", "weight": 1.0},
    ]
    write_profile(tmp_path, "several", {"lm": 0.5, "lm:further": 0.2, "am": 1.0}, models)
    ErrorTableStore(tmp_path).write(OLD, fit_error_table({"house": ["hosue"] * 500}, ""))
    registry.set_default(OLD)
    return registry


def publish(registry, name=OLD):
    source = registry.root / name / "versions" / "1"
    registry.publish(name, lambda folder: shutil.copytree(source, folder, dirs_exist_ok=True))


def promote_second(registry):
    publish(registry)
    registry.set_alias(OLD, "champion", 2)


def roll_back(registry):
    promote_second(registry)
    registry.set_alias(OLD, "champion", 1)


def delete_first(registry):
    promote_second(registry)
    registry.delete(OLD, 1)


def delete_champion(registry):
    publish(registry)
    registry.delete_alias(OLD, "champion")


def calibrate_and_roll_back(registry):
    calibrations = CalibrationStore(registry.root)
    calibrations.write(calibrations.read(f"{OLD}@1").model_copy(update={"model": f"{OLD}@2"}))
    delete_champion(registry)


PUBLICATIONS = {
    "a new version": publish,
    "a new version of a further model": lambda registry: publish(registry, FURTHER),
    "a promotion": promote_second,
    "a roll-back": roll_back,
    "the old version deleted": delete_first,
    "the alias deleted": delete_champion,
    "a calibrated version": calibrate_and_roll_back,
    "another default": lambda registry: registry.set_default(FURTHER),
}
REQUESTS = {
    "profile": ("/v1/rerank", {"lists": LISTS, "profile": "one"}),
    "profile of the first pass": ("/v1/rerank", {"lists": LISTS, "profile": "tuned"}),
    "profile of several models": ("/v1/rerank", {"lists": LISTS, "profile": "several"}),
    "profile and model": ("/v1/rerank", {"lists": LISTS, "profile": "one", "model": OLD}),
    "calibration": ("/v1/check", {"text": "the cat", "model": OLD, "precision": 0.01}),
    "table of errors": ("/v1/check", {"text": "the hosue", "model": OLD}),
    "bare model": ("/v1/score", {"texts": ["the cat"], "model": OLD}),
    "default model": ("/v1/score", {"texts": ["the cat"]}),
}


@contextlib.contextmanager
def serving(registry, **settings):
    """Run a service that looks at its registry only when it is told to; yield it and a client."""
    with (
        running(Settings(registry=registry.root, watch_interval_s=0, **settings)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield server, client


def statuses(client):
    """Return the status of every request, those of lists also as lines."""
    found = {name: client.post(path, json=body).status_code for name, (path, body) in REQUESTS.items()}
    for name in ("one", "several"):
        line = client.post(f"/v1/rerank?profile={name}", **LINES)
        found[f"lines, {name}"] = 200 if "ranking" in line.json() else line.text
    return found


@pytest.mark.parametrize("publication", PUBLICATIONS)
def test_requests_succeed_after_a_publication(registry, publication):
    with serving(registry) as (server, client):
        assert set(statuses(client).values()) == {200}
        PUBLICATIONS[publication](registry)
        server.app.state.services.host.refresh()
        after = statuses(client)
    assert after == dict.fromkeys(after, 200)


@pytest.fixture
def typed(registry, capsys, monkeypatch):
    """Run `gramophone …` on the registry; return the exit code and standard error."""
    return lambda *argv: typed_line(capsys, monkeypatch, *argv, "--registry", registry.root)[::2]


@pytest.mark.parametrize("publication", PUBLICATIONS)
@pytest.mark.usefixtures("logs_as_before")
def test_commands_do_after_a_publication_what_they_did_before(registry, publication, tmp_path, typed):
    lists = tmp_path / "lists.jsonl"
    lists.write_text(json.dumps(LISTS[0]))
    PUBLICATIONS[publication](registry)
    for profile in ("one", "several"):
        assert typed("rerank", "-", lists, "--profile", profile)[0] == 0
    assert typed("check", OLD, "the cat", "--min-precision", "0.01")[0] == 0


@pytest.fixture
def replaced(registry):
    """Return a client of a service whose profile was tuned on a version that is no longer served."""
    promote_second(registry)
    with serving(registry) as (_, client):
        yield client


def test_replies_tell_the_version_that_was_tuned_on(replaced):
    path, body = REQUESTS["profile"]
    reply = replaced.post(path, json=body).json()
    assert (reply["model"], reply["tuned_on"]) == (f"{OLD}@2", [f"{OLD}@1"])
    assert replaced.post(path, json={**body, "model": OLD}).json()["tuned_on"] == [f"{OLD}@1"]
    assert replaced.post("/v1/rerank?profile=one", **LINES).json()["tuned_on"] == [f"{OLD}@1"]
    assert "tuned_on" not in replaced.post(path, json={**body, "model": FURTHER}).text
    assert "tuned_on" not in replaced.post(path, json={"lists": LISTS, "model": OLD}).text


def test_the_reply_of_a_check_tells_the_version_that_was_calibrated(replaced):
    path, body = REQUESTS["calibration"]
    assert replaced.post(path, json=body).json()["calibrated_on"] == f"{OLD}@1"
    reply = replaced.post(path, json={**body, "precision": None}).json()
    assert (reply["precision"], "calibrated_on" in reply) == (None, False)


def test_a_version_that_is_still_served_is_the_one_that_scores(registry):
    promote_second(registry)
    path, body = REQUESTS["profile"]
    with serving(registry, models=(OLD, f"{OLD}@1", FURTHER)) as (_, client):
        reply = client.post(path, json=body).json()
    assert (reply["model"], "tuned_on" in reply) == (f"{OLD}@1", False)


@pytest.mark.usefixtures("logs_as_before")
def test_a_promotion_names_the_profiles_that_were_tuned_on_another_version(registry, typed):
    publish(registry)
    (registry.root / ".profiles" / "damaged.json").write_text("{")
    code, told = typed("models", "promote", f"{OLD}@2")
    assert code == 0
    assert f"profile one was tuned on {OLD}@1" in told
    assert f"profile several was tuned on {OLD}@1" in told


WRONG = (None, True, 0, -1, 1e308, "", "x", "\ud800", [], [None], {}, {"x": {}}, [[[]]], 10**30, float("nan"))
PROFILE = {
    "schema_version": 1,
    "name": "one",
    "weights": {"lm": 1.0, "am": 0.5, "phrases": 1.0, "correction": 1.0},
    "length_exponent": 0.5,
    "posterior_scale": 1.0,
    "metric": "wer",
    "signature": "nrefs:1",
    "models": [{"name": "", "address": f"{OLD}@1", "weight": 1.0}],
    "form": "asis",
    "phrases": [{"text": "a cat", "weight": 1.0}],
    "corrections": [{"heard": "the cat", "written": "a cat", "log_odds": 1.0, "lists": 2}],
    "decision": "tuned",
    "figures": {"baseline": 15.44},
    "created": "2026-01-01",
}


def changes(value):
    """Yield a JSON value with each of its parts replaced by each wrong value."""
    yield from WRONG
    items = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, part in items:
        for changed in changes(part):
            whole = value.copy()
            whole[key] = changed
            yield whole


def stored_documents(root):
    """Yield the folder, name and content of a document of each kind, and the request that reads it."""
    checks = (REQUESTS["calibration"], REQUESTS["table of errors"])
    yield ".profiles/one.json", PROFILE, REQUESTS["profile"]
    for folder, name, request in zip((".calibrations", ".errors"), (f"{OLD}@1", OLD), checks, strict=True):
        content = json.loads((root / folder / f"{name}.json").read_text())
        if "points" in content:
            content["points"] = content["points"][:2]
        yield f"{folder}/{name}.json", content, request


@pytest.mark.parametrize("kind", range(3), ids=["profile", "calibration", "table of errors"])
def test_a_document_of_wrong_types_is_refused_by_its_name(registry, kind):
    """No wrong value of any field is answered with 500, and every message names the document or the field."""
    file, content, (path, body) = list(stored_documents(registry.root))[kind]
    with serving(registry) as (_, client):
        for changed in changes(content):
            (registry.root / file).write_text(json.dumps(changed))
            reply = client.post(path, json=body)
            assert reply.status_code in {200, 400, 404, 409}, (changed, reply.text)
            if reply.status_code == 409:
                error = reply.json()["error"]
                assert error["code"] == "document_damaged"
                assert file.rpartition("/")[2] in error["message"], error

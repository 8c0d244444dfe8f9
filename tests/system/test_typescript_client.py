"""The TypeScript client: its types are those of the OpenAPI document, and its own tests pass against a service."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from docs import hooks
from service.api_keys import create_key
from service.settings import Settings
from tests.support.services import running
from tests.system.documentation_commands import environment

CLIENT = Path(__file__).parents[2] / "clients/typescript"
KEY = create_key("client", ["infer"])


def run(folder, *command, **variables):
    """Run a program, and show what it printed if it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment("node_modules/.bin", **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A built copy of the package, with what it needs installed."""
    if shutil.which("npm") is None:
        pytest.fail("the TypeScript client needs Node: apt-get install -y nodejs npm", pytrace=False)
    folder = tmp_path_factory.mktemp("client") / "typescript"
    shutil.copytree(CLIENT, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    run(folder, "npm", "ci", "--no-audit", "--no-fund")
    run(folder, "npm", "run", "build")
    return folder


def test_the_types_are_those_of_the_openapi_document(package, tmp_path):
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(hooks.service_description()[0]), encoding="utf-8")
    before = (package / "src/types.ts").read_text(encoding="utf-8")
    run(package, "npm", "run", "generate", OPENAPI=str(document))
    current = (package / "src/types.ts").read_text(encoding="utf-8") == before
    assert current, (
        "src/types.ts is stale: run `npm run generate` in clients/typescript with the service running"
    )


def test_its_own_tests_pass(package, registry, tmp_path):
    settings = Settings(
        registry=registry.root, models=("mixture",), api_keys=(KEY.key.line,), wordlists=tmp_path / "lists"
    )
    with running(settings) as server:
        run(package, "npm", "test", SERVICE=server.url, API_KEY=KEY.secret)


def test_the_lock_file_names_no_host():
    lock = json.loads((CLIENT / "package-lock.json").read_text(encoding="utf-8"))
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert len(packages) > 20
    assert {
        name for name, entry in packages.items() if "resolved" in entry or "integrity" not in entry
    } == set()

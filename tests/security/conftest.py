"""A service with keys of every scope, and a registry next to files that nobody may read or change."""

from typing import NamedTuple

import httpx
import pytest

from models.checkpoint import load
from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.tokenizers import WordTokenizer
from service.api_keys import KeyScope, create_key
from service.settings import Settings
from tests.support.checkpoints import damage
from tests.support.fake_models import FakeModel, fake_vocabulary
from tests.support.services import running

CANARY = "canary-4f1c"
"""Content of every file that no reply may contain."""


class Locked(NamedTuple):
    """A service that requires keys.

    Attributes:
        url: address of the service.
        app: the application.
        secrets: a key for each scope, and one for all scopes under None.
        root: the registry's folder; its parent is the test's own.
    """

    url: str
    app: object
    secrets: dict
    root: object

    def headers(self, scope=None):
        return {"authorization": f"Bearer {self.secrets[scope]}"}


def fill(root):
    """Publish a working model with a card and a private file, and a damaged one."""
    registry = LocalRegistry(root, create=True)
    words = WordTokenizer(fake_vocabulary())
    description = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {})

    def write(folder):
        (folder / "MODEL_CARD.md").write_text("# A card\n")
        (folder / "private.bin").write_text(CANARY)
        write_checkpoint(folder, FakeModel(words.vocabulary), words, description)

    for name in ("mixture", "damaged"):
        version = registry.publish(name, write)
    damage(version)
    return registry


@pytest.fixture(scope="session")
def registry(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(load.FAMILIES, "fake", ("tests.support.fake_models", "FakeModel"))
        folder = tmp_path_factory.mktemp("security")
        (folder / "secret.md").write_text(CANARY)
        (folder / "secret.json").write_text(f'{{"{CANARY}": 1}}')
        yield fill(folder / "registry")


@pytest.fixture(scope="session")
def locked(registry):
    made = {scope: create_key(f"for-{scope}", [scope]) for scope in KeyScope}
    made[None] = create_key("for-all", list(KeyScope))
    lines = tuple(key.key.line for key in made.values())
    settings = Settings(
        registry=registry.root, models=("mixture", "damaged"), api_keys=lines, watch_interval_s=0
    )
    with running(settings) as server:
        yield Locked(
            server.url, server.app, {scope: key.secret for scope, key in made.items()}, registry.root
        )


@pytest.fixture
def client(locked):
    """A client whose key has all scopes."""
    with httpx.Client(base_url=locked.url, headers=locked.headers(), timeout=20) as client:
        yield client

"""A service with small made-up models."""

import sys

import httpx
import pytest

from models.checkpoint import load
from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.language_model import Vocabulary
from models.tokenizers import CharacterTokenizer, WordTokenizer
from service.settings import Settings
from tests.support.checkpoints import damage
from tests.support.fake_models import FakeModel, fake_vocabulary
from tests.support.services import running, serving

# flashlight has no wheels for later Python versions
collect_ignore = [] if sys.version_info < (3, 13) else ["test_flashlight.py"]
METRICS = {"valid": {"perplexity": 12.5, "word_perplexity": None}, "corpus": {"lines": 3}}


def publish(registry, name, model, tokenizer):
    description = CheckpointDescription("2026-01-01T00:00:00+00:00", METRICS, {}, [[3, 4]], {})
    return registry.publish(name, lambda folder: write_checkpoint(folder, model, tokenizer, description))


def fill(root):
    """Create a registry with working models, a slow one, a failing one, and a damaged one."""
    registry = LocalRegistry(root, create=True)
    words = WordTokenizer(fake_vocabulary())
    characters = CharacterTokenizer(Vocabulary("abcdefghijklmnopqrstuvwxyzé ."))
    publish(registry, "mixture", FakeModel(words.vocabulary), words)
    publish(registry, "mixture", FakeModel(words.vocabulary, seed=1), words)
    registry.set_alias("mixture", "champion", 1)
    publish(registry, "chars", FakeModel(characters.vocabulary, seed=2, endless=True), characters)
    publish(registry, "slow", FakeModel(words.vocabulary, endless=True), words)
    publish(registry, "broken", FakeModel(words.vocabulary), words)
    damage(publish(registry, "damaged", FakeModel(words.vocabulary), words))
    return registry


@pytest.fixture(scope="session")
def serve():
    return serving


@pytest.fixture(scope="session")
def fake_family():
    """Register the made-up family with the loader."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(load.FAMILIES, "fake", ("tests.support.fake_models", "FakeModel"))
        yield


@pytest.fixture(scope="session")
def registry(fake_family, tmp_path_factory):
    return fill(tmp_path_factory.mktemp("contract") / "registry")


@pytest.fixture(scope="session")
def server(registry):
    settings = Settings(
        registry=registry.root,
        max_body_bytes=100_000,
        max_tokens_per_sequence=1000,
        max_texts_per_request=100,
        max_new_tokens=1000,
        watch_interval_s=0,  # it outlives these tests, and would log the damaged model into the output of others
    )
    with running(settings) as started:
        host = started.app.state.services.host
        host.resolve("slow").model.delay_s = 0.02
        host.resolve("broken").model.fails = True
        yield started


@pytest.fixture(scope="session")
def http(server):
    with httpx.Client(base_url=server.url, timeout=10) as client:
        yield client

"""A service with small models of several families over the same words."""

import httpx
import numpy as np
import pytest

from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.language_model import Vocabulary
from models.tokenizers import CharacterTokenizer
from service.settings import Settings
from tests.support import families
from tests.support.services import running
from training.ngram.estimate import estimate
from training.progress import Progress
from training.tokenizer import TokenizerSettings, encode_corpus, learn_tokenizer

WORDS = families.WORDS


def publish(registry, name, model, tokenizer, *, direction="forward"):
    about = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {}, direction=direction)
    registry.publish(name, lambda folder: write_checkpoint(folder, model, tokenizer, about))


def ngram(corpus, tokenizer, order=3):
    return estimate(corpus, tokenizer.vocabulary, order=order, progress=Progress()).model


def fill(registry):
    words = families.tokenizer()
    publish(registry, "new", families.model("ngram"), words)
    publish(registry, "old", ngram(families.corpus(seed=5), words), words)
    publish(registry, "lstm", families.model("lstm"), words)
    publish(registry, "backward", ngram(families.corpus().reversed(), words), words, direction="backward")
    lines = [" ".join(WORDS[i] for i in np.random.default_rng(s).integers(0, 37, 8)) for s in range(60)]
    characters = CharacterTokenizer(Vocabulary("w0123456789 "))
    publish(registry, "chars", ngram(encode_corpus(characters, lines), characters), characters)
    pieces = learn_tokenizer(TokenizerSettings(kind="bpe", vocab_size=40, byte_fallback=False), lines)
    publish(registry, "pieces", ngram(encode_corpus(pieces, lines), pieces), pieces)


@pytest.fixture(scope="session")
def reranking_registry(tmp_path_factory):
    registry = LocalRegistry(tmp_path_factory.mktemp("reranking"), create=True)
    fill(registry)
    return registry.root


@pytest.fixture(scope="session")
def reranking_server(reranking_registry):
    settings = Settings(registry=reranking_registry, default_model="new", max_texts_per_request=500)
    with running(settings) as server:
        yield server


@pytest.fixture(scope="session")
def http(reranking_server):
    with httpx.Client(base_url=reranking_server.url, timeout=20) as client:
        yield client


@pytest.fixture(scope="session")
def rerank(http):
    """Send one or more lists; return the reply."""

    def ask(*lists, **options):
        response = http.post("/v1/rerank", json={"lists": lists, **options})
        assert response.status_code == 200, response.text
        return response.json()

    return ask


@pytest.fixture(scope="session")
def refused(http):
    """Send an invalid request; return its error."""

    def ask(*lists, **options):
        response = http.post("/v1/rerank", json={"lists": lists, **options})
        assert response.status_code in {400, 404}, response.text
        return response.json()["error"]

    return ask


@pytest.fixture(scope="session")
def texts():
    """Make a list of candidates without features."""

    def make(*candidates, **rest):
        return {"candidates": [{"text": text} for text in candidates], **rest}

    return make


@pytest.fixture(scope="session")
def score(http):
    """Return the total and the tokens of a text from /v1/score."""

    def ask(text, **options):
        body = {"texts": [text], "detail": "token", **options}
        return http.post("/v1/score", json=body).json()["results"][0]

    return ask


@pytest.fixture(scope="session")
def by_index():
    """Sort a list's candidates in the order given."""
    return lambda ranked: sorted(ranked["ranking"], key=lambda c: c["index"])

"""POST /v1/next-token over HTTP."""

import math

import numpy as np
import pytest

from models.language_model import entropy_bits
from models.vocabulary import BOS
from tests.fakes import FakeModel, fake_vocabulary

MODEL = FakeModel(fake_vocabulary())
THE, CAT = 3, 4


def ask(http, **body):
    response = http.post("/v1/next-token", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_candidates_are_the_models_own_in_order(http):
    reply = ask(http, context="the cat", top_k=4)
    row = MODEL.table[CAT]
    best = np.argsort(-row, kind="stable")[:4]
    candidates = reply["results"][0]["candidates"]
    assert [c["id"] for c in candidates] == best.tolist()
    assert [c["text"] for c in candidates] == [MODEL.vocabulary[i] for i in best]
    assert [c["logprob"] for c in candidates] == [float(row[i]) for i in best]
    assert reply["model"] == "mixture@1"


def test_entropy_is_of_the_whole_distribution(http):
    reply = ask(http, context="the", top_k=1)
    assert reply["results"][0]["entropy_bits"] == pytest.approx(entropy_bits(MODEL.table[[THE]])[0])


def test_ten_candidates_are_the_default(http):
    assert len(ask(http, context="the")["results"][0]["candidates"]) == 10


@pytest.mark.parametrize("context", ["the cat", [THE, CAT]])
def test_text_and_its_ids_are_answered_alike(http, context):
    assert ask(http, context=context) == ask(http, context="the cat")


@pytest.mark.parametrize(
    "contexts", [["", "the", "the cat sat on", "a dog"], [[], [THE], [THE, CAT, 5, 6], [8, 9]]]
)
def test_a_batch_of_unequal_contexts_is_answered_as_each_alone(http, contexts):
    together = ask(http, context=contexts)["results"]
    assert together == [ask(http, context=one)["results"][0] for one in contexts]


def test_an_empty_context_is_the_start_of_a_sentence(http):
    best = ask(http, context="", top_k=1)["results"][0]["candidates"][0]["id"]
    assert best == int(MODEL.table[BOS].argmax())


def test_what_cannot_come_next_is_finite(http):
    candidates = ask(http, context="the", top_k=13)["results"][0]["candidates"]
    assert candidates[-1] == {"id": BOS, "text": "<s>", "logprob": -9999.0}


def test_whole_distributions_come_as_float32(http):
    response = http.post(
        "/v1/next-token", json={"context": ["the", "the cat"]}, headers={"accept": "application/octet-stream"}
    )
    assert response.headers["x-shape"] == "2,13"
    rows = np.frombuffer(response.content, "<f4").reshape(2, 13)
    assert rows[:, BOS].tolist() == [-9999.0, -9999.0]
    np.testing.assert_array_equal(np.delete(rows, BOS, 1), np.delete(MODEL.table[[THE, CAT]], BOS, 1))
    assert all(math.isclose(np.exp(row, dtype=float).sum(), 1, abs_tol=1e-5) for row in rows)


@pytest.mark.parametrize("address", ["mixture", "mixture@1", "mixture@champion", None])
def test_a_model_has_several_addresses(http, address):
    assert ask(http, context="the", model=address)["model"] == "mixture@1"

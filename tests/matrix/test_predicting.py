"""What comes next: rows are distributions, the same however they are asked for."""

import numpy as np
import pytest

from tests.matrix.rows import row

CONTEXTS = ["", "The cat", "the naïve owl  saw 漢字", "zzz "]
NEXT = "/v1/next-token"


def candidates(model, **options):
    return [result["candidates"] for result in model.ask(NEXT, context=CONTEXTS, **options)["results"]]


@row("POST /v1/next-token")
def test_the_most_probable_and_the_rest_sum_to_one(model):
    replies = model.ask(NEXT, context=CONTEXTS, top_k=model.vocab_size)["results"]
    for reply in replies:
        log_probs = np.array([candidate["logprob"] for candidate in reply["candidates"]])
        assert (np.diff(log_probs) <= 0).all()
        probs = np.exp(log_probs)
        assert probs.sum() == pytest.approx(1, abs=model.cell.mass_tolerance)
        some = probs > 0
        assert reply["entropy_bits"] == pytest.approx(-(probs[some] * np.log2(probs[some])).sum(), abs=1e-3)


@row("POST /v1/next-token")
def test_few_candidates_are_the_first_of_all(model):
    whole = candidates(model, top_k=model.vocab_size)
    few = candidates(model, top_k=5)
    quick = candidates(model, top_k=5, entropy=False)
    for all_of_them, some, same in zip(whole, few, quick, strict=True):
        assert (
            [one["id"] for one in some]
            == [one["id"] for one in same]
            == [one["id"] for one in all_of_them[:5]]
        )
        for one, other, third in zip(some, same, all_of_them, strict=False):
            assert one["logprob"] == pytest.approx(other["logprob"], abs=model.cell.tolerance)
            assert one["logprob"] == pytest.approx(third["logprob"], abs=model.cell.tolerance)


@row("POST /v1/next-token")
def test_raw_rows_are_those_in_json_alone_and_together(model):
    together = model.rows(CONTEXTS)
    alone = np.concatenate([model.rows([context]) for context in CONTEXTS])
    for one, other in zip(candidates(model, top_k=model.vocab_size), together, strict=True):
        told = {candidate["id"]: candidate["logprob"] for candidate in one}
        assert [told[token] for token in range(model.vocab_size)] == pytest.approx(
            other, abs=model.cell.tolerance
        )
    assert alone == pytest.approx(together, abs=0 if model.cell.is_exact else model.cell.tolerance)


@row("POST /v1/next-token")
def test_words_and_what_was_not_explored_are_a_share_of_the_whole(model):
    for reply in model.ask(NEXT, context=CONTEXTS, top_k=8, unit="word")["results"]:
        log_probs = [word["logprob"] for word in reply["candidates"]]
        assert log_probs == sorted(log_probs, reverse=True)
        mass = np.exp(log_probs).sum() + reply["unexplored_mass"]
        assert 0 <= reply["unexplored_mass"] <= mass <= 1 + model.cell.mass_tolerance
        texts = [word["text"] for word in reply["candidates"]]
        assert len(set(texts)) == len(texts)

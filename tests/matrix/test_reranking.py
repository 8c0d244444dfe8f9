"""The best candidate: ordering by one model, several, mixed ones, in sessions, and tuned."""

import math

import numpy as np
import pytest

from models.language_model import LOG_ZERO
from models.word_forms import MARKS
from tests.matrix.cells import CELLS, row, self_normalised
from tests.matrix.zoo import TEXTS

RERANK, TUNE = "/v1/rerank", "/v1/rerank/tune"
QUICK = {"folds": 2, "restarts": 1, "resamples": 1, "bootstrap_samples": 100}
SPACED = [" ".join(text.replace("<s>", "").split()) for text in TEXTS]  # which is silence in a lattice
CANDIDATES = [{"text": text, "features": {"am": -float(place)}} for place, text in enumerate(TEXTS)]


def ranking(model, one_list, **options):
    return model.ask(RERANK, lists=[one_list], **options)["lists"][0]["ranking"]


def by_index(ranked):
    return {one["index"]: one for one in ranked}


@row("POST /v1/rerank")
def test_the_order_is_that_of_the_scores(model):
    scores = [score["logprob"] for score in model.score(TEXTS)]
    ranked = ranking(model, {"candidates": CANDIDATES})
    for place, one in by_index(ranked).items():
        assert one["features"]["lm"] == pytest.approx(scores[place], abs=40 * model.cell.tolerance)
        assert one["total"] == one["features"]["lm"]
    totals = [one["total"] for one in ranked]
    assert totals == sorted(totals, reverse=True)
    assert sum(one["posterior"] for one in ranked) == pytest.approx(1)


@row("POST /v1/rerank")
def test_totals_are_weighted_sums_of_what_is_told(model):
    weights = {"lm": 0.7, "am": 0.4, "words": -0.2, "tokens": 0.1, "unk": -1.0, "lm:again": -0.3}
    again = [{"model": model.cell.model, "name": "again"}]
    for one in ranking(model, {"candidates": CANDIDATES}, weights=weights, models=again):
        told = one["features"]
        assert told["lm:again"] == pytest.approx(told["lm"], abs=40 * model.cell.tolerance)
        expected = sum(weight * told[name] for name, weight in weights.items())
        if told["lm"] == LOG_ZERO:  # impossible, at any weights above 0
            expected = LOG_ZERO
        assert one["total"] == pytest.approx(expected, rel=1e-6, abs=1e-6)


@row("POST /v1/rerank")
def test_a_mixture_mixes_probabilities_of_tokens(model):
    names = (model.cell.model, model.cell.partner.model)
    parts = [{"model": name, "weight": weight} for name, weight in zip(names, (0.6, 0.4), strict=True)]
    mixed = by_index(
        first_ranking(model.post(RERANK, {"lists": [{"candidates": CANDIDATES}], "mixture": parts}))
    )
    for place, text in enumerate(TEXTS):
        own, other = (np.array(model.log_probs(text, model=name)) for name in names)
        expected = np.log(0.6 * np.exp(own) + 0.4 * np.exp(other)).sum()
        assert mixed[place]["features"]["lm"] == pytest.approx(expected, abs=len(own) * model.cell.tolerance)


def first_ranking(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["lists"][0]["ranking"]


@row("POST /v1/next-token", "POST /v1/rerank")
def test_a_session_goes_on_from_what_was_committed(model):
    said = "The cat sat on the mat"
    body = {"candidates": CANDIDATES, "commit": said}
    first = model.ask(RERANK, lists=[body])["lists"][0]
    again = ranking(model, {"candidates": CANDIDATES, "session": first["session"]})
    for place, one in by_index(first["ranking"]).items():
        after = total_after(model, said, TEXTS[place])
        assert one["features"]["lm"] == pytest.approx(after, abs=40 * model.cell.tolerance)
        assert by_index(again)[place]["features"]["lm"] == pytest.approx(after, abs=40 * model.cell.tolerance)


@row("POST /v1/next-token", "POST /v1/rerank")  # backward models take no context
def test_a_context_counts_as_what_was_committed_does(model):
    said = "The cat sat on the mat"
    ranked = by_index(ranking(model, {"candidates": CANDIDATES, "context": said}))
    for place, one in ranked.items():
        after = total_after(model, said, TEXTS[place])
        assert one["features"]["lm"] == pytest.approx(after, abs=40 * model.cell.tolerance)


def total_after(model, context, text):
    """Return the score of a text after a context; the space between belongs to the text if tokens begin with spaces."""
    if model.tokenizer.leading_space:
        text = f" {text}"
    else:
        context = f"{context} "
    return model.score([text], context=context)[0]["logprob"]


@pytest.mark.parametrize("cell", [*filter(self_normalised, CELLS)], ids=str)
def test_unnormalised_scores_rank_and_are_not_mixed(model):
    totals = [one["total"] for one in ranking(model, {"candidates": CANDIDATES}, score_mode="unnormalised")]
    assert totals == sorted(totals, reverse=True)
    assert all(map(math.isfinite, totals))
    parts = [{"model": name, "weight": 0.5} for name in (model.cell.model, model.cell.partner.model)]
    mixed = {"lists": [{"candidates": CANDIDATES}], "mixture": parts, "score_mode": "unnormalised"}
    refused = model.post(RERANK, mixed)
    assert refused.status_code == 400
    assert "only probabilities can be mixed" in refused.json()["error"]["message"]


@row("POST /v1/correct")
def test_a_name_is_corrected_in_its_place(model):
    heard = {"heard": "b", "written": "a", "logprob": 50}
    body = {"texts": [f"b {TEXTS[0]}"], "corrections": [heard], "weights": {"lm": 0.0, "correction": 1.0}}
    answered = model.ask("/v1/correct", **body)["results"][0]
    assert answered["text"] == f"a {TEXTS[0]}"
    where = {"start": 0, "end": 1, "proposer": "corrections", "posterior": answered["posterior"]}
    assert answered["corrections"] == [{**where, "heard": "b", "written": "a"}]


@row("POST /v1/lattices")
def test_a_network_of_texts_gives_those_texts_in_the_order_of_their_scores(model):
    texts = {text: model.score([text])[0]["logprob"] for text in SPACED}
    lattice = {"confusions": [[{"text": text} for text in texts]]}
    exact = {"max_tokens_per_node": 256, "recombination_order": 0}
    [found] = model.ask("/v1/lattices", lattices=[lattice], nbest=len(texts), **exact)["lattices"]
    assert {path["text"] for path in found["nbest"]} == set(texts)
    for path in found["nbest"]:
        assert path["total"] == pytest.approx(texts[path["text"]], abs=40 * model.cell.tolerance)
    totals = [path["total"] for path in found["nbest"]]
    assert totals == sorted(totals, reverse=True)
    assert sum(path["posterior"] for path in found["nbest"]) == pytest.approx(1, abs=1e-6)


@row("POST /v1/restore")
def test_a_restored_text_has_the_same_words(model):
    given = " ".join(TEXTS[:3]).lower().translate(str.maketrans("", "", MARKS))
    answered = model.post("/v1/restore", {"texts": [given], "words": True})
    if answered.status_code == 400:  # its tokens are letters, or its words were in lower case
        assert "without capitals and punctuation" in answered.json()["error"]["message"]
        return
    [result] = answered.json()["results"]
    assert result["text"].lower().translate(str.maketrans("", "", MARKS)) == given
    assert [given[word["start"] : word["end"]] for word in result["words"]] == given.split()


@row("POST /v1/rerank/tune")
def test_tuned_weights_lie_between_the_first_pass_and_the_oracle_and_come_again(model):
    lists = [
        {"candidates": [CANDIDATES[place], CANDIDATES[place - 1]], "reference": TEXTS[place]}
        for place in range(4)
    ]
    body = {"lists": lists, "features": ["am", "lm"], "length_exponents": [0], **QUICK}
    first, again = (model.ask(TUNE, **body) for _ in range(2))
    assert first == again | {"profile": first["profile"]}  # it contains the time
    assert first["oracle"] <= first["tuned"] <= first["worst"]
    assert first["tuned"] <= first["baseline"]

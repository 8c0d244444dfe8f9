"""Scores, stored states and tokenization with every model."""

import math

import pytest

from models.language_model import BOS, EOS, LOG_ZERO
from tests.matrix.cells import row
from tests.matrix.zoo import LOSSLESS, TEXTS
from training.commands import run_evaluate

SCORE, QUALITY = "/v1/score", "/v1/quality"


def forward_row(endpoint):
    """Mark a row without right-to-left models, since it takes a context."""
    return row("POST /v1/next-token", endpoint)


def near(expected, **tolerance):
    """Compare a figure that may be missing, as for a probability of zero."""
    return None if expected is None else pytest.approx(expected, **tolerance)


def total(log_probs):
    """Return a sum as replies report it."""
    return LOG_ZERO if LOG_ZERO in log_probs else sum(log_probs)


@forward_row("POST /v1/score")
def test_a_score_is_the_sum_of_next_token_steps(model):
    text = TEXTS[2]
    ids = [*model.tokenizer.encode(text), EOS]
    rows = model.rows([ids[:length] for length in range(len(ids))])
    steps = [float(row[token]) for row, token in zip(rows, ids, strict=True)]
    reply = model.score([text], detail="token")[0]
    assert [token["id"] for token in reply["tokens"]] == ids
    assert [token["logprob"] for token in reply["tokens"]] == pytest.approx(steps, abs=model.cell.tolerance)
    assert reply["logprob"] == pytest.approx(total(steps), abs=model.cell.tolerance * len(ids))


@row("POST /v1/score")
def test_texts_score_alike_alone_together_and_in_lines(model):
    together = model.score(TEXTS)
    alone = [model.score([text])[0] for text in TEXTS]
    lines = model.lines(SCORE, [{"text": text} for text in TEXTS])
    for one, *others in zip(together, alone, lines, strict=True):
        for other in others:
            if model.cell.is_exact:
                assert other == one
            assert other["logprob"] == pytest.approx(
                one["logprob"], abs=model.cell.tolerance * one["num_tokens"]
            )


@row("POST /v1/score")
def test_words_tokens_and_totals_agree(model):
    reply = model.ask(SCORE, texts=TEXTS, detail="word")
    for text, result in zip(TEXTS, reply["results"], strict=True):
        words = [word["logprob"] for word in result["words"]]
        assert total(words) == pytest.approx(result["logprob"], abs=1e-6 * len(words))
        assert total(model.log_probs(text)) == pytest.approx(
            total(words), abs=model.cell.tolerance * len(words) * 9
        )
    assert reply["corpus"]["logprob"] == pytest.approx(
        total([r["logprob"] for r in reply["results"]]), abs=1e-6
    )
    assert reply["corpus"]["num_tokens"] == sum(result["num_tokens"] for result in reply["results"])


@forward_row("POST /v1/score")
def test_a_text_after_a_context_scores_as_in_the_whole(model):
    whole = model.log_probs("The cat sat on the mat.")
    after = model.log_probs(" sat on the mat.", context="The cat")
    assert after == pytest.approx(whole[-len(after) :], abs=model.cell.tolerance)
    assert len(after) < len(whole)


@row("POST /v1/quality")
def test_quality_is_the_score_by_word(model):
    found = model.ask(QUALITY, texts=TEXTS, against=model.cell.model)["results"]
    lines = model.lines(QUALITY, [{"text": text} for text in TEXTS])
    for text, score, one, line in zip(TEXTS, model.score(TEXTS), found, lines, strict=True):
        bits = -score["logprob"] / math.log(2) / (len(text.split()) + 1)
        expected = None if score["logprob"] == LOG_ZERO else bits
        assert one["bits_per_word"] == near(expected, abs=1e-4)
        assert line["bits_per_word"] == near(expected, abs=1e-4)
        assert one["difference"] == near(None if expected is None else 0, abs=1e-4)
        assert one["perplexity"] == near(score["perplexity"], rel=1e-4)


@row("POST /v1/completions")
def test_an_echo_has_the_scores_of_its_text(model):
    text = TEXTS[1]
    body = {"prompt": [text, TEXTS[0]], "echo": True, "max_tokens": 0, "logprobs": 1}
    choices = model.ask("/v1/completions", **body)["choices"]
    for choice, said in zip(choices, body["prompt"], strict=True):
        assert choice["text"] == said
        scores = model.log_probs(said, eos=False)
        told = choice["logprobs"]["token_logprobs"]
        assert told[0] is None or told[0] == pytest.approx(scores[0], abs=model.cell.tolerance)
        assert told[1:] == pytest.approx(scores[1:], abs=model.cell.tolerance)


@row("POST /v1/score")
def test_offline_evaluation_finds_the_same_perplexity(model, registry, tmp_path):
    corpus = tmp_path / "text.txt"
    corpus.write_text("\n".join(TEXTS), encoding="utf-8")
    way = {"context": "sentence", "unit": "line", "window": 100}
    cell = model.cell
    offline = run_evaluate(
        cell.model,
        corpus=[corpus],
        registry=registry.root,
        device=cell.device,
        precision=cell.precision,
        **way,
    )
    served = model.ask(SCORE, texts=TEXTS)["corpus"]
    assert (served["num_tokens"], served["num_oov"]) == (offline["tokens"], offline["oov"])
    impossible = offline["logprob"] is None
    assert served["logprob"] == (LOG_ZERO if impossible else near(offline["logprob"], rel=1e-5))
    for figure in ("perplexity", "bits_per_byte"):
        assert served[figure] == near(offline[figure], rel=1e-5)


OPEN, ADVANCE = "/v1/states", "/v1/states/advance"
NEXT, FREE = "/v1/states/next", "/v1/states/free"
PIECE = 4
"""Number of tokens per piece."""


def opened(model, context=""):
    return model.ask(OPEN, context=context)["states"][0]["state"]


def advanced(model, state, **options):
    return good(model.post(ADVANCE, {"continuations": [{"state": state, **options}]}))["results"][0]


def good(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()


@row("POST /v1/states", "POST /v1/states/advance")
def test_pieces_from_a_state_score_the_whole(model):
    ids = model.tokenizer.encode(TEXTS[2])
    state, log_probs = opened(model), []
    for first in range(0, len(ids), PIECE):
        step = advanced(model, state, token_ids=ids[first : first + PIECE], eos=True)
        state, log_probs = step["state"], [*log_probs, *step["logprobs"]]
    whole = model.log_probs(TEXTS[2])
    assert [*log_probs, step["eos_logprob"]] == pytest.approx(whole, abs=model.cell.tolerance)


@row("POST /v1/states", "POST /v1/states/advance")
def test_a_text_after_a_state_scores_as_after_a_context(model):
    told = advanced(model, opened(model, "The cat"), text="sat on", keep=False)
    assert told["logprobs"] == pytest.approx(
        model.log_probs(" sat on", context="The cat", eos=False), abs=model.cell.tolerance
    )


@row("POST /v1/states", "POST /v1/states/next")
def test_next_of_states_equals_next_of_their_texts(model):
    contexts = ["", "The cat", TEXTS[2]]
    states = [one["state"] for one in model.ask(OPEN, context=contexts)["states"]]
    rows = model.rows(contexts)
    told = good(model.post(NEXT, {"states": states}))["logprobs"]
    few = good(model.post(NEXT, {"states": states, "token_ids": [EOS, 0]}))["logprobs"]
    for row_told, two, expected in zip(told, few, rows, strict=True):
        assert row_told == pytest.approx(expected, abs=model.cell.tolerance)
        assert two == pytest.approx([expected[EOS], expected[0]], abs=model.cell.tolerance)


@row("POST /v1/states", "POST /v1/states/free")
def test_a_fork_outlives_what_it_came_from(model):
    state = opened(model, "The cat")
    fork = advanced(model, state)["state"]
    before = advanced(model, state, token_ids=[EOS])["logprobs"]
    assert good(model.post(FREE, {"states": [state, state, "nowhere"]})) == {"freed": 1}
    lost = model.post(ADVANCE, {"continuations": [{"state": state}]})
    assert (lost.status_code, lost.json()["error"]["code"]) == (404, "unknown_state")
    assert advanced(model, fork, token_ids=[EOS])["logprobs"] == pytest.approx(
        before, abs=model.cell.tolerance
    )


@row("POST /tokenize")
def test_tokens_are_those_that_are_scored(model):
    for text in TEXTS:
        reply = model.ask("/tokenize", prompt=text)
        plain = model.ask("/tokenize", prompt=text, add_special_tokens=False)
        assert reply["tokens"] == [BOS, *plain["tokens"]]
        scored = model.score([text], detail="token", eos=False)[0]["tokens"]
        assert plain["tokens"] == [token["id"] for token in scored]
        assert plain["count"] == len(plain["tokens"])


@row("POST /detokenize")
def test_detokenized_text_has_the_same_tokens(model):
    for text in TEXTS if model.cell.tokens in LOSSLESS else TEXTS[:1]:
        tokens = model.ask("/tokenize", prompt=text, add_special_tokens=False)["tokens"]
        spelled = model.ask("/detokenize", tokens=tokens)["prompt"]
        assert model.ask("/tokenize", prompt=spelled, add_special_tokens=False)["tokens"] == tokens
        if model.cell.tokens in LOSSLESS:
            assert spelled == text


@row("GET /tokenizer_info")
def test_the_tokenizer_is_told_as_it_is(model):
    told = model.send("GET /tokenizer_info", params={"model": model.cell.model}).json()
    assert told["vocab_size"] == model.vocab_size
    assert told["fingerprint"] == model.tokenizer.fingerprint

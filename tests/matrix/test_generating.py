"""Generation, next-token distributions, completion and checking with every model."""

import math

import numpy as np
import pytest

from models.language_model import BOS, EOS, LOG_ZERO, UNK
from tests.matrix.cells import row

GENERATE, COMPLETIONS = "/v1/generate", "/v1/completions"
PROMPT = "The cat"
GREEDY = {"prompt": PROMPT, "strategy": "greedy", "max_tokens": 8, "logprobs": True}


def greedy(model):
    return model.ask(GENERATE, **GREEDY)["choices"][0]


def streamed(events):
    """Return the text and the ids of a stream of one choice."""
    pieces = [choice for event in events for choice in event["choices"]]
    return "".join(piece["text"] for piece in pieces), [i for piece in pieces for i in piece["token_ids"]]


@row("POST /v1/generate")
def test_greedy_takes_the_most_probable_token_every_time(model):
    choice = greedy(model)
    read = model.tokenizer.encode(PROMPT)
    taken = [*choice["token_ids"], EOS][: GREEDY["max_tokens"]]
    rows = model.rows([[*read, *taken[:length]] for length in range(len(taken))]).copy()
    rows[:, [BOS, UNK]] = -np.inf
    best = rows.max(axis=1)
    assert rows[np.arange(len(taken)), taken] == pytest.approx(best, abs=model.cell.tolerance)
    assert choice["finish_reason"] == ("stop" if taken[-1] == EOS else "length")
    assert choice["logprobs"] == pytest.approx(best[: len(choice["token_ids"])], abs=model.cell.tolerance)


@row("POST /v1/generate")
def test_streamed_is_what_comes_at_once(model):
    choice = greedy(model)
    assert streamed(model.events(GENERATE, **GREEDY)) == (choice["text"], choice["token_ids"])


@row("POST /v1/generate")
def test_healed_prompts_are_continued_by_tokens_that_spell_their_ends(model):
    asked = {
        "prompt": "The cat sl",
        "token_healing": True,
        "max_tokens": 6,
        "logprobs": True,
        "min_tokens": 6,
    }
    choice = model.ask(GENERATE, **asked, seed=5)["choices"][0]
    assert streamed(model.events(GENERATE, **asked, seed=5)) == (choice["text"], choice["token_ids"])
    spelled = b"".join(model.tokenizer.token_bytes[token] for token in choice["token_ids"])
    end = spelled.decode(errors="replace").removesuffix(choice["text"])
    assert end in {" sl", "l"}  # all of the word, or a character
    kept = model.tokenizer.encode(asked["prompt"].removesuffix(end))
    (row,) = model.rows([kept])
    assert choice["logprobs"][0] == pytest.approx(
        float(row[choice["token_ids"][0]]), abs=model.cell.tolerance
    )


@row("POST /v1/generate")
def test_one_beam_is_greedy(model):
    beam = model.ask(GENERATE, **{**GREEDY, "strategy": "beam", "num_beams": 1})["choices"][0]
    assert {**beam, "score": None, "logprobs": None} == {**greedy(model), "score": None, "logprobs": None}


@row("POST /v1/generate")
def test_beams_are_told_best_first_with_the_scores_of_their_tokens(model):
    options = {"prompt": PROMPT, "strategy": "beam", "num_beams": 4, "max_tokens": 6, "length_penalty": 0.0}
    beams = model.ask(GENERATE, n=3, logprobs=True, **options)["choices"]
    scores = [beam["score"] for beam in beams]
    assert scores == sorted(scores, reverse=True)
    for beam in filter(lambda beam: beam["token_ids"], beams):
        asked = {"token_ids": [beam["token_ids"]], "context": model.tokenizer.encode(PROMPT), "eos": False}
        tokens = model.ask("/v1/score", detail="token", **asked)["results"][0]["tokens"]
        scored = [token["logprob"] for token in tokens]
        assert beam["logprobs"] == pytest.approx(scored, abs=model.cell.tolerance)


@row("POST /v1/generate")
def test_a_seed_gives_the_same_texts_again(model):
    drawn = {"prompt": PROMPT, "max_tokens": 8, "n": 3, "seed": 11, "top_p": 0.9, "temperature": 1.3}
    first, again = (model.ask(GENERATE, **drawn)["choices"] for _ in range(2))
    assert [choice["token_ids"] for choice in first] == [choice["token_ids"] for choice in again]
    others = model.ask(GENERATE, **{**drawn, "seed": 12, "n": 8, "max_tokens": 32, "ignore_eos": True})[
        "choices"
    ]
    assert len({tuple(choice["token_ids"]) for choice in others}) > 1


@row("POST /v1/completions")
def test_completions_continue_as_generate_does(model):
    choice = model.ask(COMPLETIONS, prompt=PROMPT, temperature=0, max_tokens=8, logprobs=0)["choices"][0]
    expected = greedy(model)
    assert (choice["text"], choice["finish_reason"]) == (expected["text"], expected["finish_reason"])
    told = choice["logprobs"]["token_logprobs"][: len(expected["logprobs"])]
    assert told == pytest.approx(expected["logprobs"], abs=model.cell.tolerance)


@row("POST /v1/completions")
def test_completions_stream_what_comes_at_once(model):
    asked = {"prompt": [PROMPT, "A dog"], "seed": 3, "max_tokens": 6}
    whole = [choice["text"] for choice in model.ask(COMPLETIONS, **asked)["choices"]]
    texts = ["", ""]
    for event in model.events(COMPLETIONS, **asked):
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == whole


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
def test_requested_tokens_have_the_bits_of_the_distribution(model):
    ids = np.random.default_rng(1).permutation(model.vocab_size)[:40].tolist()
    rows = model.rows(CONTEXTS)[:, ids]
    body = {"model": model.cell.model, "context": CONTEXTS, "token_ids": ids}
    raw = model.post(NEXT, body, accept="application/octet-stream")
    assert raw.headers["x-shape"] == f"{len(CONTEXTS)},{len(ids)}"
    np.testing.assert_array_equal(np.frombuffer(raw.content, "<f4").reshape(rows.shape), rows)
    for entropy in (True, False):
        told = candidates(model, token_ids=ids, entropy=entropy)
        assert [[one["id"] for one in some] for some in told] == [ids] * len(CONTEXTS)
        np.testing.assert_array_equal(np.float32([[one["logprob"] for one in some] for some in told]), rows)


@row("POST /v1/next-token", "POST /v1/score")
def test_requested_texts_score_as_by_the_score_endpoint(model):
    encode, contexts = model.tokenizer.encode_after, ["The", "saw the", ""]
    pieces = (spelled.decode(errors="ignore") for spelled in model.tokenizer.token_bytes[3:])
    known = (text for text in pieces if text.strip().isalpha())
    piece = next(text for text in known if len(encode("The", text)[0]) - encode("The", text)[1] == 1)
    texts = [" cat", " cat sat", " cat sat on", ".", " Zq", piece]
    for context, result in zip(
        contexts, model.ask(NEXT, context=contexts, candidates=texts)["results"], strict=True
    ):
        told = result["candidates"]
        assert [one["text"] for one in told] == texts
        expected = model.score(texts, context=context, eos=False, detail="token")
        assert [one["token_ids"] for one in told] == [[t["id"] for t in one["tokens"]] for one in expected]
        lengths = [one["num_tokens"] for one in expected]
        tolerance = 1e-6 if model.cell.is_exact else model.cell.tolerance * max(lengths)
        assert [one["logprob"] for one in told] == pytest.approx(
            [one["logprob"] for one in expected], abs=tolerance
        )

    ids, count = encode("The", piece)
    (alone,) = model.ask(NEXT, context="The", candidates=[piece, piece])["results"][0]["candidates"][1:]
    assert np.float32(alone["logprob"]) == model.rows([ids[:count]])[0, ids[count]]


@row("POST /v1/next-token")
def test_words_and_what_was_not_explored_are_a_share_of_the_whole(model):
    for reply in model.ask(NEXT, context=CONTEXTS, top_k=8, unit="word")["results"]:
        log_probs = [word["logprob"] for word in reply["candidates"]]
        assert log_probs == sorted(log_probs, reverse=True)
        mass = np.exp(log_probs).sum() + reply["unexplored_mass"]
        assert 0 <= reply["unexplored_mass"] <= mass <= 1 + model.cell.mass_tolerance
        texts = [word["text"] for word in reply["candidates"]]
        assert len(set(texts)) == len(texts)


AUTOCOMPLETE, CHECK = "/v1/autocomplete", "/v1/check"
ACCEPTED = "/v1/autocomplete/users/{user}/accepted"


@row("POST /v1/autocomplete")
def test_completions_go_on_from_the_prefix_the_likeliest_first(model):
    for text in ("The ca", "A dog ran to the ", "", "zz"):
        reply = model.ask(AUTOCOMPLETE, text=text, limit=6)
        prefix, found = reply["prefix"], reply["completions"]
        assert text[reply["start"] :] == prefix
        for one in found:
            assert one["text"].casefold().startswith(prefix.casefold())
            assert one["suffix"] is None or one["suffix"].strip() == one["text"][len(prefix) :]
        assert found == sorted(found, key=lambda one: (not one["is_complete_word"], -one["probability"]))
        assert 0 <= reply["unexplored_mass"] <= 1
        whole = [one["probability"] for one in found if one["is_complete_word"]]
        assert sum(whole) <= 1 + model.cell.mass_tolerance


@row("POST /v1/autocomplete", "POST /v1/autocomplete/users/{user}/accepted")
def test_accepted_words_are_completed_with_any_model(model):
    model.post(ACCEPTED, {"text": "catamaran", "context": "A"}, user="ann")
    reply = model.ask(AUTOCOMPLETE, text="The cat", limit=20, user="ann", user_weight=0.9)
    offered = {one["text"]: one["source"] for one in reply["completions"]}
    assert offered["catamaran"] == "user"


@row("POST /v1/autocomplete", "POST /v1/autocomplete/users/{user}/accepted")
def test_a_misspelling_is_corrected_with_any_model_once_its_user_did_so_twice(model):
    for _ in range(2):
        model.post(ACCEPTED, {"text": "catamaran", "typed": "cxatamar"}, user="bob")
    reply = model.ask(AUTOCOMPLETE, text="The cxatamar", limit=20, user="bob", user_weight=0.9)
    offered = {one["text"]: (one["source"], one["suffix"]) for one in reply["completions"]}
    assert offered["catamaran"] == ("user", None)


@row("POST /v1/check")
def test_the_surprise_of_a_checked_text_is_its_score(model):
    for text in ("the naïve owl  saw 漢字 here", "zzz"):  # which checking reads as they are
        reply = model.ask(CHECK, text=text)
        log_prob = model.score([text])[0]["logprob"]
        if log_prob > LOG_ZERO:
            expected = -log_prob / math.log(2)
            assert reply["surprisal_bits"] == pytest.approx(expected, abs=1e-3)
        else:
            assert reply["surprisal_bits"] >= -LOG_ZERO


@row("POST /v1/check")
def test_issues_lie_in_the_text_and_suggestions_have_shares_of_what_was_meant(model):
    text = "The cet sat on teh mat.\nA dog  ran two the house."
    reply = model.ask(CHECK, text=text, threshold=0.05, max_suggestions=4, dictionary=["teh"])
    assert [word["text"] for word in reply["words"]] == [text[w["start"] : w["end"]] for w in reply["words"]]
    for issue in reply["issues"]:
        assert issue["text"] == text[issue["start"] : issue["end"]]
        assert issue["text"] != "teh"
        assert 0.05 <= issue["probability"] <= 1
        shares = [one["probability"] for one in issue["suggestions"]]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) <= issue["probability"] + 1e-6

"""Words that are being typed, and words that are probably wrong."""

import math

import pytest

from models.language_model import LOG_ZERO
from tests.matrix.rows import row
from tests.matrix.texts import TEXTS

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
        probabilities = [one["probability"] for one in found]
        assert probabilities == sorted(probabilities, reverse=True)
        assert 0 <= reply["unexplored_mass"] <= 1
        whole = [one["probability"] for one in found if one["is_complete_word"]]
        assert sum(whole) <= 1 + model.cell.mass_tolerance


@row("POST /v1/autocomplete", "POST /v1/autocomplete/users/{user}/accepted")
def test_what_a_user_accepted_is_offered_by_any_model(model):
    model.post(ACCEPTED, {"text": "catamaran", "context": "A"}, user="ann")
    reply = model.ask(AUTOCOMPLETE, text="The cat", limit=20, user="ann", user_weight=0.9)
    offered = {one["text"]: one["source"] for one in reply["completions"]}
    assert offered["catamaran"] == "user"


@row("POST /v1/check")
def test_the_surprise_of_a_checked_text_is_its_score(model):
    for text in TEXTS[2:]:
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

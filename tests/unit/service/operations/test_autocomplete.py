"""Parts of autocomplete: letter case, cached model results, users' words and sessions."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from models.calls import run_call, run_to_completion
from models.completion.search import CompletionSettings, Reading
from models.completion.searches import run_searches, start_search
from models.errors import SupersededError
from models.language_model import Vocabulary
from models.prefix_cache import NextTokenCache, NextTokenEntry
from models.scoring.model_weights import WeightedModel
from models.scoring.sequences import predict_next
from models.text_model import Limits
from models.tokenizers import CharacterTokenizer, WordTokenizer
from models.words import match_beginning
from service.operations.autocomplete import AutocompleteRequest, autocomplete
from service.routes.request import AutocompleteSessions
from tests.unit.conftest import loaded

LIMITS = Limits(max_texts=10, max_tokens_per_sequence=1000, max_new_tokens=1)
MODELS = {
    "words": loaded(WordTokenizer(Vocabulary(["we", "aren't", "Aujourd'hui", "use", "node", "j"]))),
    "pattern": loaded(
        WordTokenizer(Vocabulary(["we", "aren", "t", "'", "(", ")", ",", "use"]), pattern=r"\w+|[^\w\s]")
    ),
    "characters": loaded(CharacterTokenizer(Vocabulary("we arn'tujodhis."))),
}


def complete(model, text, **options):
    request = AutocompleteRequest(text=text, limit=100, **options)
    reply = run_to_completion(autocomplete([WeightedModel(MODELS[model])], request, LIMITS))
    return {one.text: one for one in reply.completions}


@pytest.mark.parametrize(
    ("typed", "expected", "options"),
    [
        ("aren\u2019", "aren\u2019t", {}),
        ("aren'", "aren't", {}),
        ("Aren\u2019", "Aren\u2019t", {"casing": "ignore"}),
        ("AREN\u2019", "AREN\u2019T", {"casing": "ignore"}),
        ("Aujourd\u2019h", "Aujourd\u2019hui", {}),
        ("aren\u2019", "aren\u2019t", {"fuzzy": 1}),
        ("\uff41ren'", "\uff41ren't", {}),
    ],
)
def test_words_are_completed_with_the_typed_apostrophe(typed, expected, options):
    assert complete("words", f"we {typed}", **options)[expected].suffix == expected[len(typed) :]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("text", ["", "we", "we ", "we a", "we ar", "we zz", "use (", "<"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"limit": 2},
        {"max_words": 3},
        {"min_probability": 0.05},
        {"max_steps": 3},
        {"open_vocabulary": True},
    ],
)
def test_a_blocked_word_that_no_completion_has_changes_nothing(model, text, options):
    """Without a blocklist, a search's words are not merged and ordered again."""
    models = [WeightedModel(MODELS[model])]
    plain, other = (
        run_to_completion(autocomplete(models, AutocompleteRequest(text=text, **options, **given), LIMITS))
        for given in ({}, {"blocklist": ["qqqqqq"]})
    )
    found, expected = ([replace(one, probability=0) for one in reply.completions] for reply in (plain, other))
    assert found == expected
    for one, same in zip(plain.completions, other.completions, strict=True):
        assert one.probability == pytest.approx(same.probability, rel=1e-12)
    assert plain.unexplored_mass == pytest.approx(other.unexplored_mass, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("entry", ["couldn't", "couldn\u2019t"])
@pytest.mark.parametrize("typed", ["couldn'", "couldn\u2019"])
def test_words_of_a_dictionary_are_found_with_either_apostrophe(model, entry, typed):
    found = complete(model, f"we {typed}", dictionary=[entry], user_weight=1.0)
    (one,) = (one for one in found.values() if one.text.replace("\u2019", "'") == "couldn't")
    assert one.start == 3
    assert one.suffix == ("t" if one.text.startswith(typed) else None)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_the_cache_counts_what_a_search_has_read(is_cancelled):
    model = replace(MODELS["characters"], next_token_cache=NextTokenCache(1 << 24))
    entry = run_to_completion(predict_next(model, "we ", LIMITS, param="text"))
    before = model.next_token_cache.num_bytes
    search = start_search(model, Reading.after(entry), b"a", CompletionSettings())
    work = run_searches(model, [search], "we ", entry)
    if is_cancelled:
        read = run_call(next(work))
        work.send(read)
        work.close()
    else:
        run_to_completion(work)
    assert model.next_token_cache.num_bytes == before + entry.longer.num_bytes > before


def test_a_pattern_model_completes_after_either_apostrophe_without_a_space():
    for text in ("we aren'", "we aren\u2019"):
        found = complete("pattern", text)
        assert [found[word].suffix for word in ("t", ")", ",")] == ["t", ")", ","]


def test_a_pattern_model_writes_phrases_as_texts_do():
    found = complete("pattern", "use (we", max_words=4)
    assert "we)" in found
    assert [text for text in complete("pattern", "use aren", max_words=3) if text.startswith("aren'")]
    assert all(f"we{one.suffix}" == text for text, one in found.items())
    assert not [text for text in found if " ," in text or "( " in text or " )" in text]


SIGNED = {
    "node.j": ("node.js", 4),
    "node.": ("node.js", 4),
    "(node.j": ("node.js", 5),
    "`node.j": ("node.js", 5),
    "R&": ("R&D", 4),
    "C+": ("C++", 4),
    ".N": (".NET", 4),
    "@ang": ("@angular/core", 4),
    "(@ang": ("@angular/core", 5),
    "@angular/c": ("@angular/core", 4),
    "Ph.": ("Ph.D.", 4),
    "Ph.D": ("Ph.D.", 4),
    "AT&": ("AT&T", 4),
    "l\u2019\u00c9tat-m": ("l'\u00c9tat-major", 4),
}
DICTIONARY = sorted({entry for entry, _ in SIGNED.values()})


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("typed", "expected"), SIGNED.items(), ids=SIGNED)
def test_entries_with_signs_are_completed_from_their_beginning(model, typed, expected):
    entry, start = expected
    found = complete(model, f"use {typed}", dictionary=DICTIONARY)
    one = next(one for one in found.values() if one.text.replace("\u2019", "'") == entry)
    assert (one.start, one.suffix, one.source) == (start, entry[len(typed.lstrip("(`")) :], "user")
    assert one.probability > 0.1
    assert sum(one.probability for one in found.values() if one.is_complete_word) <= 1 + 1e-6


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("use xnode.j", {}),
        ("use Node.j", {}),
        ("use node. j", {}),
        ("use node.j ", {}),
        ("use node.j", {"blocklist": ["node.js"]}),
        ("use node.j", {"dictionary": ["node.exe"]}),
    ],
)
def test_entries_with_signs_are_not_offered_for_other_texts(text, options):
    found = complete("words", text, **{"dictionary": ["node.js"]} | options)
    assert not [one for one in found.values() if one.start < text.index("j") and one.text != "use"]


def test_entries_with_signs_are_found_in_any_case_if_it_is_ignored():
    one = complete("words", "use Node.J", dictionary=["node.js"], casing="ignore")["Node.Js"]
    assert (one.start, one.suffix) == (4, "s")


@pytest.mark.parametrize(
    ("typed", "word", "told"),
    [
        ("hel", "hello", "hello"),
        ("Hel", "hello", "Hello"),
        ("HEL", "hello", "HELLO"),
        ("H", "hello", "Hello"),
        ("hEl", "hello", "hEllo"),
        ("par", "Paris", "Paris"),
        ("PAR", "Paris", "Paris"),
        ("Pa", "Paris", "Paris"),
        ("", "hello", "hello"),
        ("I'", "i'm", "I'm"),
        ("STRASS", "straße", "straße"),
        ("שלו", "שלום", "שלום"),
    ],
)
def test_a_word_is_told_in_the_case_in_which_it_was_begun(typed, word, told):
    assert match_beginning(typed, word) == told


@pytest.mark.parametrize(
    ("typed", "told"), [("Hle", "Hello"), ("HLE", "HELLO"), ("hle", "hello"), ("hLe", "hello")]
)
def test_of_a_mistyped_beginning_the_first_capital_counts(typed, told):
    assert match_beginning(typed, "hello", corrected=True) == told


def look(size=100):
    return NextTokenEntry(3, None, np.zeros((1, size), np.float32))


def test_looks_are_found_by_the_very_text():
    looks = NextTokenCache(10_000)
    looks.put("the cat", found := look())
    assert looks.find("the cat") is found
    assert looks.find("the cat ") is None


def test_looks_are_bounded_and_the_least_recently_used_go_first():
    looks = NextTokenCache(3000)
    for text in "abc":
        looks.put(text, look())
        looks.find("a")
    looks.put("d", look())
    assert [text for text in "abcd" if looks.find(text)] == ["a", "c", "d"]
    assert 0 < looks.num_bytes <= 3000


def test_a_look_larger_than_all_may_be_is_not_kept():
    looks = NextTokenCache(1000)
    looks.put("a", look(1000))
    looks.put("b" * 1000, look(1))
    assert (len(looks), looks.num_bytes) == (0, 0)


def test_a_look_that_is_kept_again_counts_once():
    looks = NextTokenCache(3000)
    for _ in range(9):
        looks.put("a", look())
    assert (len(looks), looks.num_bytes < 1000) == (1, True)


def in_a_loop(*bodies):
    """Results of successive (session, duration) requests, and the number of open sessions."""

    async def request(sessions, session, seconds):
        answer = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(seconds, lambda: answer.done() or answer.set_result("done"))
        try:
            with sessions.newest("key", session, answer):
                return await answer
        except SupersededError:
            return "superseded"

    async def main():
        sessions = AutocompleteSessions()
        tasks = []
        for session, seconds in bodies:
            tasks.append(asyncio.create_task(request(sessions, session, seconds)))
            await asyncio.sleep(0)
        return await asyncio.gather(*tasks), len(sessions._newest)

    return asyncio.run(main())


def test_the_newest_request_of_a_session_alone_is_answered():
    outcomes, left = in_a_loop(("a", 0.05), ("b", 0.01), ("a", 0.05), ("a", 0.0))
    assert outcomes == ["superseded", "done", "superseded", "done"]
    assert left == 0


def test_a_request_that_is_cancelled_by_others_is_not_called_superseded():
    async def main():
        sessions = AutocompleteSessions()
        answer = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(answer.cancel)
        with sessions.newest("key", "a", answer):
            await answer

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())

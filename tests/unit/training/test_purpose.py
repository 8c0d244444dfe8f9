"""Choice of recipe and tokenizer for a purpose and a text."""

import lzma

import pytest

from models.errors import FormatError, InputError
from training import purpose as module
from training.progress import SILENT
from training.publish import RunContext
from training.purpose import (
    TypingCandidate,
    choose_candidate,
    choose_recipe,
    typing_candidates,
)
from training.recipe import load_recipe
from training.single_model import Trained

WRITTEN = 'He said: "Come here, Tom!" Then he left.\nNobody answered, of course.\n'
TOKENISED = 'he said : " come here , tom ! " then he left .\nnobody answered , of course .\n'
NEWS = 'Mr. Smith , of Corp. , sold 5 shares ; U.S. prices fell . " No , " he said .\n'
UNSPACED = "我们今天去公园玩。老师很高兴。\nฉันรักแม่\n"
HINDI = "वह घर गया। क्या तुम आओगे? हाँ।\n"
SPOKEN = "he said come here tom then he left\nnobody answered of course\n"


@pytest.fixture
def text(tmp_path):
    """Write a text; return its path."""

    def write(content, name="text.txt"):
        path = tmp_path / name
        path.write_text(content * 200, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("purpose", "content", "kind"),
    [
        ("autocomplete", WRITTEN, "unigram"),
        ("score", WRITTEN, "unigram"),
        ("rerank", WRITTEN, "unigram"),
        ("check", WRITTEN, "unigram"),
        ("rerank", SPOKEN, "word"),
        ("check", SPOKEN, "unigram"),
        ("autocomplete", SPOKEN, "unigram"),
        *[
            (purpose, content, kind)
            for content, kind in (
                (TOKENISED, "word"),
                (NEWS, "word"),
                (UNSPACED, "unigram"),
            )
            for purpose in ("autocomplete", "rerank", "check", "score")
        ],
        ("check", HINDI, "unigram"),
        ("rerank", HINDI, "unigram"),
        ("rerank", "he 's goin' an' nobody knows\n", "word"),
    ],
)
def test_the_tokenizer_fits_the_purpose_and_the_text(text, purpose, content, kind):
    choice = choose_recipe(purpose, [text(content)])
    assert choice.recipe == "ngram"
    assert choice.settings["tokenizer.kind"] == kind
    assert [reason.partition("=")[0] for reason in choice.reasons[1:]] == list(choice.settings)


@pytest.mark.parametrize("purpose", ["autocomplete", "rerank", "check", "score"])
@pytest.mark.parametrize("content", [WRITTEN, TOKENISED, SPOKEN, "cafe\u0301 \n"])
def test_every_choice_is_a_recipe_without_keys_that_have_no_effect(text, purpose, content, monkeypatch):
    for least in (1, 10**9):
        monkeypatch.setattr(module, "_MIN_NETWORK_WORDS", least)
        monkeypatch.setattr(module, "_MIN_WORDS_FOR_MIN_COUNT", least)
        choice = choose_recipe(purpose, [text(content)])
        settings = [f"{key}={value}" for key, value in choice.settings.items()]
        load_recipe(choice.recipe, settings)


def test_a_long_text_gets_a_network(text, monkeypatch):
    monkeypatch.setattr(module, "_MIN_NETWORK_WORDS", 1000)
    assert choose_recipe("score", [text(SPOKEN)]).recipe == "mixture"
    assert choose_recipe("score", [text(SPOKEN[:10])]).recipe == "ngram"


ALL_KEYS = (
    "train.max_minutes",
    "tokenizer.kind",
    "tokenizer.min_count",
    "tokenizer.normalise",
)


@pytest.mark.parametrize("key", ALL_KEYS)
def test_a_key_that_the_user_sets_is_neither_chosen_nor_explained(text, monkeypatch, key):
    monkeypatch.setattr(module, "_MIN_NETWORK_WORDS", 1)
    monkeypatch.setattr(module, "_MIN_WORDS_FOR_MIN_COUNT", 1)
    given = {"tokenizer.kind": "word"}.get(key, "5")
    path = text("caf\u00e9 , cafe\u0301 .\n")
    assert tuple(choose_recipe("rerank", [path]).settings) == ALL_KEYS
    choice = choose_recipe("rerank", [path], assignments=[f"{key}={given}"])
    assert tuple(choice.settings) == tuple(one for one in ALL_KEYS if one != key)
    assert not any(key in reason for reason in choice.reasons)


def test_another_tokenizer_of_the_user_gets_no_key_of_a_words_tokenizer(text, monkeypatch):
    monkeypatch.setattr(module, "_MIN_WORDS_FOR_MIN_COUNT", 1)
    choice = choose_recipe("rerank", [text(TOKENISED)], assignments=["tokenizer.kind=char"])
    assert "tokenizer.min_count" not in choice.settings


def test_words_of_a_script_without_spaces_are_counted_by_characters(text):
    assert "about 2,000 words" in choose_recipe("score", [text("我们今天去公园玩了。" * 2 + "\n")]).reasons[0]


def test_engines_out_of_core_train_no_network(text, monkeypatch):
    monkeypatch.setattr(module, "_MIN_NETWORK_WORDS", 1)
    choice = choose_recipe("score", [text(WRITTEN)], engine="duckdb")
    assert (choice.recipe, choice.reasons[0]) == (
        "ngram",
        "recipe ngram: --engine duckdb trains no networks",
    )
    assert "train.max_minutes" not in choice.settings


def test_letters_in_several_forms_are_composed(text):
    assert choose_recipe("score", [text("caf\u00e9 cafe\u0301\n")]).settings["tokenizer.normalise"] == "nfc"
    assert "tokenizer.normalise" not in choose_recipe("score", [text("caf\u00e9\n")]).settings


def test_the_size_is_estimated_from_the_beginning(text, monkeypatch):
    """A compressed text of random letters is estimated too long, by the assumed ratio."""
    path = text(SPOKEN)
    monkeypatch.setattr(module, "_SAMPLE_SENTENCES", 10)
    assert "about 2,400 words" in choose_recipe("score", [path]).reasons[0]
    packed = path.with_name("text.txt.xz")
    packed.write_bytes(lzma.compress(path.read_bytes()))
    assert choose_recipe("score", [packed]).recipe == "ngram"


def test_the_default_text_has_a_choice_and_a_missing_one_is_refused(tmp_path):
    assert choose_recipe("autocomplete", []).settings == {"tokenizer.kind": "unigram"}
    with pytest.raises(FormatError, match="there is no such file"):
        choose_recipe("score", [tmp_path / "none.txt"])


@pytest.mark.parametrize(
    ("typists", "purpose", "engine", "problem"),
    [
        (0, "autocomplete", "memory", "typists is 0; it must be at least 1"),
        (-4, "autocomplete", "memory", "typists is -4; it must be at least 1"),
        (5, "check", "memory", "--typists requires --for autocomplete, given check"),
        (
            5,
            "autocomplete",
            "duckdb",
            "--typists requires --engine memory, given duckdb",
        ),
    ],
)
def test_typists_who_cannot_be_are_refused_before_the_text_is_read(
    typists, purpose, engine, problem, tmp_path
):
    with pytest.raises(InputError, match=problem):
        choose_recipe(purpose, [tmp_path / "none.txt"], engine=engine, typists=typists)


def test_a_model_of_words_may_replace_one_of_pieces_that_the_user_did_not_ask_for(text):
    given = ["ngram.order=3", "train.max_minutes=1", "tokenizer.vocab_size=99"]
    path = text(WRITTEN)
    typing = choose_recipe("autocomplete", [path], assignments=given, typists=7).typing
    recipe = load_recipe("ngram", typing.of_words)
    assert (typing.typists, recipe.tokenizer.kind, recipe.ngram.order) == (7, "word", 3)
    assert recipe.tokenizer.vocab_size is None
    for settings in (["tokenizer.kind=unigram"], ["tokenizer.kind=char"]):
        assert choose_recipe("autocomplete", [path], assignments=settings).typing == (
            None,
            [],
        )
    assert choose_recipe("autocomplete", [text(UNSPACED)]).typing == (None, [])
    assert choose_recipe("score", [path]).typing is None
    assert choose_recipe("autocomplete", [path], engine="duckdb").typing is None


def trained(title, bits, parts=()):
    figures = {"valid": {"bits_per_byte": bits}}
    return Trained(title, load_recipe("ngram"), title, (), {}, figures, 0.0, parts)


def test_a_core_carries_those_who_keep_it_busy_for_half_of_the_time(monkeypatch):
    """A key in 200 ms that takes 0.7 ms and a request: 100 typists; the parts follow, the best first."""
    costs = {"whole": 0.7, "worse": 0.1, "better": 1.7}
    monkeypatch.setattr(module, "typing_cost", lambda model, *_, **__: {"core_ms_per_key": costs[model]})
    monkeypatch.setattr(module, "available_cores", lambda: 2.5)
    whole = trained("whole", 1.0, [trained("worse", None), trained("better", 2.0)])
    found = typing_candidates(whole, RunContext(None, {}, None), [], progress=SILENT)
    assert [(one.trained.title, one.facts["typists"]) for one in found] == [
        ("whole", 250),
        ("better", 125),
        ("worse", 625),
    ]
    assert found[0].facts["typists_per_core"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("typists", "chosen", "reason"),
    [
        (None, "mixture", ""),
        (30, "mixture", ""),
        (
            31,
            "lstm",
            "lstm is published: it carries 31 typists on 2 cores, mixture only 30",
        ),
        (
            50,
            "ngram",
            "ngram is published: it carries 50 typists on 2 cores, mixture only 30",
        ),
        (
            91,
            "ngram",
            "ngram is published: no model carries 91 typists on 2 cores, and it is the cheapest; it carries 90",
        ),
    ],
)
def test_the_first_that_carries_the_typists_is_chosen_else_the_cheapest(monkeypatch, typists, chosen, reason):
    monkeypatch.setattr(module, "available_cores", lambda: 2.0)
    carried = {"mixture": (9, 30), "lstm": (6, 40), "ngram": (2, 90)}
    candidates = [
        TypingCandidate(
            trained(name, 1.0),
            None,
            {"name": name, "core_ms_per_key": ms, "typists": count},
        )
        for name, (ms, count) in carried.items()
    ]
    found = choose_candidate(candidates, typists).trained
    typing = found.facts["typing"]
    assert (found.title, typing["chosen"], typing["reason"]) == (chosen, chosen, reason)
    assert [one["name"] for one in typing["candidates"]] == list(carried)
    assert "every 200 ms" in typing["assumed"]

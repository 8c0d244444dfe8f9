"""Checks of texts in another Unicode form than the model's: positions are those of the text as given."""

import itertools
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.checking.error_model import CandidateSettings, GivenSpan
from models.checking.sentences import MAX_SENTENCE_TOKENS, sentence_splitter_for
from models.language_model import Vocabulary
from models.tokenizers import CharacterTokenizer, WordTokenizer
from models.words import dictionary_key
from tests.support.text_models import ACCENTED, check, trigram

RULES = {"word": {}, "pattern": {"pattern": r"\w+|[^\w\s]"}, "char": {}, "unigram": {}, "bpe": {}}
each_kind = pytest.mark.parametrize("kind", RULES)
PARTS = [
    *"\u00f6\u00e4\u00e9ct ",
    "t\u0308",
    "\u0301",
    "\ufb01",
    "(",
    ",",
    "\n",
    "\u0130",
    "\u3000",
    "\uac01",
    "\u00a8",
    "\u2026",
]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)


def model_of(kind, form="nfc"):
    return trigram("word" if kind == "pattern" else kind, form, **RULES[kind])


def nfd(text):
    return unicodedata.normalize("NFD", text)


def sentences_of(kind, text, form="nfc"):
    return list(sentence_splitter_for(model_of(kind, form)[1]).sentences(text, lookahead=4))


@each_kind
@pytest.mark.parametrize("form", ["nfc", "nfkc", "casefold"])
@given(text=TEXTS)
def test_words_and_tokens_are_in_order_where_they_say(kind, form, text):
    splitter = sentence_splitter_for(model_of(kind, form)[1])
    for sentence in sentences_of(kind, text, form):
        assert len(sentence.begins) == len(sentence.ids)
        assert sorted(sentence.begins) == sentence.begins.tolist()
        assert all(text[word.start : word.end] == word.text for word in sentence.words)
        assert all(word.start < word.end for word in sentence.words)
        assert all(a.start <= b.start and a.end <= b.end for a, b in itertools.pairwise(sentence.words))
    lines = [sentence.ids.tolist() for sentence in sentences_of(kind, text, form)]
    assert lines == [ids for line in text.split("\n") if (ids := splitter.encode(line))]


@each_kind
@given(text=TEXTS.filter(lambda text: "\u0301" not in text))
def test_a_decomposed_text_has_the_words_of_the_composed_one(kind, text):
    composed = unicodedata.normalize("NFC", text)
    for given_form, sentence in zip(sentences_of(kind, nfd(text)), sentences_of(kind, composed), strict=True):
        assert given_form.ids.tolist() == sentence.ids.tolist()
        for word, same in zip(given_form.words, sentence.words, strict=True):
            assert unicodedata.normalize("NFC", word.text) == same.text
            assert word[3:] == same[3:]


def test_two_words_of_one_character_both_span_it():
    tokenizer = WordTokenizer(Vocabulary(["1", "2"]), pattern=r"\w", normalise="nfkc")
    (sentence,) = sentence_splitter_for(tokenizer).sentences("a\u00bdb", lookahead=4)
    assert [(word.text, word.known) for word in sentence.words] == [
        ("a", False),
        ("\u00bd", True),
        ("\u00bd", True),
        ("b", False),
    ]


def test_the_space_before_a_word_of_decomposed_characters_belongs_to_it():
    tokenizer = CharacterTokenizer(Vocabulary("\u00e9t ,"), normalise="nfc")
    (sentence,) = sentence_splitter_for(tokenizer).sentences(nfd("\u00e9t, \u00e9"), lookahead=4)
    assert [(word.start, word.end, word.first, word.last) for word in sentence.words] == [
        (0, 3, 0, 2),
        (5, 7, 3, 5),
    ]


@each_kind
def test_a_long_decomposed_line_is_cut_at_words(kind):
    text = nfd("the cat sat on the mat, ".translate(ACCENTED) * 200)
    parts = sentences_of(kind, text)
    tokenizer = model_of(kind)[1]
    assert max(len(part.ids) for part in parts) <= MAX_SENTENCE_TOKENS < sum(len(part.ids) for part in parts)
    for part in parts:
        assert tokenizer.encode(part.text) == part.ids.tolist()
        assert text[part.offset :].startswith(part.text)


def spans(issues):
    return [(issue.start, issue.end) for issue in issues]


ERRORS = ["the cat sat of teh mat", "he took off his aht", "a dgo, ofthe mat", "the ho use"]


@each_kind
@pytest.mark.parametrize("text", [text.translate(ACCENTED) for text in ERRORS])
def test_issues_of_a_decomposed_text_are_those_of_the_composed_one(kind, text):
    search = CandidateSettings(min_surprisal_bits=5.0)
    model = model_of(kind)
    expected = check(*model, text, threshold=0.05, search=search)
    issues = check(*model, nfd(text), threshold=0.05, search=search)
    assert [issue.probability for issue in issues] == pytest.approx(
        [i.probability for i in expected], rel=1e-5
    )
    assert spans(issues) == [(len(nfd(text[:start])), len(nfd(text[:end]))) for start, end in spans(expected)]
    for issue, same in zip(issues, expected, strict=True):
        texts = [unicodedata.normalize("NFC", suggestion.text) for suggestion in issue.suggestions]
        assert texts == [suggestion.text for suggestion in same.suggestions]
    assert expected


@each_kind
def test_dictionary_words_and_given_suggestions_may_have_any_form(kind):
    model = model_of(kind)
    search = CandidateSettings(min_surprisal_bits=5.0)
    composed = "the cat sat on gnuplot mat".translate(ACCENTED)
    text = nfd(composed)
    start, end = (len(nfd(composed[:at])) for at in (15, 22))
    word = composed[15:22]
    assert (start, end) in spans(check(*model, text, threshold=0.0, search=search))
    known = check(*model, text, threshold=0.0, search=search, dictionary={dictionary_key(word): word})
    assert (start, end) not in spans(known)
    suggested = (GivenSpan(start, end, ((nfd("h\u00e4t"), -0.5),), "candidates[0]"),)
    (issue,) = [i for i in check(*model, text, threshold=0.0, given=suggested) if i.start == start]
    assert issue.suggestions[0].text == nfd("h\u00e4t")


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_suggestions_have_the_case_of_what_was_typed(kind):
    issues = check(
        *model_of(kind, "casefold"),
        nfd("TH\u00c9 C\u00c4T S\u00c4T \u00d6N T\u00c9H M\u00c4T"),
        threshold=0.0,
    )
    texts = {suggestion.text for issue in issues for suggestion in issue.suggestions}
    assert texts
    assert all(text == text.upper() for text in texts)

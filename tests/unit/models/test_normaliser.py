"""Unicode forms of tokenizers: normalised texts, positions in the text as given, ids, files."""

import functools
import hashlib
import json
import sys
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.checkpoint.load import load_tokenizer
from models.errors import ManifestError
from models.language_model import UNK, Vocabulary
from models.normaliser import TEXT_FORMS, Normaliser
from models.tokenizers import CharacterTokenizer, PieceTokenizer, WordTokenizer
from training.tokenizer import TokenizerSettings, encode_corpus, learn_tokenizer

ALL = [chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]
PARTS = [
    "e\u0301",
    "\u00e9",
    "E\u0301",
    "\ufb01",
    "a\u0323\u0307",
    "\u1100\u1161\u11a8",
    "\uff76\uff9e",
    "\u03b1\u0345\u0301",
]
PARTS += [
    "\u00a8",
    "\u2026",
    "\u0130",
    "\u00df",
    "\u1e9e",
    "\u03a3",
    "\u09c7\u09be",
    "\u0344",
    "\u0958",
    "\u3000",
    "the",
    "A",
    " ",
    "\n",
    ".",
]
TEXTS = st.lists(st.sampled_from(PARTS) | st.characters(exclude_categories=["Cs"]), max_size=8).map("".join)
RULES = [(form, False) for form in TEXT_FORMS] + [("none", True), ("nfc", True), ("nfkc", True)]
LINES = [
    "le cafe\u0301 est pre\u0302t",
    "le caf\u00e9 de l'\u00e9te\u0301",
    "un cafe\u0301 \ufb01n",
    "Cafe\u0301 CAF\u00c9",
] * 20


def nfd(text):
    return unicodedata.normalize("NFD", text)


@functools.cache
def learnt(kind, normalise="nfc", **settings):
    return learn_tokenizer(TokenizerSettings(kind=kind, normalise=normalise, **settings), LINES)


KINDS = [("word", {}), ("word", {"pattern": r"\w+|[^\w\s]"}), ("char", {}), ("bpe", {}), ("unigram", {})]
TOKENIZERS = [learnt(kind, form, **rules) for kind, rules in KINDS for form in ("nfc", "nfkc", "casefold")]
each_tokenizer = pytest.mark.parametrize(
    "tokenizer", TOKENIZERS, ids=lambda t: f"{t.kind}-{t.normaliser.form}"
)


@pytest.mark.parametrize(("form", "lowercase"), RULES)
@given(text=TEXTS)
def test_a_normal_text_is_left_as_it_is(form, lowercase, text):
    normalise = Normaliser(form, lowercase=lowercase)
    assert normalise(normalise(text)) == normalise(text)
    assert normalise.all([text, "Abc"]) == [normalise(text), normalise("Abc")]


@given(text=TEXTS)
def test_forms_are_those_of_unicode(text):
    """Case folding is the comparison D146 of the standard, composed."""
    composed = {form: unicodedata.normalize(form, text) for form in ("NFC", "NFKC")}
    folded = unicodedata.normalize("NFKC", nfd(text).casefold())
    assert Normaliser("nfc", lowercase=False)(text) == composed["NFC"]
    assert Normaliser("nfkc", lowercase=False)(text) == composed["NFKC"]
    assert Normaliser("casefold", lowercase=False)(text) == unicodedata.normalize("NFKC", folded.casefold())
    assert Normaliser("none", lowercase=True)(text) == text.lower()
    assert Normaliser("none", lowercase=False)(text) == text


def test_only_compatibility_forms_add_white_space():
    """The tokens of a word tokenizer are therefore the white-space words of the text as given, except for these."""
    for form, lowercase in [("nfc", False), ("nfc", True)]:
        normalise = Normaliser(form, lowercase=lowercase)
        assert [
            c for c in ALL if normalise(c).isspace() != c.isspace() or len(normalise(c).split()) > 1
        ] == []
    assert Normaliser("nfkc", lowercase=False)("a\u00a8b").split() == ["a", "\u0308b"]


@pytest.mark.parametrize("run", ["\u0301\u0316", "\u0f73\u0316", "\u0344\u0f73", "\uff9e\u0301\u0338"])
@pytest.mark.parametrize("form", ["nfc", "nfkc"])
def test_marks_are_sorted_as_unicode_sorts_them_and_fast(form, run):
    """`unicodedata` takes a minute for a run of 200,000 marks."""
    normalise = Normaliser(form, lowercase=False)
    text = f"caf\u00e9 {'x' * 1000} e{run * 400} end"
    assert normalise(text) == unicodedata.normalize(form.upper(), text)
    began_s = time.process_time()
    normalise("e" + run * 100_000)
    assert time.process_time() - began_s < 10


@pytest.mark.parametrize(("form", "lowercase"), RULES)
@given(text=TEXTS)
def test_offsets_divide_a_text_where_its_parts_can_be_normalised_apart(form, lowercase, text):
    normalise = Normaliser(form, lowercase=lowercase)
    read, offsets = normalise(text), normalise.offsets(text).tolist()
    assert len(offsets) == len(read) + 1
    assert offsets == sorted(offsets)
    assert ([0, len(text)] if read else [0]) == ([offsets[0], offsets[-1]] if read else offsets)
    for at in set(offsets):
        assert normalise.compose(text[:at]) + normalise.compose(text[at:]) == normalise.compose(text)
        assert len(normalise(text[:at])) == offsets.index(at)


@pytest.mark.parametrize(
    ("form", "lowercase", "text", "offsets"),
    [
        ("none", True, "", [0]),
        ("none", True, "Ab", [0, 1, 2]),
        ("none", True, "\u0130A\u0130", [0, 0, 1, 2, 2, 3]),
        ("nfc", False, "cafe\u0301s", [0, 1, 2, 3, 5, 6]),
        ("nfc", False, "\u1100\u1161\u11a8a", [0, 3, 4]),
        ("nfkc", False, "a\ufb01b\u2026", [0, 1, 1, 2, 3, 3, 3, 4]),
        ("casefold", False, "Stra\u00dfe", [0, 1, 2, 3, 4, 4, 5, 6]),
    ],
)
def test_characters_are_mapped_to_those_of_the_text_as_given(form, lowercase, text, offsets):
    assert Normaliser(form, lowercase=lowercase).offsets(text).tolist() == offsets


def test_every_character_has_its_own_offsets():
    for form, lowercase in RULES:
        normalise = Normaliser(form, lowercase=lowercase)
        for character in ALL[::7]:
            text = f"a{character}b"
            assert len(normalise.offsets(text)) == len(normalise(text)) + 1


@each_tokenizer
@given(text=TEXTS)
def test_equal_texts_have_equal_ids_in_any_form(tokenizer, text):
    composed = unicodedata.normalize("NFC", text)
    assert tokenizer.encode(nfd(text)) == tokenizer.encode(composed) == tokenizer.encode(text)
    assert tokenizer.encode_all([text, composed]) == [tokenizer.encode(text)] * 2
    assert tokenizer.encode_ragged([text]).ids.tolist() == tokenizer.encode(text)


@each_tokenizer
@given(context=TEXTS, text=TEXTS)
def test_contexts_have_the_tokens_that_the_text_does_not_change(tokenizer, context, text):
    joint, count = tokenizer.encode_after(context, text)
    assert joint == tokenizer.encode(context + text)
    assert (joint, count) == tokenizer.encode_after(nfd(context), nfd(text)) or tokenizer.normaliser(
        nfd(context) + nfd(text)
    ) != tokenizer.normaliser(context + text)
    if tokenizer.kind == "char":
        assert joint[:count] == tokenizer.encode(context)[:count]
        assert count in {len(tokenizer.encode(context[:end])) for end in range(len(context) + 1)}


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_a_letter_composed_across_the_border_is_the_texts(kind):
    tokenizer = learnt(kind)
    whole, before = tokenizer.encode("le caf\u00e9"), len(tokenizer.encode("le caf"))
    joint, count = tokenizer.encode_after("le cafe", "\u0301")
    assert joint == whole
    assert count <= before
    assert tokenizer.encode_after("e", "\u0301") == (tokenizer.encode("\u00e9"), 0)


@pytest.mark.parametrize("kind", ["word", "char", "bpe", "unigram"])
def test_a_text_of_mixed_forms_is_learnt_as_one_of_composed_text(kind):
    composed = [unicodedata.normalize("NFC", line) for line in LINES]
    expected = learn_tokenizer(TokenizerSettings(kind=kind), composed)
    assert learnt(kind).vocabulary.tokens == expected.vocabulary.tokens
    assert learnt(kind).encode_all(LINES) == expected.encode_all(composed)
    assert UNK not in learnt(kind).encode(nfd("le caf\u00e9 est pr\u00eat"))
    assert learnt(kind).decode(learnt(kind).encode(nfd("le caf\u00e9"))) == "le caf\u00e9"


def test_words_and_bytes_of_a_corpus_are_those_of_the_text_as_given():
    corpus = encode_corpus(learnt("word", "nfkc"), ["cafe\u0301 a\u00a8b"])
    assert (corpus.num_words, corpus.num_bytes) == (2, len("cafe\u0301 a\u00a8b".encode()))
    assert len(corpus.sentence(0)) == 3


@each_tokenizer
def test_the_form_is_saved(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert json.loads((tmp_path / "tokenizer.json").read_text())["normalise"] == tokenizer.normaliser.form
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode_all(LINES) == tokenizer.encode_all(LINES)


@pytest.mark.parametrize(
    ("tokenizer", "settings"),
    [
        (
            WordTokenizer(Vocabulary(["a"]), lowercase=True, unicode_spaces=True),
            {"kind": "word", "lowercase": True, "marked_unknown": "word", "pattern": None, "tokens": ["a"]},
        ),
        (CharacterTokenizer(Vocabulary("ab")), {"kind": "char", "tokens": ["a", "b"]}),
    ],
    ids=["word", "char"],
)
def test_without_a_form_settings_are_those_of_earlier_versions(tokenizer, settings):
    expected = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    assert tokenizer.fingerprint == expected


def test_pieces_without_a_form_have_the_settings_of_earlier_versions():
    pieces = learnt("bpe", "none")
    assert set(pieces.settings()) == {"model_sha256"}
    model = pieces._model
    fingerprints = {PieceTokenizer(model, normalise=form).fingerprint for form in TEXT_FORMS}
    assert len(fingerprints) == len(TEXT_FORMS)


@pytest.mark.parametrize("form", ["nfd", "NFC", "", None, 3, ["nfc"]])
def test_a_file_with_another_form_is_refused_by_name(form, tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"kind": "char", "tokens": ["a"], "normalise": form}))
    with pytest.raises(ManifestError, match=r"normalise is .*, it can be none, nfc, nfkc, casefold"):
        load_tokenizer(tmp_path)

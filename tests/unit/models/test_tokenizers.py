"""Tokenizers of every kind, vocabularies, control tokens and fingerprints."""

import json
import time

import pytest

from models import tokenizers
from models.checkpoint.load import load_tokenizer
from models.errors import InputError, ManifestError
from models.language_model import BOS, CONTROL_TOKENS, EOS, UNK, Vocabulary
from models.tokenizers import CharacterTokenizer, WordTokenizer, read_piece_model
from tests.support.pretrained import pretrained
from training.corpus import read_corpus
from training.progress import Progress
from training.tokenizer import TokenizerSettings, encode_corpus, learn_tokenizer

TEXT = ["the cat sat on the mat .", "the dog <unk> the cat !", "Über <s> naïve </s> café"] * 30


def learn(**settings):
    return learn_tokenizer(TokenizerSettings(**settings), TEXT, progress=Progress())


def every_kind():
    return [
        learn(kind="word"),
        learn(kind="word", lowercase=True, pattern=r"\w+|[^\w\s]"),
        learn(kind="char"),
        learn(kind="bpe", vocab_size=300),
        learn(kind="unigram", vocab_size=280),
    ]


@pytest.mark.parametrize("tokenizer", every_kind(), ids=lambda t: t.kind)
def test_text_that_spells_control_symbols_never_becomes_control(tokenizer):
    ids = tokenizer.encode("<s> the </s> <unk> </s>")
    assert BOS not in ids
    assert EOS not in ids


@pytest.mark.parametrize("tokenizer", every_kind(), ids=lambda t: t.kind)
def test_a_saved_tokenizer_answers_the_same_when_loaded(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.vocabulary.fingerprint == tokenizer.vocabulary.fingerprint
    assert loaded.encode_all(TEXT) == [tokenizer.encode(text) for text in TEXT]


SENT = {
    "plain": "the cat sat",
    "unknown words": "zzz the qqq cat",
    "runs of spaces": "  the   cat ",
    "tabs and lines": "the\tcat\n\nsat\r\non",
    "punctuation": "The (cat), sat!on the.mat",
    "decomposed": "cafe\u0301 nai\u0308ve the cat",
    "ligatures": "the o\ufb03ce \ufb01t cat",
    "wide": "\uff34\uff48\uff45 cat\u3000sat \u00bd \u2460",
    "no-break and zero-width": "the\u00a0cat\u200bsat\u00ad on",
    "case": "\u0130THE CAT Stra\u00dfe",
    "unknown scripts": "the \u65e5\u672c \U0001f600 cat",
    "nothing": "",
}


def every_form():
    forms = [
        learn(kind="word", normalise="nfkc"),
        learn(kind="word", normalise="casefold", pattern=r"\w+|\S"),
        learn(kind="char", normalise="nfc"),
        learn(kind="bpe", vocab_size=300, normalise="nfkc"),
    ]
    return [*every_kind(), *forms, pretrained("gpt2")[2], pretrained("llama")[2]]


@pytest.mark.parametrize("text", SENT.values(), ids=SENT)
@pytest.mark.parametrize("tokenizer", every_form(), ids=lambda t: t.kind)
def test_tokens_begin_where_their_text_was_sent(tokenizer, text):
    ids, starts = tokenizer.encode(text), tokenizer.token_starts(text).tolist()
    assert len(starts) == len(ids)
    assert starts == sorted(starts)
    assert not starts or (starts[0] == 0 and starts[-1] < len(text))
    for token, start, end in zip(ids, starts, [*starts[1:], len(text)], strict=False):
        spelled = tokenizer.token_bytes[token].decode(errors="replace")
        if token != UNK and text[start:end].isascii() and start < end and "\ufffd" not in spelled:
            assert tokenizer.normaliser(text[start:end]).split() == spelled.split()


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("the zzz cat on", [0, 3, 7, 11]),
        ("the   cat\ton mat", [0, 3, 9, 12]),
        ("a b c the cat", [0, 1, 3, 5, 9]),
        (" \u0130x cafe\u0301 the ", [0, 3, 9]),
    ],
)
def test_the_start_of_a_word_is_the_end_of_the_word_before(text, starts):
    assert learn(kind="word", normalise="nfc").token_starts(text).tolist() == starts


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_the_lexicon_is_saved_and_does_not_change_what_encoding_depends_on(kind, tmp_path):
    tokenizer = learn(kind=kind, **({"vocab_size": 300} if kind == "bpe" else {}))
    assert set(tokenizer.lexicon) == {
        "the",
        "cat",
        "sat",
        "on",
        "mat",
        "dog",
        "unk",
        "Über",
        "s",
        "naïve",
        "café",
    }
    assert tokenizer.lexicon[:2] == ("the", "cat")  # the most frequent first
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert (loaded.lexicon, loaded.fingerprint) == (tokenizer.lexicon, tokenizer.fingerprint)
    (tmp_path / "lexicon.txt").unlink()
    assert (load_tokenizer(tmp_path).lexicon, loaded.fingerprint) == ((), tokenizer.fingerprint)


def test_a_lexicon_that_is_no_text_is_refused(tmp_path):
    learn(kind="char").save(tmp_path)
    (tmp_path / "lexicon.txt").write_bytes(b"\xff\n")
    with pytest.raises(ManifestError, match=r"lexicon.txt: not a list of words"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "unigram"}, {"Paris", "ﬁne", "Straße"}),
        ({"kind": "unigram", "normalization": "nfkc"}, {"Paris", "fine", "Straße"}),
        ({"kind": "bpe", "normalization": "nmt_nfkc_cf"}, {"paris", "fine", "straße"}),
        ({"kind": "unigram", "normalise": "casefold"}, {"paris", "fine", "strasse"}),
        ({"kind": "char", "normalise": "nfkc"}, {"Paris", "fine", "Straße"}),
    ],
)
def test_the_lexicon_has_words_as_the_tokens_spell_them(settings, words):
    tokenizer = learn_tokenizer(TokenizerSettings(**settings), ["Paris: ﬁne Straße"] * 50)
    assert set(tokenizer.lexicon) == words
    for word in words:
        assert tokenizer.normalise_word(word) == word
        assert tokenizer.decode(tokenizer.encode(word)) == word


def test_the_lexicon_has_the_beginnings_of_runs_without_spaces():
    lines = ["我们今天去公园玩。我在家。", "iPhone手机 2024年5月", "ฉันรักแม่ mother"]
    assert set(learn_tokenizer(TokenizerSettings(kind="char"), lines).lexicon) == {
        "我",
        "iPhone手",
        "2024年",
        "ฉ",
        "mother",
    }


def test_the_lexicon_of_a_very_long_text_is_learnt_from_a_sample(monkeypatch, tmp_path):
    lines = ["one two", "three", "four", "five"]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    streamed = read_corpus([tmp_path / "text.txt"], unit="line", stream=True, progress=Progress()).sentences
    for limit, words in ((5, {"one", "two", "three", "four", "five"}), (3, {"one", "two", "four"})):
        monkeypatch.setattr("training.tokenizer._LEXICON_SENTENCES", limit)
        for sentences in (lines, streamed):
            assert set(learn_tokenizer(TokenizerSettings(kind="char"), sentences).lexicon) == words


def test_words_that_occur_once_in_a_long_text_are_not_in_its_lexicon(monkeypatch):
    monkeypatch.setattr("training.tokenizer._MIN_WORDS_TO_DROP_RARE", 5)
    lines = ["good good words", "words hapax", "cat's cat's"]
    assert learn_tokenizer(TokenizerSettings(kind="char"), lines).lexicon == ("cat's", "good", "words")


@pytest.mark.parametrize("tokenizer", every_kind(), ids=lambda t: t.kind)
def test_learning_twice_gives_the_same_tokenizer(tokenizer):
    assert tokenizer.fingerprint in {t.fingerprint for t in every_kind()}


def test_a_marked_unknown_is_an_ordinary_word_unless_told_otherwise():
    ordinary = learn(kind="word")
    unknown = learn(kind="word", marked_unknown="unknown")
    assert ordinary.encode("the <unk>")[1] >= len(CONTROL_TOKENS)
    assert unknown.encode("the <unk>")[1] == UNK
    assert "<unk>" not in unknown.vocabulary
    assert ordinary.fingerprint != unknown.fingerprint


def test_rare_words_become_unknown_by_threshold_and_by_size():
    text = ["a a a b b c"]
    by_count = learn_tokenizer(TokenizerSettings(min_count=2), text, progress=Progress())
    by_size = learn_tokenizer(TokenizerSettings(vocab_size=4), text, progress=Progress())
    assert by_count.encode("a b c") == [3, 4, UNK]
    assert by_size.encode("a b c") == [3, UNK, UNK]


def test_lower_casing_and_pattern_decide_what_a_word_is():
    tokenizer = WordTokenizer(
        Vocabulary(["don't", "stop", "!"]), pattern=r"[a-z]+(?:'[a-z]+)?|!", lowercase=True
    )
    assert tokenizer.encode("DON'T stop!") == [3, 4, 5]


def test_a_threshold_that_leaves_nothing_is_an_error_that_names_it():
    with pytest.raises(InputError, match="min_count is 99; no"):
        learn_tokenizer(TokenizerSettings(min_count=99), ["a b"], progress=Progress())


def test_a_piece_vocabulary_too_large_for_the_text_is_an_error_that_names_it():
    with pytest.raises(InputError, match=r"tokenizer\.vocab_size is 9000"):
        learn_tokenizer(TokenizerSettings(kind="unigram", vocab_size=9000), ["a b c"], progress=Progress())


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_without_a_size_a_small_text_gives_as_many_pieces_as_it_can(kind):
    tokenizer = learn_tokenizer(TokenizerSettings(kind=kind), ["a bc abc"], progress=Progress())
    assert 256 < len(tokenizer.vocabulary) < 300  # bytes, control tokens and a few pieces
    assert tokenizer.decode(tokenizer.encode("a bc")) == "a bc"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(
    "text", ["x" * 500_000, "a " * 250_000], ids=["one word", "one word again and again"]
)
def test_pieces_of_a_long_repetitive_line_are_learnt_in_no_time(kind, text):
    """Processing the complete line at once would take minutes and gigabytes."""
    tokenizer = learn_tokenizer(TokenizerSettings(kind=kind), [text], progress=Progress())
    assert len(tokenizer.encode(text)) < len(text)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("separator", [" ", "  ", " \u0301", "\u3000", "", ". ", "\n", " é"])
def test_the_pieces_of_a_long_text_are_those_of_the_whole(kind, separator, monkeypatch):
    """A long text is encoded in parts."""
    tokenizer = learn(kind=kind, vocab_size=280)
    text = separator.join(TEXT) + "x"
    whole = read_piece_model(tokenizer._model).EncodeAsIds(text)
    for length in (1, 7, 100):
        monkeypatch.setattr(tokenizers, "_PART_LENGTH", length)
        assert tokenizer.encode(text) == tokenizer.encode_all(["a", text])[1] == whole


def test_a_bad_pattern_is_an_error_that_names_it():
    with pytest.raises(InputError, match=r"tokenizer\.pattern '\[' is not"):
        WordTokenizer(Vocabulary([]), pattern="[")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"kind": "word"}', '{"kind": "new", "tokens": []}'])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ManifestError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_characters_decode_to_their_text_and_unknown_ones_to_the_replacement_mark():
    tokenizer = CharacterTokenizer(Vocabulary("ab "))
    assert tokenizer.decode(tokenizer.encode("a ba")) == "a ba"
    assert tokenizer.decode(tokenizer.encode("axb")) == "a\ufffdb"


def test_encoding_a_corpus_counts_words_and_bytes_of_the_text_as_given():
    corpus = encode_corpus(learn(kind="char"), ["the cat", "café"], progress=Progress())
    assert corpus.num_words == 3
    assert corpus.num_bytes == 7 + 5
    assert corpus.sentence(1).tolist() == learn(kind="char").encode("café")
    assert corpus.num_tokens == 7 + 4 + 2


def test_a_long_context_is_lower_cased_once_and_not_for_every_word():
    tokenizer = WordTokenizer(Vocabulary(["é"]), lowercase=True)
    began_s = time.process_time()
    assert tokenizer.encode_after("É " * 100_000, "É") == ([3] * 100_001, 100_000)
    assert time.process_time() - began_s < 10  # quadratic time takes minutes


def test_control_tokens_come_first_and_are_not_looked_up_by_spelling():
    vocabulary = Vocabulary(["a", "<s>", "<unk>"])
    assert vocabulary.tokens[:3] == ("<unk>", "<s>", "</s>")
    assert vocabulary.id_of("<s>") == 4
    assert vocabulary.id_of("<unk>") == 5
    assert vocabulary.id_of("</s>") == UNK
    assert {UNK, BOS, EOS} == {0, 1, 2}


def test_a_token_given_twice_is_refused_by_name():
    with pytest.raises(InputError, match="'b' twice"):
        Vocabulary(["a", "b", "c", "b"])


def test_fingerprint_depends_on_tokens_and_their_order():
    assert Vocabulary(["a", "b"]).fingerprint == Vocabulary(["a", "b"]).fingerprint
    assert Vocabulary(["a", "b"]).fingerprint != Vocabulary(["b", "a"]).fingerprint
    assert Vocabulary(["a", "b"]).fingerprint != Vocabulary(["a,b"]).fingerprint


@pytest.mark.parametrize("bad", [-1, 5, 2**31, 2**63, 10**30])
def test_ids_outside_the_vocabulary_are_named_with_place_and_limit(bad):
    vocabulary = Vocabulary(["a", "b"])
    with pytest.raises(InputError, match=rf"token_ids\[1\] is {bad}, .* 0 to 4") as caught:
        vocabulary.check_ids([3, bad], param="token_ids")
    assert caught.value.param == "token_ids[1]"


@pytest.mark.parametrize("space", ["\x1c", "\x85", "\u00a0", "\u2003", "\u3000"], ids=ascii)
def test_wide_white_space_is_part_of_a_word_unless_a_version_before_saved_the_tokenizer(tmp_path, space):
    words = Vocabulary([f"a{space}b", "a", "b"])
    WordTokenizer(words).save(tmp_path)
    assert load_tokenizer(tmp_path).encode_all([f"a{space}b a"]) == [[3, 4]]
    settings = json.loads((tmp_path / "tokenizer.json").read_text())
    del settings["unicode_spaces"]  # as they were
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    earlier = load_tokenizer(tmp_path)
    assert earlier.encode_all([f"a{space}b a"]) == [earlier.encode(f"a{space}b a")] == [[4, 5, 4]]
    assert {"kind": "word", **earlier.settings()} == settings

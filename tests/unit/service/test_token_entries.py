"""How tokens are called and where they begin, for tokenizers of every kind."""

import numpy as np
import pytest

from models.language_model import TopTokens
from models.vocabulary import BOS, EOS, UNK
from service.use_cases.completions import EntryBuilder, TokenEntries
from training.progress import Silent
from training.tokenizer import TokenizerSettings, learn_tokenizer

TEXT = ["the cat sat on the mat .", "the dog <unk> the cat !", "Über <s> naïve </s> café 漢字"] * 30
KINDS = [
    {"kind": "word"},
    {"kind": "char"},
    {"kind": "bpe", "vocab_size": 320},
    {"kind": "unigram", "vocab_size": 283},
]


@pytest.fixture(params=KINDS, ids=lambda settings: settings["kind"])
def spoken(request, load):
    return load(learn_tokenizer(TokenizerSettings(**request.param), TEXT, progress=Silent()))


def entries_of(loaded, ids, **options):
    speller, entries = EntryBuilder(loaded, **{"continues": False, **options}), TokenEntries()
    for token in ids:
        speller.add(entries, token, -1.0)
    return entries


def test_every_token_has_a_name_of_its_own(spoken):
    speller = EntryBuilder(spoken, continues=False)
    names = [speller.name(token) for token in range(spoken.vocab_size)]
    assert len(set(names)) == len(names)
    assert (names[UNK], names[BOS], names[EOS]) == ("<unk>", "<s>", "</s>")


def test_names_joined_are_the_text(spoken):
    names = entries_of(spoken, spoken.tokenizer.encode("the cat sat")).names
    assert "".join(names).removeprefix(" ") == "the cat sat"


@pytest.mark.parametrize("text", ["the cat sat", "Über naïve 漢字 zz 🦉!", "漢", ""])
def test_offsets_are_where_tokens_begin(spoken, text):
    ids = spoken.tokenizer.encode(text)
    offsets = entries_of(spoken, ids).offsets
    whole = spoken.tokenizer.decode(ids)
    assert offsets == sorted(offsets)
    for place, offset in enumerate(offsets):
        begun = spoken.tokenizer.decode(ids[:place]).rstrip("\ufffd")
        assert whole[:offset].rstrip("\ufffd") == begun


def test_offsets_go_on_after_a_prompt(spoken):
    ids = spoken.tokenizer.encode("the cat sat")
    shift = 1 if spoken.tokenizer.leading_space else 0  # the first space is then real
    first, second, *_ = entries_of(spoken, ids, continues=True, offset=7).offsets
    assert (first, second) == (7, 7 + entries_of(spoken, ids).offsets[1] + shift)


def test_the_token_itself_is_among_the_most_probable_with_the_very_same_number(spoken):
    entries = TokenEntries()
    top = TopTokens(np.array([5, 6]), np.array([-0.1, -np.inf], dtype=np.float32))
    speller = EntryBuilder(spoken, continues=True)
    speller.add(entries, 7, float(np.float32(-2.3)), top)
    speller.add(entries, 5, float(top.log_probs[0]), top)
    speller.add(entries, 8, -np.inf)
    speller.add(entries, 9, None)
    names = [speller.name(token) for token in (5, 6, 7, 8)]
    assert entries.tops[0] == {
        names[0]: entries.logprobs[1],
        names[1]: -9999.0,
        names[2]: entries.logprobs[0],
    }
    assert entries.tops[1] == {names[0]: entries.logprobs[1], names[1]: -9999.0}
    assert entries.tops[2:] == [{names[3]: -9999.0}, None]
    assert entries.logprobs[2:] == [-9999.0, None]


def test_tokens_may_be_called_by_their_ids(spoken):
    assert entries_of(spoken, [5, EOS], as_ids=True).names == ["token_id:5", "token_id:2"]

"""Tokenizers of pretrained models: round trips, bytes, control tokens, offsets."""

import itertools
import json

import pytest
from tokenizers import Tokenizer, normalizers

from models.checking.sentences import sentence_splitter_for
from models.checkpoint.load import load_tokenizer
from models.completion.prefix import split_prefix
from models.errors import ManifestError
from models.language_model import BOS, EOS, UNK
from models.pretrained.tokenizer import PretrainedTokenizer
from models.tokenizers import Detokenizer
from tests.support.pretrained import CONFIGS, TEXTS, pretrained, write_folder

STRANGE = [
    "",
    " ",
    "  two  spaces ",
    "ûber 日本 👍🏽",
    "a\nb\tc",
    "<s> </s> <unk>",
    "<|endoftext|>",
    "\u2028x",
    "'s 12,345",
]


@pytest.mark.parametrize("kind", CONFIGS)
def test_texts_come_back_whole_and_streamed(kind):
    _, _, tokenizer = pretrained(kind)
    for text in [*TEXTS, *STRANGE]:
        ids = tokenizer.encode(text)
        assert not {UNK, BOS, EOS} & {*ids}
        assert tokenizer.decode(ids) == text
        stream = Detokenizer(tokenizer)
        assert "".join([*(stream.push(i) for i in ids), stream.flush()]) == text
    assert tokenizer.encode_all(TEXTS) == [tokenizer.encode(text) for text in TEXTS]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_numbers_are_the_librarys(kind, tmp_path):
    write_folder(kind, tmp_path)
    tokenizer, library = PretrainedTokenizer(tmp_path), Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        expected = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.numbers[tokenizer.encode(text)].tolist() == expected
    assert tokenizer.facts == (
        {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
        if kind == "gpt2"
        else {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    )


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("context", ["", "The c", "The cat", "The cat ", "ûber 日"])
@pytest.mark.parametrize("text", ["at sat", " sat", "本", ""])
def test_tokens_end_in_the_context_or_after_it(kind, context, text):
    _, _, tokenizer = pretrained(kind)
    ids, before = tokenizer.encode_after(context, text)
    assert ids == tokenizer.encode(context + text)
    own_space = tokenizer.leading_space
    ends = itertools.accumulate(len(tokenizer.token_bytes[i]) for i in ids)
    assert before == (sum(end - own_space <= len(context.encode()) for end in ends) if context else 0)


def changed(folder, change):
    """Write a GPT-2 and change its tokenizer; return the new one."""
    write_folder("gpt2", folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer = change(tokenizer) or tokenizer
    tokenizer.save(str(folder / "tokenizer.json"))
    return PretrainedTokenizer(folder)


def test_the_library_does_not_trim_the_spaces_that_end_a_token(tmp_path):
    def join_spaces(tokenizer):
        content = json.loads(tokenizer.to_str())
        content["model"]["vocab"]["ĊĠ"] = len(content["model"]["vocab"])
        content["model"]["merges"].append(["Ċ", "Ġ"])
        content["post_processor"] = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        }
        return Tokenizer.from_str(json.dumps(content))

    tokenizer = changed(tmp_path, join_spaces)
    ids, before = tokenizer.encode_after("a\n", "  b")
    assert [tokenizer.surface(i) for i in ids[:2]] == ["a", "\n "]
    assert before == 1


def test_a_control_token_that_is_not_marked_as_one_is_not_read_in_a_text(tmp_path):
    def unmark(tokenizer):
        content = json.loads(tokenizer.to_str())
        content["added_tokens"][0]["special"] = False
        return Tokenizer.from_str(json.dumps(content))

    tokenizer = changed(tmp_path, unmark)
    ids = tokenizer.encode("a<|endoftext|>")
    assert not {UNK, BOS, EOS} & {*ids}
    assert tokenizer.decode(ids) == "a<|endoftext|>"


@pytest.mark.parametrize("form", [normalizers.NFC(), normalizers.Lowercase()])
def test_words_of_normalised_text_have_their_places_and_their_spaces(tmp_path, form):
    tokenizer = changed(tmp_path, lambda tokenizer: setattr(tokenizer, "normalizer", form))
    line = "the cafe\u0301 the The cat"
    sentence = sentence_splitter_for(tokenizer).sentence(line)
    assert [line[word.start : word.end] for word in sentence.words] == line.split()
    assert sentence.ids.tolist() == tokenizer.encode("the café the The cat")


def test_a_composed_character_of_the_context_belongs_to_the_text(tmp_path):
    tokenizer = changed(tmp_path, lambda tokenizer: setattr(tokenizer, "normalizer", normalizers.NFC()))
    ids, before = tokenizer.encode_after("cafe", "\u0301 b")
    assert tokenizer.decode(ids[:before]) == "caf"
    assert tokenizer.decode(ids) == "café b"


def test_a_tokenizer_may_lack_letters(tmp_path):
    def forget(tokenizer):
        content = json.loads(tokenizer.to_str())
        content["model"] |= {"vocab": {"<|endoftext|>": 0, "b": 1}, "merges": []}
        return Tokenizer.from_str(json.dumps(content))

    assert changed(tmp_path, forget).encode("ab") == [3]


def test_a_saved_tokenizer_is_the_same(tmp_path):
    _, _, tokenizer = pretrained("llama")
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.encode_all(STRANGE) == tokenizer.encode_all(STRANGE)


def test_names_of_control_tokens_in_the_tokenizers_configuration_come_first(tmp_path):
    write_folder("gpt2", tmp_path)
    names = {"bos_token": {"content": "Q"}, "eos_token": "<|endoftext|>", "unk_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    tokenizer = PretrainedTokenizer(tmp_path)
    assert tokenizer.facts == {"bos_token": "Q", "eos_token": "<|endoftext|>"}
    assert "Q" not in tokenizer.vocabulary


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "tokenizer.json"),
        ("{}", "not a tokenizer"),
        (
            '{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}',
            "neither byte-level nor SentencePiece's",
        ),
    ],
)
def test_a_damaged_or_foreign_tokenizer_is_refused(tmp_path, content, said):
    write_folder("gpt2", tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ManifestError, match=said):
        PretrainedTokenizer(tmp_path)


def test_a_byte_level_tokenizer_has_byte_level_tokens_only(tmp_path):
    write_folder("gpt2", tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["日"] = 321
    path.write_text(json.dumps(content))
    with pytest.raises(ManifestError, match=r"tokenizer\.json: the token '日' is not byte-level"):
        PretrainedTokenizer(tmp_path)


def test_a_model_without_an_end_is_refused(tmp_path):
    write_folder("gpt2", tmp_path, eos_token_id=None)
    with pytest.raises(ManifestError, match="names a token for the end of a text"):
        PretrainedTokenizer(tmp_path)


@pytest.mark.parametrize(
    "text", ["The ca", "The cat ", "The cat", "The cat  s", "\nThe", " The", "The cat\nsa"]
)
def test_a_word_after_a_space_is_completed_by_the_tokens_of_the_whole_text(text):
    _, _, tokenizer = pretrained("gpt2")
    split = split_prefix(tokenizer, text)
    before = tokenizer.encode(split.context)
    whole = tokenizer.encode(f"{text[: split.start]}{' ' * split.space}sat")
    assert whole[: len(before)] == before
    rest = b"".join(tokenizer.token_bytes[i] for i in whole[len(before) :])
    assert rest.removesuffix(b"sat") + split.prefix.encode() == split.spelled

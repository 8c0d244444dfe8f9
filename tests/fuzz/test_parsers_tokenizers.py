"""Tokenizer files with errors: they encode and decode, or are refused by name."""

import functools
import io
import json
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from models.checkpoint.load import load_tokenizer
from models.tokenizers import SPM_FILE
from tests.fuzz.damage import any_bytes, damaged, damaged_json
from tests.fuzz.parsing import Parser, ParserProcess, fuzz

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")  # if a case fails
TEXTS = ["the cat sat", "", " ", "Zürich … 日本 \u2581 x", "<s> <unk> </s>", "\ufffd\u0300\U0001f600" * 50]
WORDS = {
    "kind": "word",
    "pattern": r"\w+",
    "lowercase": True,
    "marked_unknown": "unknown",
    "normalise": "nfkc",
    "tokens": ["the", "cat", "<unk>"],
}
CHARS = {"kind": "char", "normalise": "casefold", "tokens": list("the ca,é")}


def load_and_encode(path: Path) -> None:
    """Load a tokenizer, and encode and decode texts."""
    folder = path.parent
    if path.name == SPM_FILE:
        (folder / "tokenizer.json").write_text(json.dumps({"kind": "sentencepiece"}))
    tokenizer = load_tokenizer(folder)
    size = len(tokenizer.vocabulary)
    assert len(tokenizer.token_bytes) == size
    assert len(tokenizer.fingerprint) == 64
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert all(0 <= token < size for token in ids)
        tokenizer.decode(ids)
        joint, count = tokenizer.encode_after("the c", text)
        assert 0 <= count <= len(joint)
    assert tokenizer.encode_all(TEXTS) == [tokenizer.encode(text) for text in TEXTS]
    json.dumps([tokenizer.surface(token) for token in range(size)], ensure_ascii=False).encode()


@functools.cache
def learnt(kind, byte_fallback=False):
    """Train a small SentencePiece model."""
    lines = ["the cat sat on the mat", "a cat and a dog", "the dog sat"] * 20
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=kind,
        vocab_size=300 if byte_fallback else 40,
        byte_fallback=byte_fallback,
        hard_vocab_limit=False,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        minloglevel=2,
    )
    return model.getvalue()


models_of_pieces = st.sampled_from([("bpe", False), ("unigram", False), ("unigram", True)]).map(
    lambda how: learnt(*how)
)

PIECES = ["", "▁", "<0x41>", "<0xZZ>", "<unk>", "the", "a" * 5000, "\ufffd", "<0x", "▁▁▁"]
SCORES = [0.0, -1e38, 1e38, float("nan"), float("inf"), -1.0]


@st.composite
def changed_models(draw):
    """Draw a model with a valid encoding but wrong pieces, trainer or normaliser settings."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(draw(models_of_pieces))
    for _ in range(draw(st.integers(1, 3))):
        piece = proto.pieces[draw(st.integers(0, len(proto.pieces) - 1))]
        what = draw(st.sampled_from(["piece", "type", "score", "id", "charsmap", "drop", "kind", "size"]))
        if what == "piece":
            piece.piece = draw(st.sampled_from([*PIECES, proto.pieces[5].piece]))
        elif what == "type":
            piece.type = draw(st.integers(1, 6))
        elif what == "score":
            piece.score = draw(st.sampled_from(SCORES))
        elif what == "id":
            name = draw(st.sampled_from(["unk_id", "bos_id", "eos_id", "pad_id"]))
            setattr(proto.trainer_spec, name, draw(st.sampled_from([-1, 0, 1, 2, 3, 2**31 - 1, -(2**31)])))
        elif what == "charsmap":
            charsmap = draw(damaged(st.just(proto.normalizer_spec.precompiled_charsmap)))
            proto.normalizer_spec.precompiled_charsmap = charsmap
        elif what == "drop":
            proto.pieces.remove(piece)
        elif what == "kind":
            proto.trainer_spec.model_type = draw(st.integers(1, 4))
        else:
            proto.trainer_spec.vocab_size = draw(st.sampled_from([0, -1, 2**31 - 1]))
    return proto.SerializeToString()


@pytest.fixture(scope="module")
def process():
    with ParserProcess(__name__) as asked:
        yield asked


@pytest.fixture(scope="module")
def pieces(process, tmp_path_factory):
    path = tmp_path_factory.mktemp("pieces") / SPM_FILE
    return Parser(process, "load_and_encode", path, learnt("unigram"))


@fuzz
@given(changed_models())
def test_models_of_pieces_that_say_something_else(pieces, content):
    pieces.ask(content)


@fuzz
@given(st.one_of(damaged(models_of_pieces), any_bytes()))
def test_models_of_pieces_with_other_bytes(pieces, content):
    pieces.ask(content)


@pytest.fixture(scope="module", params=[WORDS, CHARS], ids=["words", "characters"])
def words(request, process, tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    return Parser(process, "load_and_encode", path, json.dumps(request.param).encode())


@fuzz
@given(st.data())
def test_lists_of_words(words, data):
    good = st.just(words.good)
    said = damaged_json(good.map(json.loads), ["char", "word", "sentencepiece", "(", "a|b", "the", "abc"])
    words.ask(data.draw(st.one_of(damaged(good), said, any_bytes()), label="content"))


@pytest.mark.parametrize("token", [3, None, ["a"], "\ud800"])
def test_tokens_that_are_no_text_are_refused(words, token):
    content = json.loads(words.good)
    assert words.ask(json.dumps({**content, "tokens": ["a", token]}).encode()) == "refused"


def test_a_piece_for_a_byte_that_is_spelled_otherwise_is_refused(pieces):
    proto = sentencepiece_model_pb2.ModelProto.FromString(learnt("unigram", byte_fallback=True))
    proto.pieces[5].piece = "<0xZZ>"
    assert pieces.ask(proto.SerializeToString()) == "refused"

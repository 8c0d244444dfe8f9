"""ARPA files of SentencePiece pieces, served on raw text, against KenLM on the text's pieces."""

import io
import json
from pathlib import Path

import kenlm
import numpy as np
import pytest
import sentencepiece

from models.checkpoint.load import load_checkpoint
from models.errors import InputError
from models.language_model import EOS, UNK, score_sequences
from tests.reference.backoff import random_arpa
from training.publish import run_import_arpa

pytestmark = pytest.mark.usefixtures("no_pictures")

LAYOUTS = {
    "nemo": {"model_type": "bpe", "unk_id": 0, "bos_id": -1, "eos_id": -1},
    "own": {"model_type": "unigram", "unk_id": 0, "bos_id": 1, "eos_id": 2},
    "t5": {"model_type": "unigram", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
    "bytes": {"model_type": "bpe", "unk_id": 0, "bos_id": 1, "eos_id": 2, "byte_fallback": True},
}
"""Numbers of control pieces that other programs train with."""

TEXT = ["the cat sat on the mat", "a naïve dog saw the café", "cats and dogs , and a rat"] * 20
QUERIES = [
    "the cat",
    "",
    "a ☃ dog",
    "☃☃ ж",
    "mats and naïve dogs",
    " two  spaces ",
    "日本 the rat , <unk> <s>",
]


@pytest.fixture(scope="module", params=LAYOUTS)
def piece_model(request, tmp_path_factory):
    """File of a SentencePiece model with one of the layouts, and its processor."""
    path, written = tmp_path_factory.mktemp("pieces") / f"{request.param}.model", io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(TEXT),
        model_writer=written,
        vocab_size=320 if request.param == "bytes" else 60,
        hard_vocab_limit=False,
        character_coverage=0.99,
        minloglevel=2,
        **LAYOUTS[request.param],
    )
    path.write_bytes(written.getvalue())
    return path, sentencepiece.SentencePieceProcessor(model_file=str(path))


def write_arpa(path, words, *, seed=1, unknown=True):
    text, _ = random_arpa(np.random.default_rng(seed), order=3, words=words, unknown=unknown)
    path.write_text(text, encoding="utf-8")
    return path


def written_pieces(processor):
    return [
        i
        for i in range(processor.GetPieceSize())
        if not (processor.IsControl(i) or processor.IsUnused(i) or processor.IsUnknown(i))
    ]


def log10_of(checkpoint, text):
    ids = checkpoint.tokenizer.encode(text)
    tokens = np.array([[*ids, EOS]])
    start = checkpoint.model.initial_state(1)
    return score_sequences(checkpoint.model, start, tokens, np.array([len(ids) + 1]))[0] / np.log(10)


def imported(tmp_path, file, piece_model, **options):
    result = run_import_arpa(
        file, name="m", registry=str(tmp_path / "registry"), pieces_of=piece_model, **options
    )
    return load_checkpoint(Path(result["path"]))


@pytest.mark.parametrize("unknown", [True, False])
def test_an_arpa_file_of_pieces_answers_on_raw_text_as_kenlm_does_on_pieces(tmp_path, piece_model, unknown):
    path, processor = piece_model
    words = [processor.IdToPiece(i) for i in written_pieces(processor)]
    foreign = [] if path.stem == "bytes" else ["☃", "日本"]
    listed = [*words[: len(words) * 3 // 4], *foreign]  # a quarter of the pieces is missing
    file = write_arpa(tmp_path / "m.arpa", listed, unknown=unknown)
    checkpoint, oracle = imported(tmp_path, file, path), kenlm.Model(str(file))
    for text in QUERIES:
        pieces = processor.EncodeAsPieces(text)
        expected = [log10 for log10, _, _ in oracle.full_scores(" ".join(pieces))]
        assert log10_of(checkpoint, text).tolist() == pytest.approx(expected, abs=1e-5), text
        assert [UNK if p not in oracle else p for p in pieces] == [
            i if i == UNK else checkpoint.tokenizer.vocabulary[i] for i in checkpoint.tokenizer.encode(text)
        ]
    assert checkpoint.metrics["arpa"]["unlisted_pieces"] == len(words) - len(words) * 3 // 4


def test_an_arpa_file_of_nemo_answers_on_raw_text_as_kenlm_does_on_its_characters(tmp_path, piece_model):
    path, processor = piece_model
    words = [chr(i + 100) for i in [*written_pieces(processor)[::-1], processor.unk_id()]]
    file = write_arpa(tmp_path / "m.arpa", words[5:])
    checkpoint = imported(tmp_path, file, path, encoding="nemo")
    oracle = kenlm.Model(str(file))
    for text in QUERIES:
        codes = [chr(i + 100) for i in processor.EncodeAsIds(text)]
        expected = [log10 for log10, _, _ in oracle.full_scores(" ".join(codes))]
        assert log10_of(checkpoint, text).tolist() == pytest.approx(expected, abs=1e-5), text


def test_a_tokenizer_of_listed_pieces_is_the_same_when_loaded_and_decodes(tmp_path, piece_model):
    path, processor = piece_model
    words = [processor.IdToPiece(i) for i in written_pieces(processor)]
    checkpoint = imported(tmp_path, write_arpa(tmp_path / "m.arpa", words), path)
    tokenizer = checkpoint.tokenizer
    texts = [text for text in TEXT[:3] if UNK not in tokenizer.encode(text)]
    assert texts
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts
    assert tokenizer.encode_all(QUERIES) == [tokenizer.encode(text) for text in QUERIES]
    assert (
        tokenizer.fingerprint
        != tokenizer.__class__(path.read_bytes(), type(tokenizer.vocabulary)([])).fingerprint
    )
    ids, before = tokenizer.encode_after("the c", "at")
    assert tokenizer.decode(ids) == "the cat"
    assert before < len(ids)


def test_held_out_text_is_evaluated_in_pieces(tmp_path, piece_model):
    path, processor = piece_model
    words = [processor.IdToPiece(i) for i in written_pieces(processor)]
    (tmp_path / "text.txt").write_text("\n".join(TEXT[:3]))
    checkpoint = imported(
        tmp_path, write_arpa(tmp_path / "m.arpa", words), path, corpus=[tmp_path / "text.txt"]
    )
    tokens = sum(len(processor.EncodeAsIds(text)) + 1 for text in TEXT[:3])
    assert checkpoint.metrics["test"]["tokens"] == tokens
    assert json.loads((checkpoint.path / "tokenizer.json").read_text())["kind"] == "sentencepiece"


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (["▁the", "▁elephant"], {}, "never writes . of the 2 words, such as '▁(the|elephant)'"),
        (
            ["the", "cat"],
            {"encoding": "nemo"},
            r"2 of the 2 words of the ARPA file, such as '(the|cat)', are not one",
        ),
        (
            ["\u5000", "f"],
            {"encoding": "nemo"},
            r"1 of the 2 words .* such as '倀', are not one character from U\+0064",
        ),
        (["▁the"], {"encoding": "utf-8"}, "--encoding is 'utf-8'; it can be pieces or nemo"),
        (["▁the"], {"lowercase": True}, "--lowercase is for words"),
    ],
)
def test_pieces_of_another_tokenizer_are_refused_and_nothing_is_published(
    tmp_path, piece_model, words, options, message
):
    file = write_arpa(tmp_path / "m.arpa", words)
    with pytest.raises(InputError, match=message):
        imported(tmp_path, file, piece_model[0], **options)
    assert not list((tmp_path / "registry").glob("m/versions/*"))


@pytest.mark.parametrize("content", [None, b"", b"not a model"])
def test_a_file_that_is_no_sentencepiece_model_is_named(tmp_path, content):
    file, model = write_arpa(tmp_path / "m.arpa", ["a", "b"]), tmp_path / "p.model"
    if content is not None:
        model.write_bytes(content)
    with pytest.raises(InputError, match=r"--tokenizer .*p\.model"):
        imported(tmp_path, file, model)


def test_an_encoding_without_a_tokenizer_is_refused(tmp_path):
    file = write_arpa(tmp_path / "m.arpa", ["a", "b"])
    with pytest.raises(InputError, match="with --tokenizer"):
        imported(tmp_path, file, None, encoding="nemo")

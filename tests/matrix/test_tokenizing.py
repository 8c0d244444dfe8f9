"""Texts to tokens and back, by every model."""

from models.vocabulary import BOS
from tests.matrix.rows import row
from tests.matrix.texts import LOSSLESS, TEXTS


@row("POST /tokenize")
def test_tokens_are_those_that_are_scored(model):
    for text in TEXTS:
        reply = model.ask("/tokenize", prompt=text)
        plain = model.ask("/tokenize", prompt=text, add_special_tokens=False)
        assert reply["tokens"] == [BOS, *plain["tokens"]]
        scored = model.score([text], detail="token", eos=False)[0]["tokens"]
        assert plain["tokens"] == [token["id"] for token in scored]
        assert plain["count"] == len(plain["tokens"])


@row("POST /detokenize")
def test_what_tokens_spell_has_these_tokens(model):
    for text in TEXTS if model.cell.tokens in LOSSLESS else TEXTS[:1]:
        tokens = model.ask("/tokenize", prompt=text, add_special_tokens=False)["tokens"]
        spelled = model.ask("/detokenize", tokens=tokens)["prompt"]
        assert model.ask("/tokenize", prompt=spelled, add_special_tokens=False)["tokens"] == tokens
        if model.cell.tokens in LOSSLESS:
            assert spelled == text


@row("GET /tokenizer_info")
def test_the_tokenizer_is_told_as_it_is(model):
    told = model.send("GET /tokenizer_info", params={"model": model.cell.model}).json()
    assert told["vocab_size"] == model.vocab_size
    assert told["fingerprint"] == model.tokenizer.fingerprint

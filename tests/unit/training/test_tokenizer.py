"""Learning tokenizers and encoding corpora in batches, on several cores."""

from collections import Counter

import pytest

from models.errors import InputError
from models.files import split_words
from models.kernels.threads import THREADS
from training.tokenizer import TokenizerSettings, encode_corpus, learn_tokenizer

LINES = [f"the {'very ' * (i % 5)}Small\u00a0cat {i % 700} naïve" for i in range(20_000)]


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("settings", [{}, {"lowercase": True}, {"pattern": r"\w+"}, {"kind": "char"}])
def test_a_text_of_several_batches_is_learnt_and_encoded_alike_on_any_number_of_cores(
    settings, cores, monkeypatch
):
    monkeypatch.setattr(THREADS, "limit", cores)
    tokenizer = learn_tokenizer(TokenizerSettings(**settings), LINES)
    corpus = encode_corpus(tokenizer, LINES)
    assert [corpus.sentence(i).tolist() for i in range(0, len(LINES), 977)] == tokenizer.encode_all(
        LINES[::977]
    )
    assert corpus.num_words == sum(map(len, map(split_words, LINES)))
    assert corpus.num_bytes == sum(len(line.encode()) for line in LINES)


def test_words_of_all_batches_are_counted():
    counts = Counter(word for line in LINES for word in split_words(line))
    tokens = learn_tokenizer(TokenizerSettings(), LINES).vocabulary.tokens[3:]
    assert list(tokens) == sorted(counts, key=lambda word: (-counts[word], word))


@pytest.mark.parametrize(("settings", "needed"), [({"byte_fallback": False}, 424), ({}, 680)])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_pieces_that_many_characters_need_are_told(kind, settings, needed):
    lines = ["".join(chr(0x4E00 + 7 * i + j) for j in range(7)) for i in range(60)]
    with pytest.raises(
        InputError, match=f"need {needed} pieces; set tokenizer.vocab_size={needed} or"
    ) as told:
        learn_tokenizer(
            TokenizerSettings(kind=kind, vocab_size=300 if not settings else 20, **settings), lines
        )
    assert "--" not in str(told.value)
    assert (
        len(learn_tokenizer(TokenizerSettings(kind=kind, vocab_size=needed, **settings), lines).vocabulary)
        == needed
    )

"""Text after the caret: what is read of it, what it repeats, and posteriors against the model's own probabilities."""

import numpy as np
import pytest

from models.calls import run_to_completion
from models.completion.following import (
    following_words,
    is_repeated,
    log_probs_of_following,
)
from models.completion.prefix import split_prefix
from models.completion.ranked import RankingSettings, TypingEvidence
from models.completion.ranking import rank_completions
from models.language_model import pad_sequences, score_sequences
from models.scoring.model_weights import WeightedModel
from models.scoring.sequences import predict_next
from models.text_model import Limits, TextModel
from tests.support import families
from tests.support.text_models import learnt_pieces, piece_model

WORDS = families.WORDS
LIMITS = Limits(max_texts=1, max_tokens_per_sequence=10_000, max_new_tokens=1)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (" of the list", " of the list"),
        (" of  the\tlist is long", " of the list"),
        (", and so on", ", and so"),
        ("ing the list", ""),
        ("\nnext line", ""),
        (" end\nnext line", " end"),
        ("", ""),
        ("   ", ""),
    ],
)
def test_the_next_words_on_the_line_are_read(after, words):
    assert following_words(after) == words


@pytest.mark.parametrize(
    ("completion", "typed", "after", "repeated"),
    [
        ("list", 0, " list of", True),
        ("list", 0, "list of", True),
        ("list", 0, " lists of", False),
        ("list of", 0, " list of names", True),
        ("list", 2, "st of", True),
        ("list", 2, " st of", False),
        ("list", 2, " list of", False),
        ("list", 4, "", False),
        ("list", 0, "", False),
        ("list", 0, "\nlist", False),
    ],
)
def test_what_follows_is_not_inserted_again(completion, typed, after, repeated):
    assert is_repeated(completion, typed, after) == repeated


def text_model(name):
    return TextModel(f"{name}@1", families.model(name), families.tokenizer())


def completions(loaded, text, limit=100, **options):
    work = rank_completions(
        [WeightedModel(loaded)],
        text,
        RankingSettings(limit=limit),
        LIMITS,
        evidence=TypingEvidence(**options),
    )
    return {one.text: one.probability for one in run_to_completion(work).completions}


def joint(model, tokenizer, *texts):
    """Log-probabilities of texts from `<s>` on."""
    tokens, lengths = pad_sequences([tokenizer.encode(text) for text in texts])
    scores = score_sequences(model, model.initial_state(len(texts)), tokens, lengths)
    return [float(row[:size].sum()) for row, size in zip(scores, lengths, strict=True)]


@pytest.mark.parametrize("name", ["ngram", "lstm"])
@pytest.mark.parametrize("prefix", ["", "w1"])
def test_words_before_known_ones_have_the_posterior_of_the_model(name, prefix):
    loaded, context, after = (
        text_model(name),
        f"{WORDS[2]} {WORDS[5]}",
        f"{WORDS[7]} {WORDS[1]} {WORDS[30]}",
    )
    plain = completions(loaded, f"{context} {prefix}")
    found = completions(loaded, f"{context} {prefix}", after=f" {after} {WORDS[0]}")
    weighed = sorted(plain, key=plain.get, reverse=True)[:32]
    scores = joint(
        loaded.model,
        loaded.tokenizer,
        *(f"{context} {word} {after}" for word in weighed),
    )
    want = np.exp(np.array(scores) - max(scores))
    want *= sum(plain[word] for word in weighed) / want.sum()
    repeated = {word for word in weighed if word == WORDS[7]}
    assert found.keys() == plain.keys() - repeated
    if not repeated:
        assert [found[word] for word in weighed] == pytest.approx(want.tolist(), rel=1e-3)
        for word in plain.keys() - set(weighed):
            assert found[word] == pytest.approx(plain[word])
        assert sum(found.values()) == pytest.approx(sum(plain.values()), rel=1e-6)


def test_pieces_of_what_follows_are_those_of_the_whole_text():
    tokenizer = learnt_pieces("unigram")
    loaded = TextModel("pieces@1", piece_model("unigram"), tokenizer)
    split = split_prefix(tokenizer, "the c")
    entry = run_to_completion(predict_next(loaded, split.context, LIMITS, param="text"))
    texts = ["cat", "cattle"]
    scores = run_to_completion(log_probs_of_following(loaded, split, entry, texts, " sat on"))
    for text, score in zip(texts, scores.tolist(), strict=True):
        whole, alone = joint(loaded.model, tokenizer, f"the {text} sat on", f"the {text}")
        assert score == pytest.approx(whole - alone, abs=1e-3)


def test_a_caret_within_a_word_changes_nothing():
    loaded = text_model("ngram")
    assert completions(loaded, "w1", after="xyz abc") == completions(loaded, "w1")


def test_networks_read_the_lines_before_and_ngrams_do_not():
    lines, text = f"{WORDS[4]} {WORDS[9]}\n\n{WORDS[6]}\n", f"{WORDS[1]} w2"
    ngram = text_model("ngram")
    assert completions(ngram, text, before=lines) == completions(ngram, text)
    loaded = text_model("lstm")
    found = completions(loaded, text, before=lines)
    assert found != completions(loaded, text)
    encode = loaded.tokenizer.encode
    ids = [
        *encode(f"{WORDS[4]} {WORDS[9]}"),
        2,
        1,
        *encode(WORDS[6]),
        2,
        1,
        *encode(WORDS[1]),
    ]
    model = loaded.model
    tokens, lengths = pad_sequences([ids])
    from models.language_model import prefill_sequences

    row = np.asarray(model.next_log_probs(prefill_sequences(model, model.initial_state(1), tokens, lengths)))[
        0
    ]
    masses = {word: float(np.exp(row[loaded.model.vocabulary.ids[word]])) for word in found}
    total = sum(
        float(np.exp(row[i])) for word, i in loaded.model.vocabulary.ids.items() if word.startswith("w2")
    )
    assert found == pytest.approx({word: mass / total for word, mass in masses.items()}, rel=1e-4)

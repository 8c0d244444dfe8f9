"""KenLM's interface over a service whose model changes."""

from types import SimpleNamespace

import pytest

from gramophone_client import kenlm
from gramophone_client.types import ScoreReply, ScoreTotals, SequenceScoreResult, WordScore


class FakeService:
    """Service that gives every word the log-probability `logprob`; created in place of a `Client`."""

    def __init__(self, url, **options):
        self.url, self.options, self.asked = url, options, []
        self.version, self.logprob, self.order = "lm@1", -1.0, 3

    def score(self, texts=None, *, token_ids=None, context="", eos, **options):
        self.asked.append((context, texts, options.get("model")))
        results = []
        for text in texts or [""]:
            names = [*kenlm._words(text), *["</s>"] * (eos or token_ids is not None)]
            words = [
                WordScore(text=n, logprob=self.logprob, num_tokens=1, is_oov=n == "<unk>") for n in names
            ]
            lengths = [1] * len(words) if self.order else []
            totals = {"logprob": 0, "num_tokens": 1, "num_oov": 0, "perplexity": None, "bits_per_byte": None}
            results.append(
                SequenceScoreResult(**totals, words=words, order=self.order, ngram_lengths=lengths)
            )
        return ScoreReply(model=self.version, results=results, corpus=ScoreTotals(**totals))

    def fetch(self, call):
        return SimpleNamespace(tokenizer_class="char", vocab_size=9, max_model_len=100, call=call)

    def close(self):
        pass


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(kenlm, "Client", FakeService)
    return kenlm.Model("http://x", companions=2)


def after(model, *words):
    state = kenlm.State()
    model.BeginSentenceWrite(state)
    for word in words:
        model.BaseScore(state, word, state)
    return state


def test_scores_of_another_version_are_requested_again(model):
    state, next_state = after(model, "a", "b"), kenlm.State()
    old = model.BaseScore(state, "c", next_state)
    model._client.version, model._client.logprob, model._client.order = "lm@2", -2.0, 2
    assert model.BaseScore(state, "c", next_state) == old
    assert model.BaseScore(state, "d", next_state) == pytest.approx(2 * old)
    assert model.BaseScore(state, "c", next_state) == pytest.approx(2 * old)
    assert (model.order, next_state.context.words) == (2, ("c",))


def test_a_context_is_as_long_as_the_model_reads(model):
    assert after(model, "a", "b", "c").context == (False, ("b", "c"))
    assert after(model, "a").context == (True, ("a",))
    assert after(model, "a", "</s>").context == (False, ())
    assert after(model, "a", "<s>").context == (True, ())


@pytest.mark.parametrize("word", ["", "a b", " a", "\t"])
def test_string_that_is_no_word_is_unknown(model, word):
    state = kenlm.State()
    assert model.BaseFullScore(after(model), word, state).oov
    assert word not in model
    assert model.BaseScore(state, "a", state) == pytest.approx(-0.4342945)
    assert model._client.asked[-1][0] == "<unk>"


def test_few_recent_words_are_scored_too(model):
    after(model, *"abcde")
    assert [len(texts) for _, texts, _ in model._client.asked[1:]] == [1, 2, 3, 3, 3]


def test_stored_scores_are_bounded(model, monkeypatch):
    monkeypatch.setattr(kenlm, "_MAX_SCORES", 10)
    after(model, *map(str, range(100)))
    assert len(model._scores) <= 20


def test_a_probability_of_zero_is_that_of_arpa_files(model):
    model._client.logprob = -9999.0
    assert model.score("a", bos=False, eos=False) == -99.0


def test_the_unigram_model_has_no_context(model):
    model._client.version, model._client.order = "lm@2", 1
    assert after(model, "a", "b").context == (False, ())

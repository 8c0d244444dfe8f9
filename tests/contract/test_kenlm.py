"""KenLM's interface over a service, against KenLM itself on random ARPA files."""

import copy
import heapq
import os
from typing import NamedTuple

import kenlm
import numpy as np
import pytest

import gramophone_client.kenlm
from gramophone_client import Client, NotFoundError, UnreachableError
from gramophone_client.local_service import LocalService
from models.checkpoint.registry import LocalRegistry
from service.settings import Settings
from tests.reference.backoff import SMALL, random_arpa
from tests.support.services import running
from training.publish import run_import_arpa

SEEDS = range(6)


class Pair(NamedTuple):
    """A model of the service, the same with KenLM, and its words."""

    ours: gramophone_client.kenlm.Model
    theirs: kenlm.Model
    words: list[str]

    def sentences(self, seed, count=20):
        """Random sentences, some empty, with unknown words."""
        random = np.random.default_rng(seed)
        for _ in range(count):
            yield " ".join(random.choice([*self.words, "unheard-of"], random.integers(0, 10)))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Service of random ARPA files of order 2 to 5, with and without `<unk>`; its URL, files and their words."""
    folder, words = tmp_path_factory.mktemp("kenlm"), {}
    LocalRegistry(folder / "registry", create=True)
    for seed in SEEDS:
        text, words[seed] = random_arpa(
            np.random.default_rng(seed), order=2 + seed % 4, unknown=seed % 3 > 0, num_words=12
        )
        (folder / f"{seed}.arpa").write_text(text, encoding="utf-8")
        run_import_arpa(folder / f"{seed}.arpa", name=f"lm{seed}", registry=str(folder / "registry"))
    with running(Settings(registry=folder / "registry", max_tokens_per_sequence=11)) as server:
        yield server.url, folder, words


@pytest.fixture
def pair_of(served):
    """Make pairs of models by seed; ours are closed after the test."""
    url, folder, words = served
    made = []

    def make(seed=1, **options):
        ours = gramophone_client.kenlm.Model(url, model=f"lm{seed}", **options)
        made.append(ours)
        return Pair(ours, kenlm.Model(str(folder / f"{seed}.arpa")), words[seed])

    yield make
    for model in made:
        model.close()


@pytest.fixture
def requests(monkeypatch):
    """Paths of all requests that clients send."""
    sent, send = [], Client.fetch
    monkeypatch.setattr(Client, "fetch", lambda self, call: (sent.append(call.path), send(self, call))[1])
    return sent


@pytest.mark.parametrize("seed", SEEDS)
def test_sentences_score_as_with_kenlm(pair_of, seed):
    pair = pair_of(seed)
    assert pair.ours.order == pair.theirs.order
    for sentence in pair.sentences(seed, 8):
        for bos, eos in [(True, True), (True, False), (False, True), (0, 0)]:
            ours = list(pair.ours.full_scores(sentence, bos, eos))
            theirs = list(pair.theirs.full_scores(sentence, bos, eos))
            assert [score[1:] for score in ours] == [score[1:] for score in theirs]
            assert [score[0] for score in ours] == pytest.approx([score[0] for score in theirs], abs=1e-4)
            total = pair.theirs.score(sentence, bos=bos, eos=eos)
            assert pair.ours.score(sentence, bos=bos, eos=eos) == pytest.approx(total, abs=1e-4)
        assert pair.ours.perplexity(sentence) == pytest.approx(pair.theirs.perplexity(sentence), rel=1e-4)


@pytest.mark.parametrize("space", [*"\t\n\v\f", *"\x1c\x85\u00a0\u2028\u3000", "a\ufeffb"], ids=ascii)
def test_words_are_separated_by_ascii_white_space_and_may_be_encoded(pair_of, space):
    pair = pair_of()
    first, second = pair.words[:2]
    for sentence in (f"{first}{space}{second} {first}", f"{first}{space}"):
        theirs = [score[1:] for score in pair.theirs.full_scores(sentence)]
        assert [score[1:] for score in pair.ours.full_scores(sentence)] == theirs
        assert [score[1:] for score in pair.ours.full_scores(sentence.encode())] == theirs
        assert pair.ours.score(sentence.encode()) == pytest.approx(pair.theirs.score(sentence), abs=1e-4)
        assert pair.ours.perplexity(sentence) == pytest.approx(pair.theirs.perplexity(sentence), rel=1e-4)
    for word in (first.encode(), b"\xff", f"{first}{space}{second}".encode()):
        assert (word in pair.ours) == (word in pair.theirs)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("start", ["BeginSentenceWrite", "NullContextWrite"])
def test_states_score_word_by_word_as_with_kenlm(pair_of, seed, start):
    pair = pair_of(seed)
    state, their_state = gramophone_client.kenlm.State(), kenlm.State()
    getattr(pair.ours, start)(state)
    getattr(pair.theirs, start)(their_state)
    for word in np.random.default_rng(seed).choice([*pair.words, "unheard-of", ""], 25).tolist():
        after, their_after = gramophone_client.kenlm.State(), kenlm.State()
        end = pair.ours.BaseScore(state, "</s>", after)
        assert end == pytest.approx(pair.theirs.BaseScore(their_state, "</s>", their_after), abs=1e-4)
        ours = pair.ours.BaseFullScore(state, word, after)
        theirs = pair.theirs.BaseFullScore(their_state, word, their_after)
        assert ours.log_prob == pytest.approx(theirs.log_prob, abs=1e-4)
        assert (ours.ngram_length, ours.oov) == (theirs.ngram_length, theirs.oov)
        state, their_state = after, their_after


WIDE = ["\x1c", "\x85", "\u00a0", "\u2028", "\u3000"]


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A local service of ARPA files with a word of two words around each wide white space; its URL and the files."""
    folder = tmp_path_factory.mktemp("wide")
    LocalRegistry(folder / "registry", create=True)
    for number, space in enumerate(WIDE):
        word, path = f"ten{space}thousand", folder / f"{number}.arpa"
        path.write_text(
            SMALL.replace("\ta\t", f"\t{word}\t").replace(" a", f" {word}").replace("\ta ", f"\t{word} ")
        )
        run_import_arpa(path, name=f"wide{number}", registry=str(folder / "registry"))
    service = LocalService(str(folder / "registry"))
    yield service.url, folder
    service.close()


@pytest.mark.parametrize("space", WIDE, ids=ascii)
def test_a_word_with_wide_white_space_is_scored_as_with_kenlm(wide, space):
    (url, folder), word, number = wide, f"ten{space}thousand", WIDE.index(space)
    theirs = kenlm.Model(str(folder / f"{number}.arpa"))
    with gramophone_client.kenlm.Model(url, model=f"wide{number}") as ours:
        assert word in ours
        scores = [
            model.BaseScore(module.State(), word, module.State())
            for model, module in ((ours, gramophone_client.kenlm), (theirs, kenlm))
        ]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)
        assert ours.score(f"{word} b") == pytest.approx(theirs.score(f"{word} b"), abs=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_states_are_equal_if_kenlms_are_and_have_an_order(pair_of, seed):
    pair, found = pair_of(seed), []
    for sentence in [*pair.sentences(seed, 25), *pair.words, "unheard-of", f"{pair.words[0]} unheard-of"]:
        state, theirs = gramophone_client.kenlm.State(), kenlm.State()
        pair.ours.BeginSentenceWrite(state)
        pair.theirs.BeginSentenceWrite(theirs)
        for word in sentence.split():
            after, their_after = gramophone_client.kenlm.State(), kenlm.State()
            pair.ours.BaseScore(state, word, after)
            pair.theirs.BaseScore(theirs, word, their_after)
            state, theirs = after, their_after
            found.append((state, theirs))
    for one, theirs in found:
        same = [other for other, others in found if others == theirs]
        assert [other for other, _ in found if other == one] == same
        assert len(set(same)) == 1
    assert min(one for one, _ in found) == heapq.nsmallest(1, [(0.0, one) for one, _ in found])[0][1]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_vocabulary_is_kenlms(pair_of, seed):
    pair = pair_of(seed)
    for word in [*pair.words, "unheard-of", "<s>", "</s>", "<unk>", "", "a b"]:
        assert (word in pair.ours) == (word in pair.theirs), word


def test_lengths_of_ngrams_are_reported_alone_and_by_line(served, pair_of):
    pair, context = pair_of(2), "unheard-of"
    texts = [sentence for sentence in pair.sentences(3) if sentence]
    options = {"model": "lm2", "eos": False, "ngram_lengths": True}
    with Client(served[0]) as client:
        results = client.score(texts, **options).results
        assert list(client.score_lines([{"text": text} for text in texts], **options)) == results
        (after,) = client.score([f" {texts[0]}"], context=context, **options).results
    for text, result in zip(texts, results, strict=True):
        assert result.ngram_lengths == [score[1] for score in pair.theirs.full_scores(text, eos=False)]
        assert (result.order, result.words) == (pair.theirs.order, [])
    whole = pair.theirs.full_scores(f"{context} {texts[0]}", eos=False)
    assert after.ngram_lengths == [score[1] for score in whole][1:]


def test_a_sentence_with_marks_is_scored_with_them(pair_of):
    pair = pair_of()
    text = f"{pair.words[0]} {pair.words[1]}"
    assert pair.ours.score(f"<s> {text} </s>", bos=False, eos=False) == pytest.approx(
        pair.ours.score(text) - 99
    )


def test_states_are_equal_if_their_futures_are(pair_of):
    pair, states = pair_of(0), []
    a, b, c = pair.words[:3]
    assert pair.ours.order == 2
    for words in (f"{a} {b} {c}", f"{b} {c}", c, b):
        state = gramophone_client.kenlm.State()
        pair.ours.NullContextWrite(state)
        for word in words.split():
            pair.ours.BaseScore(state, word, state)
        states.append(state)
    assert states[0] == states[1] == states[2] == copy.deepcopy(states[0]) != states[3]
    assert len(set(states)) == 2


def test_a_sentence_is_one_request(pair_of, requests):
    pair = pair_of()
    requests.clear()
    for _ in pair.ours.full_scores(" ".join(pair.words[:6])):
        pass
    assert requests == ["/v1/score"]


def test_a_word_is_requested_once_per_context_and_with_recent_words_and_the_end(pair_of, requests):
    pair = pair_of()
    start, after = gramophone_client.kenlm.State(), gramophone_client.kenlm.State()
    pair.ours.BeginSentenceWrite(start)
    first, second = pair.words[:2]
    pair.ours.BaseScore(start, first, after)
    requests.clear()
    pair.ours.BaseScore(start, first, after)
    pair.ours.BaseScore(after, "</s>", gramophone_client.kenlm.State())
    assert requests == []
    pair.ours.BaseScore(after, second, gramophone_client.kenlm.State())
    pair.ours.BaseScore(after, first, gramophone_client.kenlm.State())  # recent, so scored with the second
    assert requests == ["/v1/score"]


def test_a_vocabulary_is_read_once(pair_of, requests):
    """The service accepts 11 tokens in a request; the model has 12 words."""
    pair = pair_of()
    requests.clear()
    assert all(word in pair.ours for word in [*pair.words, *pair.words])
    assert not any(word in pair.ours for word in ("x", "y", pair.words[0].upper()))
    assert requests == ["/tokenizer_info", *["/detokenize"] * 2, "/v1/score"]


def test_all_unknown_words_are_one_word(pair_of, requests):
    pair, states = pair_of(), []
    for word in ("x", "y", "<unk>"):
        states.append(gramophone_client.kenlm.State())
        requests.clear()
        pair.ours.NullContextWrite(states[-1])
        pair.ours.BaseScore(states[-1], word, states[-1])
    assert requests == []
    assert states[0] == states[1] == states[2]


def test_a_tokenizer_that_changes_words_knows_more_than_its_vocabulary(served, pair_of):
    _, folder, words = served
    run_import_arpa(folder / "0.arpa", name="folded", registry=str(folder / "registry"), lowercase=True)
    with running(Settings(registry=folder / "registry", models=("folded",))) as server:
        model = gramophone_client.kenlm.Model(server.url)
        assert words[0][0].upper() in model
        assert "x" not in model
        assert model.score(words[0][0].upper()) == pytest.approx(pair_of(0).ours.score(words[0][0]))
        model.close()


def test_a_copy_has_the_same_model(pair_of):
    pair = pair_of(2)
    with copy.copy(pair.ours) as again:  # as multiprocessing does
        assert again.score(pair.words[0]) == pair.ours.score(pair.words[0])


def test_a_forked_process_has_its_own_connections(pair_of, monkeypatch):
    pair = pair_of()
    before = pair.ours._client
    monkeypatch.setattr(os, "getpid", lambda: -1)
    pair.ours.score(pair.words[0])
    assert pair.ours._client is not before
    before.close()


def test_the_fragment_of_the_url_names_the_model(served):
    url, _, words = served
    with gramophone_client.kenlm.LanguageModel(f"{url}#lm3") as model:
        assert model.order == 5
        assert words[3][0] in model
        assert repr(model).startswith("<Model from ")


def test_a_model_without_ngrams_has_the_lengths_of_its_histories(server):
    with gramophone_client.kenlm.Model(server.url, model="mixture") as model:
        assert model.order == 100
        assert [score.ngram_length for score in model.full_scores("the cat sat")] == [2, 3, 4, 5]
        state = gramophone_client.kenlm.State()
        model.NullContextWrite(state)
        stepwise = [model.BaseScore(state, word, state) for word in ("the", "cat")]
        assert sum(stepwise) == pytest.approx(model.score("the cat", bos=False, eos=False))


def test_words_of_several_tokens_are_summed(server):
    with gramophone_client.kenlm.Model(server.url, model="chars") as model:
        state = gramophone_client.kenlm.State()
        model.BeginSentenceWrite(state)
        stepwise = [model.BaseScore(state, word, state) for word in ("the", "cat", "</s>")]
        assert sum(stepwise) == pytest.approx(model.score("the cat"), abs=1e-5)
        assert "cat" in model
        assert "c4t" not in model


def test_errors_are_reported_at_once(served):
    with pytest.raises(NotFoundError, match="nosuch"):
        gramophone_client.kenlm.Model(served[0], model="nosuch")
    with pytest.raises(UnreachableError):
        gramophone_client.kenlm.Model("http://127.0.0.1:1")
    with pytest.raises(FileNotFoundError, match=r"'nosuch\.arpa': there is no such file"):
        gramophone_client.kenlm.Model("nosuch.arpa")


def test_a_state_of_the_module_kenlm_is_refused_with_the_way_out(pair_of):
    with pytest.raises(TypeError, match=r'state is a kenlm.State.*sys\.modules\["kenlm"\]'):
        pair_of().ours.BeginSentenceWrite(kenlm.State())

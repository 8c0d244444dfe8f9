"""pyctcdecode with a served model: recordings that need a language model, and scores equal to KenLM's."""

import logging

import kenlm
import numpy as np
import pytest

import gramophone_client.kenlm
from gramophone_client import Client
from gramophone_client.fusion import PyCTCDecodeLM
from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.language_model import Vocabulary
from models.ngram.arpa_writer import write_arpa
from models.ngram.build import list_ngrams
from models.tokenizers import CharacterTokenizer, WordTokenizer
from service.settings import Settings
from tests.contract.decoders import importable
from tests.support.services import running
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress

SENTENCES = [
    "the cat sat on the mat",
    "a cat sat on a hat",
    "the man had a hat",
    "the cat ate the ham",
    "a man sat on the hat",
    "the ham had a name",
]
LABELS = [*" acdehmnost", ""]
BLANK = len(LABELS) - 1


@pytest.fixture(scope="module")
def pyctcdecode():
    importable("pyctcdecode", "pygtrie")
    import pyctcdecode

    logging.getLogger("pyctcdecode").setLevel(logging.ERROR)  # it warns of small vocabularies
    return pyctcdecode


def trained(tokenizer):
    rows = [np.array(tokenizer.encode(line)) for line in SENTENCES]
    corpus = EncodedCorpus.from_sentences(rows, num_words=30, num_bytes=200)
    return estimate(corpus, tokenizer.vocabulary, order=3, progress=Progress()).model


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Serve n-gram models of words and of characters; the word model is also an ARPA file for KenLM."""
    folder = tmp_path_factory.mktemp("fusion")
    registry = LocalRegistry(folder / "registry", create=True)
    words = WordTokenizer(Vocabulary(sorted({word for line in SENTENCES for word in line.split()})))
    characters = CharacterTokenizer(Vocabulary(sorted(set("".join(SENTENCES)))))
    about = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {})
    for name, tokenizer in {"words": words, "characters": characters}.items():
        model = trained(tokenizer)
        registry.publish(
            name, lambda at, model=model, tokenizer=tokenizer: write_checkpoint(at, model, tokenizer, about)
        )
        if name == "words":
            write_arpa(folder / "words.arpa", model.vocabulary, list_ngrams(model.automaton))
    with running(Settings(registry=registry.root)) as server, Client(server.url) as client:
        yield client, folder / "words.arpa", words.vocabulary.tokens[3:], server.app.state.services.states


@pytest.fixture
def lm(served):
    """Make language models of the service; their states are freed at the end of the test."""
    client, _, words, store = served
    made = []

    def make(**options):
        made.append(PyCTCDecodeLM(client, **{"unigrams": words, "model": "words", **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert len(store) == 0


def spoken(text, *, sure=0.9, mistaken=None):
    """Return log-probabilities [T, C] of a well-recognised text; `mistaken` maps positions to misrecognised letters."""
    random = np.random.default_rng(0)
    rows = []
    for place, letter in enumerate(text):
        row = random.uniform(0.5, 1.0, len(LABELS))
        row *= (1 - sure) / row.sum()
        row[LABELS.index(letter)] += sure / 2 if place in (mistaken or {}) else sure
        if place in (mistaken or {}):
            row[LABELS.index(mistaken[place])] += sure / 2 * 1.1
        blank = np.full(len(LABELS), 1e-6)
        blank[BLANK] = 1
        rows += [row / row.sum(), blank / blank.sum()]
    return np.log(np.array(rows[:-1]))


def decoder(pyctcdecode, lm):
    return pyctcdecode.BeamSearchDecoderCTC(pyctcdecode.Alphabet.build_alphabet(LABELS), lm)


@pytest.mark.parametrize("model", ["words", "characters"])
def test_a_served_model_puts_right_what_was_misheard(pyctcdecode, lm, model):
    logits = spoken("the cat sat on the mat", mistaken={21: "n"})
    assert decoder(pyctcdecode, None).decode(logits) == "the cat sat on the man"
    assert decoder(pyctcdecode, lm(model=model)).decode(logits) == "the cat sat on the mat"


def half_heard(seed):
    """Return log-probabilities of a recording that is half noise: beams contain unknown words and prefixes."""
    random = np.random.default_rng(seed)
    heard = np.exp(spoken(SENTENCES[seed], sure=0.5)) + 0.2 * random.dirichlet(
        np.full(len(LABELS), 0.2), size=2 * len(SENTENCES[seed]) - 1
    )
    heard[-1, [0, BLANK]] = 1e-12  # ends in a letter: KenLM treats an empty last word as unknown
    return np.log(heard / heard.sum(axis=1, keepdims=True))


def assert_same_beams(ours, theirs):
    assert len(theirs) > 4
    assert [beam[0] for beam in ours] == [beam[0] for beam in theirs]
    for place in (3, 4):
        np.testing.assert_allclose([b[place] for b in ours], [b[place] for b in theirs], atol=1e-4)


@pytest.mark.parametrize("boundary", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_beams_and_scores_are_those_of_kenlm(pyctcdecode, served, lm, seed, boundary):
    _, arpa, words, _ = served
    options = {"alpha": 0.6, "beta": 1.1, "unk_score_offset": -4.0, "score_boundary": boundary}
    own_lm = pyctcdecode.LanguageModel(kenlm.Model(str(arpa)), words, **options)
    ours, theirs = (
        decoder(pyctcdecode, one).decode_beams(half_heard(seed), beam_width=50)
        for one in (lm(order=3, **options), own_lm)
    )
    assert_same_beams(ours, theirs)


@pytest.mark.parametrize("unigrams", [True, False])
def test_code_for_kenlm_decodes_with_a_service(pyctcdecode, served, monkeypatch, unigrams):
    """The decoder has its own language model, in which `import kenlm` finds the client's module."""
    client, arpa, words, _ = served
    beams = []
    for module, path in [(gramophone_client.kenlm, f"{client.url}#words"), (kenlm, str(arpa))]:
        monkeypatch.setattr(pyctcdecode.language_model, "kenlm", module)
        model = module.Model(path)
        own_lm = pyctcdecode.LanguageModel(model, words if unigrams else None, beta=1.1)
        beams.append(decoder(pyctcdecode, own_lm).decode_beams(half_heard(1), beam_width=50))
        if module is gramophone_client.kenlm:
            model.close()
    assert_same_beams(*beams)


def test_a_recording_goes_on_where_the_one_before_ended(pyctcdecode, lm):
    lm = lm(score_boundary=False)
    (first, state, *_), *_ = decoder(pyctcdecode, lm).decode_beams(spoken("the cat sat on"))
    whole, *_ = decoder(pyctcdecode, lm).decode_beams(spoken("the cat sat on the mat"))
    (rest, _, _, logit, score), *_ = decoder(pyctcdecode, lm).decode_beams(
        spoken("the mat"), lm_start_state=state
    )
    (_, _, _, logit_first, score_first), *_ = decoder(pyctcdecode, lm).decode_beams(spoken("the cat sat on"))
    assert f"{first} {rest}" == whole[0]
    assert (score - logit) + (score_first - logit_first) == pytest.approx(whole[4] - whole[3], abs=1e-4)


def test_states_are_freed_as_the_decoder_drops_them(pyctcdecode, served, lm):
    lm, store, counts = lm(), served[-1], []
    for _ in range(3):
        decoder(pyctcdecode, lm).decode(spoken(SENTENCES[0]))
        counts.append(len(store))
    assert 1 < counts[0] == counts[1] == counts[2]
    lm.close()
    assert len(store) == 0


def test_parameters_are_reset_as_pyctcdecode_does(pyctcdecode, lm):
    lm = lm()
    decoder(pyctcdecode, lm).reset_params(alpha=0.0, beta=2.5)
    assert lm.score(lm.get_start_state(), "cat")[0] == pytest.approx(2.5)
    assert lm.score_partial_token("ca") == 0.0
    assert lm.score_partial_token("catsatonthem") == pytest.approx(-20.0)


def test_there_is_nothing_to_save(pyctcdecode, lm, tmp_path):
    with pytest.raises(NotImplementedError, match="the service stores"):
        decoder(pyctcdecode, lm(unigrams=None)).save_to_dir(str(tmp_path))

"""Flashlight's decoders (torchaudio's) with a served model: scores equal those of KenLM and of the model itself."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from gramophone_client import Client
from gramophone_client.fusion import TorchaudioLM
from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.language_model import EOS, Vocabulary
from models.ngram.arpa_writer import write_arpa
from models.ngram.build import list_ngrams
from models.tokenizers import CharacterTokenizer, WordTokenizer
from service.settings import Settings
from tests.contract.decoders import importable
from tests.support.services import running
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress

SENTENCES = ["the cat sat on the mat", "a cat sat on a hat", "the man had a hat", "the cat ate the ham"]
LETTERS = sorted(set("".join(SENTENCES)) - {" "})
TOKENS = ["-", "|", *LETTERS]
BLANK, SILENCE = 0, 1


@pytest.fixture(scope="module")
def flashlight():
    importable("flashlight-text")
    from flashlight.lib.text import decoder, dictionary
    from flashlight.lib.text.decoder.kenlm import KenLM

    return SimpleNamespace(**{**vars(decoder), **vars(dictionary), "KenLM": KenLM})


def trained(tokenizer):
    rows = [np.array(tokenizer.encode(line)) for line in SENTENCES]
    corpus = EncodedCorpus.from_sentences(rows, num_words=30, num_bytes=200)
    return estimate(corpus, tokenizer.vocabulary, order=3, progress=Progress()).model


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Serve word and character models; yield a client, the character model, and the word model's ARPA file."""
    folder = tmp_path_factory.mktemp("flashlight")
    registry = LocalRegistry(folder / "registry", create=True)
    words = WordTokenizer(Vocabulary(sorted({word for line in SENTENCES for word in line.split()})))
    characters = CharacterTokenizer(Vocabulary([" ", *LETTERS]))
    about = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {})
    made = {"words": (trained(words), words), "characters": (trained(characters), characters)}
    for name, (model, tokenizer) in made.items():
        registry.publish(name, lambda at, m=model, t=tokenizer: write_checkpoint(at, m, t, about))
    model = made["words"][0]
    write_arpa(folder / "words.arpa", model.vocabulary, list_ngrams(model.automaton))
    with running(Settings(registry=registry.root)) as server, Client(server.url) as client:
        store = server.app.state.services.states
        yield SimpleNamespace(
            client=client, arpa=folder / "words.arpa", characters=made["characters"][0], store=store
        )


def heard(text, seed=0):
    """Return log-probabilities [T, N] of a text, half noise."""
    random = np.random.default_rng(seed)
    rows = []
    for letter in text.replace(" ", "|") + "|":
        for index in (TOKENS.index(letter), BLANK):
            row = random.dirichlet(np.full(len(TOKENS), 0.3))
            row[index] += 1
            rows.append(row / row.sum())
    return np.log(np.maximum(rows, 1e-9)).astype(np.float32)


def decoded(decoder, emissions):
    return decoder.decode(emissions.ctypes.data, *emissions.shape)


def lexicon_decoder(flashlight, lm, words, tokens):
    """Build the decoder as torchaudio does."""
    trie = flashlight.Trie(tokens.index_size(), SILENCE)
    start = lm.start(start_with_nothing=False)
    for index in range(words.index_size()):
        word = words.get_entry(index)
        if word != "<unk>":
            score = lm.score(start, index)[1]
            trie.insert([tokens.get_index(token) for token in [*word, "|"]], index, score)
    trie.smear(flashlight.SmearingMode.MAX)
    options = flashlight.LexiconDecoderOptions(
        beam_size=30,
        beam_size_token=10,
        beam_threshold=50,
        lm_weight=2.0,
        word_score=0.5,
        unk_score=-math.inf,
        sil_score=0,
        log_add=False,
        criterion_type=flashlight.CriterionType.CTC,
    )
    unk = words.get_index("<unk>")
    return flashlight.LexiconDecoder(options, trie, lm, SILENCE, BLANK, unk, [], is_token_lm=False)


def dictionary_of(flashlight, entries):
    made = flashlight.Dictionary()
    for entry in entries:
        made.add_entry(entry)
    return made


def served_lm(flashlight, client, **options):
    class ServedLM(TorchaudioLM, flashlight.LM):
        """The class that a user would write."""

    return ServedLM(client, flashlight.LMState, **options)


def test_with_a_lexicon_hypotheses_and_scores_are_those_of_kenlm(flashlight, served):
    known = ["<unk>", *sorted({word for line in SENTENCES for word in line.split()}), "hot", "moo"]
    words, tokens = dictionary_of(flashlight, known), dictionary_of(flashlight, TOKENS)
    ours = served_lm(flashlight, served.client, words=known, model="words", log10=True)
    theirs = flashlight.KenLM(str(served.arpa), words)
    decoders = [lexicon_decoder(flashlight, lm, words, tokens) for lm in (ours, theirs)]
    for seed, line in enumerate([*SENTENCES, "hot moo"]):
        mine, own = (decoded(decoder, heard(line, seed)) for decoder in decoders)
        assert len(own) > 3
        assert [list(h.words) for h in mine] == [list(h.words) for h in own]
        np.testing.assert_allclose([h.score for h in mine], [h.score for h in own], atol=1e-3)
        if seed < len(SENTENCES):
            assert " ".join(words.get_entry(i) for i in mine[0].words if i >= 0) == line
    ours.close()
    assert len(served.store) == 0


def lexicon_free_decoder(flashlight, lm):
    options = flashlight.LexiconFreeDecoderOptions(
        beam_size=10,
        beam_size_token=10,
        beam_threshold=30,
        lm_weight=0.7,
        sil_score=0,
        log_add=False,
        criterion_type=flashlight.CriterionType.CTC,
    )
    return flashlight.LexiconFreeDecoder(options, lm, SILENCE, BLANK, [])


def direct_lm(flashlight, model, ids):
    """Wrap the model without a service."""

    class DirectLM(flashlight.LM):
        def __init__(self):
            flashlight.LM.__init__(self)
            self.reached = {}

        def start(self, start_with_nothing):
            state = flashlight.LMState()
            self.reached = {state: model.empty_state(1) if start_with_nothing else model.initial_state(1)}
            return state

        def score(self, state, index):
            after, token = state.child(index), EOS if index < 0 else ids[index]
            self.reached[after] = model.advance(self.reached[state], np.array([token]))
            return after, float(model.next_log_probs(self.reached[state])[0, token])

        def finish(self, state):
            return self.score(state, -1)

    return DirectLM()


def test_without_a_lexicon_hypotheses_and_scores_are_those_of_the_model_itself(flashlight, served):
    ids = [0, *(served.characters.vocabulary.id_of(letter) for letter in [" ", *LETTERS])]
    ours = served_lm(flashlight, served.client, token_ids=ids, model="characters")
    own_lm = direct_lm(flashlight, served.characters, ids)  # keeps a reference, since decoders do not
    decoders = [lexicon_free_decoder(flashlight, lm) for lm in (ours, own_lm)]
    for seed, line in enumerate(SENTENCES[:2]):
        mine, own = (decoded(decoder, heard(line, seed)) for decoder in decoders)
        assert [list(h.tokens) for h in mine] == [list(h.tokens) for h in own]
        np.testing.assert_allclose([h.score for h in mine], [h.score for h in own], atol=1e-3)
    ours.close()
    assert len(served.store) == 0

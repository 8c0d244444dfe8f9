"""Restoration of capitals and punctuation: exhaustive search, windows, and what is left as it is."""

import dataclasses
import itertools

import numpy as np
import pytest

from models.calls import run_to_completion
from models.errors import UnsupportedError
from models.language_model import EOS, is_lookup
from models.mixture import MixtureModel
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.restoration import Restorer, restore, restored_text
from models.text_model import TextModel
from models.word_forms import MARKS, WordForms
from tests.support import families
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress
from training.tokenizer import TokenizerSettings, learn_tokenizer

PATTERN = r"\w+(?:['\u2019-]\w+)*|[,;:.?!]"
PLAIN = ["rain", "falls", "here", "stops", "grey", "town", "river"]
NAMES = ["May", "Rose"]


def text_model(lines, *, order=3, **settings):
    tokenizer = learn_tokenizer(TokenizerSettings(kind="word", **{"pattern": PATTERN, **settings}), lines)
    corpus = EncodedCorpus.from_sentences([np.array(ids) for ids in tokenizer.encode_all(lines)])
    model = estimate(corpus, tokenizer.vocabulary, order=order, progress=Progress()).model
    return TextModel(model=model, tokenizer=tokenizer, address="m@1")


def some_lines(rng, *, marks):
    """Sentences with names that are common words too, and marks."""
    words = [*PLAIN, *NAMES, *(name.lower() for name in NAMES)]
    lines = []
    for _ in range(300):
        drawn = rng.choice(words, int(rng.integers(2, 9))).tolist()
        inner = [word + rng.choice(["", "", *marks]) for word in drawn[:-1]]
        lines.append(" ".join([rng.choice(NAMES), *inner, drawn[-1] + "."]))
    return lines


def restored(loaded, text, **options):
    return restored_text(text, restored_words(loaded, text, **options))


def restored_words(loaded, text, **options):
    return run_to_completion(restore(loaded.derived(Restorer.of), text, **options))


class Exhaustive:
    """Every way to write a text, and its log-probability token by token."""

    def __init__(self, loaded):
        self.loaded, self.tables, self.ids = loaded, {}, {}
        self.forms = loaded.derived(Restorer.of).written.forms

    def labels(self, word, *, is_last):
        """Ways to write a word; after a line break a sentence ends."""
        ends = ["\n", ".\n"] if is_last else ["", ".", ".\n"]
        return [form + end for form in self.forms[word] for end in ends]

    def extended(self, history, total, label):
        """The tokens of the sentence so far, and the log-probability, after another word."""
        if label not in self.ids:
            self.ids[label] = [
                *self.loaded.tokenizer.encode(label.rstrip("\n")),
                *[EOS] * label.endswith("\n"),
            ]
        for token in self.ids[label]:
            context = history[-2:]
            if context not in self.tables:
                model = self.loaded.model
                state = model.initial_state(1)
                for one in history:
                    state = model.advance(state, np.array([one]))
                self.tables[context] = model.next_log_probs(state)[0].astype(np.float64)
            total += self.tables[context][token]
            history = (*history, token)
        return (() if label.endswith("\n") else history), total

    def best_total(self, words):
        ways = [((), 0.0)]
        for number, word in enumerate(words):
            labels = self.labels(word, is_last=number == len(words) - 1)
            ways = [self.extended(*way, label) for way in ways for label in labels]
        return max(total for _, total in ways)

    def total(self, labels):
        way = ((), 0.0)
        for label in labels:
            way = self.extended(*way, label)
        return way[1]


def written_labels(words):
    """Labels that the restored words stand for: a sentence's first word may have got its capital afterwards."""
    places, starts = [], True
    for number, word in enumerate(words):
        forms = [word.text, word.text.lower()] if starts else [word.text]
        starts = word.ends_sentence
        end = "\n" if starts or number == len(words) - 1 else ""
        places.append([form + word.mark + end for form in forms])
    return itertools.product(*places)


def test_the_best_way_is_that_of_exhaustive_search():
    rng = np.random.default_rng(0)
    loaded = text_model(some_lines(rng, marks="."))
    restorer, slow = loaded.derived(Restorer.of), Exhaustive(loaded)
    assert restorer.written.marks == "."
    assert {len(slow.forms[name.lower()]) for name in NAMES} == {2}
    texts = [
        [*rng.choice(PLAIN, int(rng.integers(0, 8))).tolist(), rng.choice(NAMES).lower()] for _ in range(500)
    ]
    for text in texts:
        rng.shuffle(text)
    for text in texts:
        words = restored_words(loaded, " ".join(text))
        assert max(map(slow.total, written_labels(words))) == pytest.approx(slow.best_total(text), abs=1e-4)


def test_capitals_and_marks_come_back():
    lines = ["The ships of May are here, in the town.", "Is the river grey?", "Stop! The rain falls."] * 20
    loaded = text_model(lines)
    text = "the ships of may are here in the town is the river grey stop the rain falls"
    assert restored(loaded, text) == " ".join(lines[:3])
    per_line = "the ships of may are here in the town\n  is the river grey\n\nthe rain falls\n"
    want = "The ships of May are here, in the town.\n  Is the river grey?\n\nThe rain falls.\n"
    assert restored(loaded, per_line, one_per_line=True) == want


@pytest.fixture(scope="module")
def loaded():
    return text_model(some_lines(np.random.default_rng(1), marks=",."))


@pytest.mark.parametrize(
    "text", ["", " \n ", "-- \u2026", "\u6771\u4eac \u0645\u062f\u064a\u0646\u0629", "(!) ?"]
)
def test_text_without_known_words_stays_as_it_is(loaded, text):
    assert restored(loaded, text) == text


@pytest.mark.parametrize("text", ["Rain, FALLS here; stops.", '"Grey town!"', "ROSE? McRain iPhone."])
def test_capitals_and_marks_that_a_text_has_are_kept(loaded, text):
    words = restored_words(loaded, text)
    for word in words:
        given = text[word.start : word.end]
        if given != given.lower():
            assert word.text == given
        if any(mark in given for mark in MARKS):
            assert not word.mark
    assert len(words) == len(text.split())


def test_offsets_are_those_of_the_given_text(loaded):
    text = "  rain\tfalls (here) \n stops"
    words = restored_words(loaded, text)
    assert [text[word.start : word.end] for word in words] == text.split()
    assert [word.text.lower() for word in words] == text.split()
    assert all(0 < word.posterior <= 1 for word in words)


def test_a_long_text_is_read_in_windows(loaded):
    """What windows decide is what one search decides, but for words where little is decided."""
    rng = np.random.default_rng(2)
    text = " ".join(rng.choice([*PLAIN, "may", "rose"], 700))
    written = restored(loaded, text)
    assert written.lower().translate(str.maketrans("", "", ",.")) == text
    assert written.startswith(restored(loaded, " ".join(text.split()[:40]))[:60])


def test_lines_are_restored_as_each_alone(loaded):
    rng = np.random.default_rng(3)
    lines = [" ".join(rng.choice([*PLAIN, "may", "rose"], int(n))) for n in rng.integers(0, 120, 30)]
    alone = [restored(loaded, line, one_per_line=True) for line in lines]
    assert restored(loaded, "\n".join(lines), one_per_line=True) == "\n".join(alone)


def test_unknown_words_are_names_unless_they_begin_like_known_ones(loaded):
    forms_of = WordForms.of(loaded.tokenizer).forms_of
    assert forms_of("zebedee") == ["Zebedee"]
    assert forms_of("rivers") == ["rivers"]
    assert forms_of("river-town") == ["river-town"]
    assert set(forms_of("may's")) == {"May's", "may's"}
    assert [*map(forms_of, ["utf-8", "e.g", "4th"])] == [["utf-8"], ["e.g"], ["4th"]]


def test_a_word_of_thousands_of_letters_is_copied(loaded):
    text = f"rain {'x' * 5000}. falls"
    assert restored(loaded, text).lower().rstrip(".") == text


def test_networks_restore_by_beam_search(loaded):
    vocabulary = loaded.tokenizer.vocabulary
    network = NeuralModel(
        Network(NetworkConfig(embedding_size=5, hidden_size=7), len(vocabulary)), vocabulary
    )
    mixed = dataclasses.replace(loaded, model=MixtureModel([loaded.model, network], [0.999, 0.001]))
    text = "rain falls here may stops rose"
    assert not is_lookup(mixed.model)
    assert restored(mixed, text) == restored(loaded, text)


def test_a_model_of_text_without_capitals_and_marks_is_refused():
    model = TextModel(model=families.model("ngram"), tokenizer=families.tokenizer(), address="m@1")
    with pytest.raises(UnsupportedError, match="without capitals and punctuation"):
        model.derived(Restorer.of)


def test_a_model_that_reads_backward_is_refused(loaded):
    backward = dataclasses.replace(loaded, reads_backward=True)
    with pytest.raises(UnsupportedError, match="reads from right to left"):
        backward.derived(Restorer.of)

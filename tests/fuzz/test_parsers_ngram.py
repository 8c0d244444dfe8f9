"""ARPA files and ngram.bin with errors: read and usable, or refused by name; never read past their end."""

import functools
import gzip
import json
import lzma
import tempfile
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from models.errors import ManifestError
from models.language_model import CONTROL_TOKENS, Vocabulary
from models.ngram.arpa_reader import read_arpa
from models.ngram.automaton import AUTOMATON_FILE
from models.ngram.build import build_automaton, quantise_automaton
from models.ngram.model import NGramModel
from models.tensor_files import map_tensors, write_tensors
from tests.fuzz.damage import any_bytes, ask_ngram, damaged
from tests.fuzz.parsing import Parser, ParserProcess, fuzz
from tests.reference.backoff import SMALL, random_arpa

ARPA_WORDS = [
    *(
        b"<s>",
        b"</s>",
        b"<unk>",
        b"<UNK>",
        b"\\data\\",
        b"\\end\\",
        b"\\1-grams:",
        b"\\3-grams:",
        b"ngram 2=9",
    ),
    *(b"-1\tx\t0\n", b"%41", b"# gramophone: escapes=percent log-zero=-99\n"),
]
PACKERS = (gzip.compress, lzma.compress, zstandard.ZstdCompressor().compress)
NASTY_ELEMENTS = [0, 1, 2, 127, 128, 255, 256, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, -(2**63)]
NASTY_FLOATS = [0.0, -0.0, 1.0, -1.0, 300.0, 1e38, -1e38, np.inf, -np.inf, np.nan, 1e-45]

ARPA_FILES = [
    random_arpa(np.random.default_rng(seed), order=1 + seed % 4, num_words=4, unknown=seed < 10)[0].encode()
    for seed in range(16)
]
arpa_files = st.sampled_from([SMALL.encode(), *ARPA_FILES])
packed_arpa_files = st.builds(lambda content, pack: pack(content), arpa_files, st.sampled_from(PACKERS))


def read_and_ask_arpa(path: Path) -> None:
    """Import as far as publishing, then load as for serving."""
    vocabulary, orders, _ = read_arpa(path)
    model = NGramModel(build_automaton(orders), vocabulary)
    folder = path.with_name("published")
    folder.mkdir(exist_ok=True)
    model.save(folder)
    try:
        ask_ngram(NGramModel.load(folder, vocabulary, device="cpu"))
    except ManifestError as error:
        raise AssertionError("what was imported cannot be served") from error


def load_and_ask(path: Path) -> None:
    """Load an ngram.bin as for serving, with a matching vocabulary and config.json."""
    arrays = map_tensors(path)
    size = int(arrays["first_arcs"][1]) if arrays.get("first_arcs", np.zeros(0)).shape > (1,) else 0
    vocabulary = Vocabulary(f"w{number}" for number in range(min(size, 1000) - len(CONTROL_TOKENS)))
    order = len(arrays.get("order_starts", "")) - 1
    path.with_name("config.json").write_text(json.dumps({"order": order, "normalised": True}))
    ask_ngram(NGramModel.load(path.parent, vocabulary, device="cpu"))


@functools.cache
def saved(order, *, coded):
    """Return the arrays of a model's file."""
    text, _ = random_arpa(np.random.default_rng(order), order=order, num_words=140)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.arpa"
        path.write_text(text)
        automaton = build_automaton(read_arpa(path).orders)
    return (quantise_automaton(automaton) if coded else automaton)._asdict()


def as_file(arrays):
    """Return the content of a file with these arrays."""
    with tempfile.NamedTemporaryFile() as file:
        write_tensors(Path(file.name), arrays)
        return Path(file.name).read_bytes()


@st.composite
def changed(draw, array):
    """Draw an array with other numbers, or with more or fewer."""
    array, place = array.copy(), draw(st.integers(0, 1 << 20))
    how = draw(
        st.sampled_from(["number", "number", "number", "neighbour", "swap", "cut", "longer", "turned"])
    )
    if how == "cut":
        return array[: place % (len(array) + 1)]
    if how == "longer":
        return np.concatenate([array, array[: 1 + place % 3]])
    if how == "turned":
        return array[::-1].copy()
    if not array.size:
        return array
    flat = array.reshape(-1)
    place, other = place % len(flat), draw(st.integers(0, 1 << 20)) % len(flat)
    if how == "swap":
        flat[[place, other]] = flat[[other, place]]
    elif array.dtype == np.float32:
        flat[place] = draw(st.sampled_from(NASTY_FLOATS))
    else:
        number = int(flat[place]) + draw(st.sampled_from([1, -1])) if how == "neighbour" else None
        number = draw(st.sampled_from(NASTY_ELEMENTS)) if number is None else number
        flat[place] = np.array(number, np.int64).astype(array.dtype)  # too large numbers wrap
    return array


@st.composite
def changed_arrays(draw):
    """Draw a file with a valid header but wrong numbers or array sizes."""
    arrays = dict(saved(draw(st.integers(1, 4)), coded=draw(st.booleans())))
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(arrays)))
        arrays[name] = draw(changed(arrays[name]))
    return as_file(arrays)


whole_files = st.builds(saved, st.integers(1, 4), coded=st.booleans()).map(as_file)


@pytest.fixture(scope="module")
def process():
    with ParserProcess(__name__) as asked:
        yield asked


@pytest.fixture(scope="module")
def arpa(process, tmp_path_factory):
    path = tmp_path_factory.mktemp("arpa") / "model.arpa"
    return Parser(process, "read_and_ask_arpa", path, SMALL.encode())


@pytest.fixture(scope="module")
def automata(process, tmp_path_factory):
    path = tmp_path_factory.mktemp("automata") / AUTOMATON_FILE
    return Parser(process, "load_and_ask", path, as_file(saved(3, coded=False)))


@fuzz
@given(st.one_of(damaged(arpa_files, ARPA_WORDS), any_bytes()))
def test_arpa_files(arpa, content):
    arpa.ask(content)


@fuzz
@given(damaged(packed_arpa_files))
def test_packed_arpa_files(arpa, content):
    arpa.ask(content)


@fuzz
@given(
    st.builds(lambda content, pack: pack(content), damaged(arpa_files, ARPA_WORDS), st.sampled_from(PACKERS))
)
def test_arpa_files_packed_with_what_is_wrong(arpa, content):
    arpa.ask(content)


@fuzz
@given(changed_arrays())
def test_automata_with_other_numbers(automata, content):
    automata.ask(content)


@fuzz
@given(st.one_of(damaged(whole_files), any_bytes()))
def test_automata_with_other_bytes(automata, content):
    automata.ask(content)


@pytest.mark.parametrize("weight", [b"301", b"1e38", b"1e400"])
def test_a_back_off_weight_that_no_model_could_be_served_with_is_refused_with_its_line(arpa, weight):
    content = SMALL.encode().replace(b"a\t-0.2\n", b"a\t" + weight + b"\n")
    assert arpa.ask(content, named="model.arpa: line 10: the back-off weight is") == "refused"

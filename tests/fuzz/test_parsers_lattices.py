"""HTK and Kaldi lattices with errors: rescored, or reported by line number."""

import functools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.lattices.files import read_lattices, read_symbol_file
from models.lattices.formats import format_kaldi, format_slf
from models.lattices.graph import LabelTokenizer, PathWeights
from models.lattices.lattice import NON_WORD_LABELS, SymbolTable
from models.lattices.rescoring import nbest_paths, oracle_errors, rescore
from models.lattices.token_passing import LatticeSearch
from models.reranking.formats.format import BadLine
from tests.fuzz.damage import any_bytes, damaged
from tests.fuzz.parsing import Parser, ParserProcess, fuzz
from tests.reference.lattices import random_lattice
from tests.support import families

WORDS = ["w1", "w2", "w3", "unheard", "'em", "é"]
IDS = {word: number for number, word in enumerate(["<eps>", *WORDS])}
TABLE = SymbolTable({number: word for word, number in IDS.items()}, IDS)
SYMBOLS = "".join(f"{word} {number}\n" for word, number in IDS.items())
MEANING = [
    *(
        b"N=",
        b"L=4000000",
        b"N=1000000 ",
        b"J=1",
        b"I=3",
        b"S=0 E=1",
        b"W=!NULL",
        b"SUBLAT=x",
        b"base=0",
        b"base=10",
    ),
    *(
        b"dir=b",
        b"acscale=0",
        b"start=1",
        b"end=0",
        b"v=9",
        b"r=-1",
        b"\\303",
        b'"a b"',
        b"#0",
        b"<eps>",
        b",,",
    ),
    *(b"0 1 w1 -1,-2,3_4\n", b"5\n", b"inf,1,", b"\n\n"),
]


@functools.cache
def speller():
    """Return the speller of words for the small model."""
    return LabelTokenizer(families.tokenizer())


def rescore_lattices(path: Path) -> None:
    """Read, rescore and search the file of the format in its name."""
    form = "slf" if path.suffix == ".slf" else "kaldi"
    symbols = read_symbol_file(path.with_name("words.txt")) if path.stem == "numbers" else None
    read = list(read_lattices(path, form, name=path.name, symbols=symbols, no_words=NON_WORD_LABELS))
    for bad in read:
        if isinstance(bad, BadLine):
            assert bad.source == path.name
            assert bad.number >= 1
            assert 0 < len(bad.problem) < 1000
    lattices = [one for one in read if not isinstance(one, BadLine)]
    model, search = families.model("ngram"), LatticeSearch(max_tokens_per_node=4)
    for one in rescore(lattices, model, speller(), weights=[PathWeights()] * len(lattices), search=search):
        [best] = nbest_paths(one, 1)
        assert not np.isnan(best.total)
        assert oracle_errors(one.lattice, best.text.split()) == 0
        format_slf(one.as_lattice())


def read_table(path: Path) -> None:
    """Read Kaldi's word symbols."""
    table = read_symbol_file(path)
    assert {table.ids[word]: word for word in table.ids} == dict(table.words)


def text_of(seed, form):
    """Return one or two random lattices as a file."""
    text = ""
    for number in range(1 + seed % 2 if form != "slf" else 1):
        lattice = random_lattice(np.random.default_rng(seed + number), words=WORDS, num_nodes=4, num_arcs=4)
        if form == "slf":
            text += format_slf(lattice)
        else:
            text += format_kaldi(lattice, None if form == "kaldi" else TABLE)
    return text.encode()


@pytest.fixture(scope="module")
def process():
    with ParserProcess(__name__) as asked:
        yield asked


@pytest.fixture(scope="module", params=["lattice.slf", "words.kaldi", "numbers.kaldi"])
def lattices(request, process, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lattices")
    (folder / "words.txt").write_text(SYMBOLS, encoding="utf-8")
    form = {"lattice.slf": "slf", "words.kaldi": "kaldi"}.get(request.param, "numbers")
    parser = Parser(process, "rescore_lattices", folder / request.param, text_of(1, form))
    parser.form = form
    return parser


@fuzz
@given(st.data())
def test_lattices(lattices, data):
    sources = st.integers(0, 200).map(lambda seed: text_of(seed, lattices.form))
    lattices.ask(data.draw(st.one_of(damaged(sources, MEANING), any_bytes()), label="content"))


@pytest.fixture(scope="module")
def symbols(process, tmp_path_factory):
    path = tmp_path_factory.mktemp("symbols") / "words.txt"
    return Parser(process, "read_table", path, SYMBOLS.encode())


@fuzz
@given(st.one_of(damaged(st.just(SYMBOLS.encode())), any_bytes()))
def test_tables_of_words(symbols, content):
    symbols.ask(content)


@pytest.mark.parametrize(
    "line", ["{0} 1 w1 1,2,\n", "0 {0} w1 1,2,\n", "0 1 {0} 1,2,\n", "0 1 w1 {0},{0},\n"]
)
def test_numbers_of_thousands_of_digits(lattices, line):
    lattices.ask(f"utt\n{line.format('9' * 5000)}1\n\n".encode())


def test_a_word_with_a_number_of_thousands_of_digits_is_refused(symbols):
    assert symbols.ask(b"a 1" + b"0" * 5000, named="words.txt:1") == "refused"

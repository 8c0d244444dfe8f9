"""Lists of misspellings against codespell's own reader, on its dictionaries."""

from pathlib import Path

import codespell_lib
import pytest
from codespell_lib._spellchecker import build_dict

from training.evaluation.spelling import read_misspellings


@pytest.mark.parametrize("name", ["dictionary", "dictionary_rare", "dictionary_names"])
def test_dictionaries_are_read_as_codespell_reads_them(name):
    """The program lower-cases, and repeats misspellings with an apostrophe in another form of it."""
    path = Path(codespell_lib.__file__).parent / "data" / f"{name}.txt"
    known = {}
    build_dict(str(path), known, set())
    expected = {
        (wrong, right.strip())
        for wrong, entry in known.items()
        for right in entry.data.split(",")
        if "\u2019" not in wrong
    }
    read = {
        (wrong.lower(), right.lower())
        for right, all_wrong in read_misspellings(path).items()
        for wrong in all_wrong
    }
    assert read == expected

"""Hunspell dictionaries: affixes, compounds, encodings, words near others, damaged files."""

import threading

import pytest

from models.calls import run_to_completion
from models.checking import lexicon
from models.checking.lexicon import HunspellDictionary, UserDictionary
from models.errors import FormatError

RULES = """SET {encoding}
COMPOUNDFLAG C
PFX U Y 1
PFX U 0 un .
SFX S Y 2
SFX S y ies y
SFX S 0 s [^y]
"""
ENTRIES = (
    "zebra/S",
    "lock/US",
    "pony/S\tpo:noun",
    "Paris",
    "sonnen/C",
    "schein/C",
    "café/S",
    "9th",
    "a priori",
)


def write(folder, *, rules=RULES, entries=ENTRIES, encoding="UTF-8", count=None):
    (folder / "xx.aff").write_text(rules.format(encoding=encoding), encoding="ascii")
    lines = [str(len(entries)) if count is None else count, *entries]
    (folder / "xx.dic").write_text("\n".join(lines) + "\n", encoding=encoding)
    return folder / "xx.dic"


def near(dictionary, word, max_edits):
    return dict(run_to_completion(dictionary.nearby(word, max_edits, UserDictionary())))


@pytest.fixture(params=["UTF-8", "ISO8859-1"])
def dictionary(request, tmp_path):
    return HunspellDictionary(write(tmp_path, encoding=request.param))


@pytest.mark.parametrize(
    ("word", "right"),
    [
        ("zebra", True),
        ("zebras", True),
        ("Zebras", True),
        ("ponies", True),
        ("ponys", False),
        ("unlocks", True),
        ("unzebra", False),
        ("paris", False),
        ("sonnenschein", True),
        ("sonnenzebra", False),
        ("cafés", True),
        ("cafe\u0301s", True),
        ("\u4e2d", False),
        ("\U0001f600", False),
        ("", True),  # as Hunspell
        ("zebra" * 1000, False),
    ],
)
def test_affixes_and_compounds_are_those_of_hunspell(dictionary, word, right):
    assert (word in dictionary) == right


def test_punctuation_around_a_word_is_not_looked_up(dictionary):
    words = UserDictionary({"qwerty": "Qwerty"}, [dictionary])
    run_to_completion(words.look_up(["(zebras),", "(zebrs),"]))
    assert words.has("(zebras),", known=False)
    assert not words.has("(zebras),", known=True)
    assert not words.has("(zebrs),", known=False)
    assert words.has("(QWERTY)", known=True)
    assert not UserDictionary({}).has("zebras", known=False)
    found = [("(zebra)", 1, 1 / len(dictionary)), ("(zebras)", 1, 1 / len(dictionary))]
    assert sorted(run_to_completion(words.fuzzy_matches("(zebrs)", 1))) == found
    assert run_to_completion(words.fuzzy_matches("qwertz", 1)) == [("Qwerty", 1, 1.0)]
    twice = UserDictionary({"zebra": "zebra"}, [dictionary, dictionary])
    assert [text for text, *_ in run_to_completion(twice.fuzzy_matches("zebrs", 1))] == ["zebra", "zebras"]


@pytest.mark.parametrize(
    ("word", "max_edits", "found"),
    [
        ("zebrs", 2, {"zebra": 1, "zebras": 1}),
        ("Zebrs", 1, {"Zebra": 1, "Zebras": 1}),
        ("ZEBRS", 1, {"ZEBRA": 1, "ZEBRAS": 1}),
        ("unlcoks", 1, {"unlocks": 1}),
        ("paris", 1, {"Paris": 1}),
        ("sonenschein", 1, {"sonnenschein": 1}),
        ("caffé", 1, {"café": 1}),
        ("zeebbra", 1, {}),
        ("zeebbra", 2, {"zebra": 2}),
        ("z" * 33, 2, {}),
    ],
)
def test_near_words_have_affixes_and_the_case_of_the_typed_one(dictionary, word, max_edits, found):
    assert near(dictionary, word, max_edits) == found


def test_a_dictionary_without_an_encoding_is_latin_1(tmp_path):
    path = write(tmp_path, rules=RULES.removeprefix("SET {encoding}\n"), encoding="ISO8859-1")
    assert "cafés" in HunspellDictionary(path)


def test_a_byte_order_mark_is_not_of_the_count(tmp_path):
    assert "zebras" in HunspellDictionary(write(tmp_path, count="\ufeff9"))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_byte_order_mark_does_not_hide_the_encoding(tmp_path, end):
    path = write(tmp_path)
    path.with_suffix(".aff").write_text("\ufeffSET UTF-8\nFLAG long\n", encoding="utf-8", newline=end)
    assert "café" in HunspellDictionary(path)


@pytest.mark.parametrize("word", ["don't", "don\u2019t", "DON\u2019T", "\u0958"])
@pytest.mark.parametrize("encoding", ["UTF-8", "ISO8859-1"])
def test_apostrophes_and_unicode_forms_make_no_difference(tmp_path, word, encoding):
    entries = ["don't", *(["\u0958"] if encoding == "UTF-8" else [])]
    found = HunspellDictionary(write(tmp_path, entries=entries, encoding=encoding))
    assert (word in found) == (encoding == "UTF-8" or word[:1] in "dD")
    assert "don't\0" not in found


def test_words_with_inner_capitals_are_suggested(tmp_path):
    found = HunspellDictionary(write(tmp_path, entries=("NASA", "McDonald", "iPhone")))
    for typed, meant in (("nasa", "NASA"), ("Nasa", "NASA"), ("mcdonld", "McDonald"), ("iphone", "iPhone")):
        assert near(found, typed, 1) == {meant: 1}, typed


@pytest.mark.parametrize(
    ("rules", "suffix", "darn", "barn"),
    [
        ("NOSUGGEST !", "S", "!S", "S"),
        ("NOSUGGEST !", "S", "S!\tpo:verb", "S\tpo:noun"),
        ("FLAG long\nNOSUGGEST SS", "AS", "ASSS", "ASxS"),
        ("FLAG num\nNOSUGGEST 12", "7", "7,12", "112,7"),
        ("NOSUGGEST !\nAF 2\nAF S!\nAF S", "S", "1", "2"),
    ],
)
def test_words_that_a_dictionary_does_not_suggest_are_right(tmp_path, rules, suffix, darn, barn):
    rules = f"SET UTF-8\n{rules}\nSFX {suffix} Y 1\nSFX {suffix} 0 s .\n"
    found = HunspellDictionary(write(tmp_path, rules=rules, entries=(f"darn/{darn}", f"barn/{barn}")))
    assert all(word in found for word in ("darn", "darns", "Darn", "barns"))
    for typed in ("arn", "Arns", "xarn"):
        assert {word.lower().rstrip("s") for word in near(found, typed, 2)} == {"barn"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"count": "zebra"}, "xx.dic: line 1: 'zebra' is not the number of words"),
        ({"count": "0"}, "xx.dic: line 1: '0' is not"),
        ({"count": "99999999999"}, "xx.dic: line 1: '99999999999' is not"),
        ({"count": "", "entries": ()}, "xx.dic: is empty"),
        ({"rules": ""}, "xx.aff: is empty"),
        ({"rules": "# a\nSET KLINGON\n"}, "xx.aff: SET KLINGON is an unknown encoding"),
        ({"rules": "SET undefined\n"}, "xx.aff: SET undefined is an unknown encoding"),
        ({"rules": "SET a\0b\n"}, "xx.aff: SET a\0b is an unknown encoding"),
        ({"rules": "SET rot13\n"}, "xx.aff: SET rot13 is an unknown encoding"),
        (
            {"rules": "SET UTF-8\n", "encoding": "ISO8859-1"},
            r"xx.dic: line 8: byte 0xe9 is not UTF-8, the encoding of xx.aff \(convert it, for example with iconv\)",
        ),
        ({"rules": "SET ISO8859-1\n"}, "xx.dic: is UTF-8, not ISO8859-1, the encoding of xx.aff"),
        (
            {"rules": "TRY abc\n"},
            "xx.dic: is UTF-8, not ISO8859-1, the encoding of xx.aff",
        ),
    ],
)
def test_a_damaged_file_is_named_with_line_and_reason(tmp_path, given, said):
    with pytest.raises(FormatError, match=f"^{tmp_path}/{said}") as refused:
        HunspellDictionary(write(tmp_path, **given))
    assert "\n" not in str(refused.value)


LONG = {
    "letters": "a" * 256,
    "two bytes each": "é" * 128,
    "flags": "a" * 256 + "/S",
    "an escaped slash": "a" * 255 + "\\/",
    "spaces within": "a " * 128,
    "spaces after": "a" * 250 + " " * 6,
    "a slash first": "/" + "a" * 255,
    "morphology": "a" * 256 + " po:noun",
    "Korean": "가" * 86,
}


@pytest.mark.parametrize("entry", LONG.values(), ids=LONG)
def test_an_entry_that_is_too_long_costs_no_other(tmp_path, entry, caplog):
    path = write(tmp_path, entries=[*ENTRIES[:2], entry, *ENTRIES[2:]])
    found = HunspellDictionary(path)
    said = f"{path}: entries of more than 255 bytes are left out: 1, the first in line 4"
    assert caplog.messages == [said]
    assert [word in found for word in ("zebras", "unlock", "ponies", "cafés", "zebrs")] == [True] * 4 + [
        False
    ]
    assert near(found, "zebrs", 2)


@pytest.mark.parametrize(
    "entry",
    ["a" * 255, "a" * 255 + "/S", "a" * 254 + "\\/", "b\tpo:" + "n" * 300, "b/" + "S" * 300, "é" * 127],
)
def test_the_longest_entries_are_read(tmp_path, entry, caplog):
    found = HunspellDictionary(write(tmp_path, entries=[*ENTRIES, entry]))
    assert "zebras" in found
    assert not caplog.messages


@pytest.mark.parametrize(
    ("named", "codec", "word"),
    [
        ("microsoft-cp1251", "cp1251", "слово"),
        ("Microsoft_CP1251", "cp1251", "слово"),
        ("TIS620-2533", "tis-620", "คำ"),
        ("tis620", "tis-620", "คำ"),
        ("KOI8R", "koi8-r", "слово"),
        ("koi8u", "koi8-u", "їжа"),
        ("iso88592", "iso8859-2", "łąka"),
        ("ISO8859-15", "iso8859-15", "œuf"),
        ("iso_8859_7", "iso8859-7", "λόγος"),
    ],
)
def test_encodings_have_the_names_that_hunspell_knows(tmp_path, named, codec, word):
    path = write(tmp_path, rules="SET UTF-8\n", entries=["cat", word])
    path.with_suffix(".aff").write_text(f"SET {named}\n", encoding="ascii")
    path.write_text(f"2\ncat\n{word}\n", encoding=codec)
    found = HunspellDictionary(path)
    assert [one in found for one in (word, "cat", word + word)] == [True, True, False]


def test_missing_and_huge_files_are_refused(tmp_path, monkeypatch):
    path = write(tmp_path)
    monkeypatch.setattr(lexicon, "_MAX_BYTES", 50)
    with pytest.raises(FormatError, match=r"xx\.\w+: has more than 50 bytes"):
        HunspellDictionary(path)
    monkeypatch.undo()
    path.with_suffix(".aff").unlink()
    with pytest.raises(FormatError, match=r"xx\.aff: cannot be read"):
        HunspellDictionary(path)


def test_words_are_looked_up_on_a_thread_of_the_dictionary(dictionary, monkeypatch):
    threads, spell = set(), HunspellDictionary._spell
    monkeypatch.setattr(
        HunspellDictionary, "_spell", lambda *args: threads.add(threading.get_ident()) or spell(*args)
    )
    words = UserDictionary({}, [dictionary])
    run_to_completion(words.look_up(["zebras", "zebrs"]))
    assert [words.has(word, known=False) for word in ("zebras", "zebrs")] == [True, False]
    assert near(dictionary, "zebrs", 2)
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_a_look_up_that_never_ends_holds_up_nobody(dictionary, monkeypatch):
    """Others run between its waits; then words count as right, without suggestions, and the next request asks anew."""
    monkeypatch.setattr(lexicon, "_MAX_WAITS", 20)
    going_on = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(HunspellDictionary, "_spell", lambda *_: going_on.wait())
        words = UserDictionary({}, [dictionary])
        assert list(words.look_up(["zebrs", "zebras"])) == [None] * 20
        assert words.has("zebrs", known=False)
        assert run_to_completion(words.fuzzy_matches("zebrs", 2)) == []
        going_on.set()
    assert near(dictionary, "zebrs", 2)


def test_a_request_waits_only_while_its_own_words_are_looked_up(dictionary, monkeypatch):
    going_on = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(HunspellDictionary, "_spell", lambda *_: going_on.wait())
        first, second = UserDictionary({}, [dictionary]), UserDictionary({}, [dictionary])
        waiting = first.look_up(["zebrs"]), second.look_up(["zebras"])
        for _ in range(20):
            assert [next(work) for work in waiting] == [None, None]
        going_on.set()
    assert first.waits_left <= lexicon._MAX_WAITS - 19
    assert second.waits_left == lexicon._MAX_WAITS
    for work in waiting:
        run_to_completion(work)

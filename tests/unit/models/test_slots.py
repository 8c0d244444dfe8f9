"""Members of classes in texts: what is a member, where it is found, and how tokenizers read it."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.checkpoint.load import load_tokenizer
from models.completion.search import MassTable
from models.completion.token_trie import as_one_word, restore_words
from models.errors import InputError, ManifestError
from models.language_model import UNK, Vocabulary
from models.slots import MAX_MEMBERS, MarkedText, MemberMatcher, check_slots, word_spans
from models.tokenizers import CharacterTokenizer, PieceTokenizer, WordTokenizer
from models.words import is_word_character
from tests.support.counted_calls import calls_in
from training.tokenizer import TokenizerSettings, learn_tokenizer

LINES = ["fly to $city from $city .", "call $contact , will you ?", "to be or not to be", "new is old"] * 20
SLOTS = {
    "city": {"new york": 2.0, "new york city": 1.0, "ulm": 1.0},
    "contact": {"will": 3.0, "mary ann": 1.0, "ulm": 4.0},
}


@pytest.fixture(scope="module")
def words():
    return learn_tokenizer(TokenizerSettings(kind="word"), LINES)


@pytest.fixture(scope="module")
def pieces():
    settings = TokenizerSettings(kind="unigram", slots={"city": "", "contact": ""})
    return learn_tokenizer(settings, LINES)


@pytest.fixture(params=["words", "pieces"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize(
    ("slots", "problem"),
    [
        ({"town": ["a"]}, r"slots.town: the model has no class '\$town'; its classes: \$city, \$contact"),
        ({"city": []}, "slots.city is empty"),
        ({"city": ["ulm", " "]}, "slots.city: the member ' ' is blank"),
        ({"city": ["old $city"]}, r"the member 'old \$city' contains the mark of a class"),
        ({"city": ["a " * 17]}, "has 17 words; at most 16"),
        ({"city": ["a" * 201]}, "has 201 characters; at most 200"),
        ({"city": {"ulm": 0.0}}, "'ulm' has the weight 0.0; weights must be above 0"),
        ({"city": {"ulm": float("inf")}}, "weight inf"),
        ({"city": {"ulm": 1e-300, "bonn": 1e300}}, "weight 1e-300; weights must be above 0, from 1e-100"),
        ({"city": [f"m{n}" for n in range(MAX_MEMBERS + 1)]}, "slots has 10001 members; at most 10000"),
    ],
)
def test_invalid_members_are_refused_by_name(slots, problem):
    with pytest.raises(InputError, match=problem):
        check_slots(slots, known={"city", "contact"}, param="slots")


def test_a_member_twice_in_a_list_has_twice_the_weight():
    checked = check_slots({"city": ["ulm", "bonn", "ulm"]}, known={"city"}, param="slots")
    assert checked == {"city": {"ulm": 2.0, "bonn": 1.0}}


def matcher(*, words_only):
    pattern = re.compile(r"\S+" if words_only else r"\w+|[^\w\s]")
    found = MemberMatcher(
        {"city"}, lambda text: [m.span() for m in pattern.finditer(text)], words_only=words_only
    )
    for value, member in enumerate(["new york", "new york city", "ulm", "st. gallen"]):
        found.add(member, "city", value)
    return found


@pytest.mark.parametrize(
    ("text", "marked", "members"),
    [
        ("to new york", "to $city", [0]),
        ("new york city ulm", "$city $city", [1, 2]),
        ("new york", "$city", [0]),  # a longer member would end after the text
        ("new yorker", "new yorker", []),
        ("ulm, st. gallen.", "$city, $city.", [2, 3]),
        ("kulm (ulm)", "kulm (ulm)", []),  # begins within a run without spaces
        ("$city or ulm", "$ city or $city", [2]),
        ("x$cityy", "x$ cityy", []),
        ("new  york", "new  york", []),  # a member's token has one space
        ("ulm\u0301 ulm\u200d ulm", "ulm\u0301 ulm\u200d $city", [2]),  # the word goes on
        ("ulm\u200e ulm\u00adx", "$city\u200e ulm\u00adx", [2]),  # the first word ends
        ("", "", []),
    ],
)
def test_members_are_found_between_words(text, marked, members):
    found = matcher(words_only=False).mark(text)
    assert (found.text, found.members) == (marked, members)


def test_words_of_a_word_tokenizer_are_not_divided():
    found = matcher(words_only=True).mark("ulm, ulm new york")
    assert (found.text, found.members) == ("ulm, $city $city", [2, 0])
    assert matcher(words_only=True).mark("x$city $cityy new  york").text == "x$city $cityy $city"


@pytest.mark.parametrize("words_only", [False, True])
def test_white_space_between_the_words_of_a_listed_member_is_a_space(words_only):
    found = matcher(words_only=words_only)
    assert found.mark("ulm or bad homburg").members == [2]
    found.add(" bad \t homburg ", "city", 4)  # also after a text was marked
    assert found.mark("to bad homburg or bad") == ("to $city or bad", [4], [(3, 14, 5)])


@given(st.lists(st.sampled_from(["new", "york", "city", "ulm", "$city", "x", ","]), max_size=12))
def test_offsets_of_marked_texts_return_to_the_original(parts):
    text = " ".join(parts)
    marked = matcher(words_only=True).mark(text)
    words = list(re.finditer(r"\S+", marked.text))
    spans = marked.original_spans(np.array([word.span() for word in words], dtype=np.int64).reshape(-1, 2))
    for word, (start, end) in zip(words, spans, strict=True):
        original = text[start:end]
        if word.group() == "$city":
            assert original in {"new york", "new york city", "ulm"}
        else:
            assert original == word.group()
        assert marked.offset(start) <= word.start()
    assert marked.offset(len(text)) == len(marked.text)


def test_the_longest_of_many_members_is_found_in_a_number_of_calls_proportional_to_the_text():
    found = MemberMatcher({"city"}, word_spans, words_only=True)
    for length in range(1, 100):
        found.add("a." * length + "b", "city", length)
    found.add("a.", "city", 0)
    text = "a." * 1000
    assert calls_in(found.mark, text) < 40 * len(text)
    assert found.mark("a.a.a.b").members == [3]
    assert found.mark("a.a.b\u0301").members == [0, 0]  # the longer one would go on


def test_spans_of_a_text_return_to_the_original_in_a_number_of_calls_proportional_to_it():
    marked = matcher(words_only=True).mark("ulm x " * 1000)
    spans = np.array([word.span() for word in re.finditer(r"\S+", marked.text)])
    assert calls_in(marked.original_spans, spans) < 100
    assert marked.original_spans(spans)[-2:].tolist() == [[5994, 5997], [5998, 5999]]


def test_an_offset_within_a_member_is_the_start_of_its_mark():
    marked = MarkedText("to $city x", [0], [(3, 11, 5)])  # to new york x
    assert [marked.offset(at) for at in (3, 4, 10, 11, 12)] == [3, 3, 3, 8, 9]


def test_tokens_of_members_are_their_text(tokenizer):
    slotted = tokenizer.with_slots(SLOTS)
    text = "fly to new york city from ulm , will you ? call mary ann"
    ids = slotted.encode(text)
    assert slotted.decode(ids) == text
    spelled = [slotted.token_bytes[i] for i in ids]
    assert [s for s in spelled if s in {b" new york city", b" ulm", b" mary ann"}] == [
        b" new york city",
        b" ulm",
        b" mary ann",
    ]
    assert UNK not in ids


def test_a_member_that_is_a_token_keeps_its_id(words):
    slotted = words.with_slots(SLOTS)
    assert slotted.encode("will") == words.encode("will")
    assert slotted.members.shares[words.encode("will")[0], words.classes["contact"]] == 3 / 8


def test_shares_of_each_class_sum_to_one(tokenizer):
    slotted = tokenizer.with_slots(SLOTS)
    for name, given_class in tokenizer.classes.items():
        shares = [share for (_, of), share in slotted.members.shares.items() if of == given_class]
        assert len(shares) == len(SLOTS[name])
        assert sum(shares) == pytest.approx(1)


def test_without_members_a_class_is_a_token(tokenizer):
    ids = tokenizer.encode("fly to $city from $city")
    assert ids.count(tokenizer.classes["city"]) == 2
    assert tokenizer.decode(ids) == "fly to $city from $city"


def test_a_mark_in_the_text_is_no_class_once_it_has_members(tokenizer):
    slotted = tokenizer.with_slots(SLOTS)
    assert tokenizer.classes["city"] not in slotted.encode("to $city , to ulm")
    assert len(tokenizer.vocabulary) <= slotted.encode("to $city , to ulm")[-1]


PARTS = ("fly", "to", "new", "york", "city", "ulm", "will", "mary", "ann", ",", "$city", "be")
TEXTS = st.lists(
    st.sampled_from(PARTS),
    max_size=10,
)


@given(TEXTS, st.integers(0, 40))
def test_context_and_text_are_tokenised_jointly(words, pieces, parts, cut):
    for tokenizer in (words, pieces):
        slotted = tokenizer.with_slots(SLOTS)
        text = " ".join(parts)
        context, rest = text[:cut], text[cut:]
        ids, num_context = slotted.encode_after(context, rest)
        assert ids == slotted.encode(text)
        read = slotted.decode(ids[:num_context])
        if "$" not in text and UNK not in ids:
            assert len(read.rstrip()) <= len(context)
            assert context.startswith(read.rstrip())


@given(st.lists(TEXTS.map(" ".join), min_size=1, max_size=5))
def test_texts_together_have_the_ids_of_each(words, pieces, texts):
    for tokenizer in (words, pieces):
        slotted = tokenizer.with_slots(SLOTS)
        each = [slotted.encode(text) for text in texts]
        assert slotted.encode_all(texts) == each
        ids, offsets = slotted.encode_ragged(texts)
        assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == each


@given(TEXTS)
def test_spans_of_tokens_have_their_text(words, parts):
    slotted = words.with_slots(SLOTS)
    text = " ".join(part for part in parts if part != "$city")
    for i, (start, end) in zip(slotted.encode(text), slotted.token_spans(text), strict=True):
        if i != UNK:
            assert slotted.surface(i) == text[start:end]


def test_the_mark_of_a_class_without_members_stays(tokenizer):
    slotted = tokenizer.with_slots({"city": {"ulm": 1.0}})
    ids = slotted.encode("call $contact from $city , ulm")
    assert ids.count(tokenizer.classes["contact"]) == 1
    assert tokenizer.classes["city"] not in ids
    assert slotted.decode(ids[-1:]) == "ulm"


def test_case_is_folded_in_members_too():
    lines = ["fly to $city"]
    tokenizer = learn_tokenizer(TokenizerSettings(lowercase=True, slots={"city": ""}), lines)
    slotted = tokenizer.with_slots({"city": {"New York": 1.0}})
    assert slotted.encode("Fly to NEW york")[-1] == len(tokenizer.vocabulary)


def test_a_pattern_keeps_the_marks_whole():
    settings = TokenizerSettings(pattern=r"\w+|[^\w\s]", slots={"city": ""})
    tokenizer = learn_tokenizer(settings, ["to $city, or $5"])
    assert {"$city", "$", "5", ","} <= set(tokenizer.vocabulary.ids)
    slotted = tokenizer.with_slots({"city": {"st. gallen": 1.0}})
    assert slotted.decode(slotted.encode("to st. gallen, or $5")) == "to st. gallen , or $ 5"
    assert slotted.token_spans("x $city").tolist() == [[0, 1], [2, 3], [3, 7]]


def test_a_member_before_a_word_without_a_space_keeps_its_id():
    """The mark is read apart from the next word, and so no other member has its place."""
    settings = TokenizerSettings(pattern=r"(?i)[a-z]+|\d+", slots={"city": ""})
    slotted = learn_tokenizer(settings, ["to $city or 5"]).with_slots({"city": {"ulm": 1.0, "bonn": 1.0}})
    assert slotted.decode(slotted.encode("to ulm5 or bonn")) == "to ulm 5 or bonn"
    assert slotted.token_spans("to ulm5").tolist() == [[0, 2], [3, 6], [6, 7]]
    assert slotted.encode_after("to ulm", "5 or bonn")[1] == 2


def test_members_that_are_read_alike_are_one_token(tokenizer):
    slotted = tokenizer.with_slots({"city": {"new york": 1.0, " new\tyork ": 1.0, "ulm": 2.0}})
    assert slotted.vocabulary.tokens[len(tokenizer.vocabulary) :] == tuple(
        map(slotted._token, ["new york", "ulm"])
    )
    assert sorted(slotted.members.shares.values()) == [0.5, 0.5]


def test_pieces_with_members_preserve_every_character(pieces):
    slotted = pieces.with_slots(SLOTS)
    for text in ("to new  york", "to new\u00a0york", " ulm , ulm's", "to mary\tann"):
        assert slotted.decode(slotted.encode(text)) == text


@pytest.mark.parametrize("cut", range(13))
def test_contexts_before_unknown_characters_are_tokenised_jointly(cut):
    settings = TokenizerSettings(kind="unigram", byte_fallback=False, slots={"city": ""})
    slotted = learn_tokenizer(settings, LINES).with_slots({"city": {"new york": 1.0}})
    text = "to new york \u00df"
    ids, num_context = slotted.encode_after(text[:cut], text[cut:])
    assert ids == slotted.encode(text)
    assert num_context == sum(len(slotted.decode(ids[:n])) <= cut for n in range(1, len(ids) + 1) if cut)


@pytest.mark.parametrize(
    ("settings", "member"),
    [
        ({"lowercase": True}, "$CITY"),
        ({"normalise": "nfkc"}, "\uff04city"),
        ({"normalise": "nfkc"}, "a \ufe69city"),
    ],
)
def test_a_member_is_no_class_once_it_is_normalised(settings, member):
    tokenizer = learn_tokenizer(TokenizerSettings(**settings, slots={"city": ""}), ["to $city"])
    with pytest.raises(InputError, match="contains the mark of a class"):
        tokenizer.with_slots({"city": {member: 1.0}})


def test_the_space_of_pieces_is_no_member(pieces):
    with pytest.raises(InputError, match="has no word"):
        pieces.with_slots({"city": {"\u2581": 1.0}})


def test_a_class_must_occur_in_the_text():
    with pytest.raises(InputError, match=r"tokenizer.slots.town: \$town is not in the vocabulary"):
        learn_tokenizer(TokenizerSettings(slots={"city": "", "town": "towns.txt"}), ["to $city"])


def test_normalisation_by_sentencepiece_is_refused():
    """It would follow the search for members, which are then not the same text."""
    with pytest.raises(ValueError, match=r"slots require tokenizer\.normalization=identity"):
        TokenizerSettings(kind="bpe", normalization="nfkc", slots={"city": ""})


def test_a_member_without_a_word_is_refused():
    tokenizer = learn_tokenizer(TokenizerSettings(pattern=r"\w+", slots={"city": ""}), ["to $city"])
    with pytest.raises(InputError, match=r"the member '!!' of \$city has no word"):
        tokenizer.with_slots({"city": {"!!": 1.0}})


def test_characters_have_no_classes():
    assert CharacterTokenizer(Vocabulary("$city")).classes == {}
    with pytest.raises(ValueError, match=r"slots require tokenizer\.kind=word, bpe or unigram, given char"):
        TokenizerSettings(kind="char", slots={"city": ""})


def test_names_of_classes_are_checked():
    with pytest.raises(ValueError, match="a class is named 'My City'"):
        TokenizerSettings(slots={"My City": ""})


def test_tokenizers_with_classes_return_from_their_files(tokenizer, tmp_path):
    tokenizer.slots = {"city": {"ulm": 3.0, "new york": 1.0}}
    try:
        tokenizer.save(tmp_path)
        again = load_tokenizer(tmp_path)
    finally:
        del tokenizer.slots
    assert again.fingerprint == tokenizer.fingerprint
    assert again.slots == {"city": {"ulm": 3.0, "new york": 1.0}}
    assert again.classes == tokenizer.classes
    assert again.encode("fly to $city .") == tokenizer.encode("fly to $city .")


def test_damaged_members_are_reported_with_their_file(words, tmp_path):
    words.save(tmp_path)
    (tmp_path / "slots.json").write_text('{"town": {"ulm": 1}}')
    with pytest.raises(ManifestError, match=r"slots.json: not members of classes: slots.town"):
        load_tokenizer(tmp_path)


def test_tokenizers_without_classes_are_as_before():
    """Their fingerprints, by which checkpoints of earlier versions are checked, have not changed."""
    assert "classes" not in learn_tokenizer(TokenizerSettings(kind="unigram"), LINES).settings()
    assert set(WordTokenizer(Vocabulary(["a"]), unicode_spaces=True).settings()) == {
        "pattern",
        "lowercase",
        "marked_unknown",
        "tokens",
    }


def test_the_mark_of_a_class_must_be_a_piece(pieces):
    with pytest.raises(ManifestError, match="lacks the mark"):
        PieceTokenizer(pieces._model, classes=["town"])


@given(st.text(st.characters(max_codepoint=0xFFFD, exclude_categories=["Cs"])))
def test_members_are_completed_as_one_word_whatever_their_text(text):
    one = as_one_word(text)
    assert restore_words(one) == text
    assert all(map(is_word_character, one))


def test_private_use_characters_of_a_model_without_members_are_kept():
    table = MassTable(1)
    table.add("\U00100041".encode(), 1, 0.5)
    assert table.result(1, {})[0][0].text == "\U00100041"

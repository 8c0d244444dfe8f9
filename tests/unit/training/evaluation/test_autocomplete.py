"""The simulated typist, its contexts and words, and the autocomplete evaluation of published models."""

import json
import time

import numpy as np
import pytest

from models.calls import run_to_completion
from models.checkpoint.load import load_checkpoint
from models.completion.history import CompletionHistory
from models.completion.ranked import RankingSettings
from models.completion.user_model import UserModel
from models.errors import InputError
from models.language_model import BOS, EOS, UNK, Vocabulary
from models.scoring.model_weights import WeightedModel
from models.text_model import Limits, TextModel
from models.tokenizers import CharacterTokenizer, WordTokenizer
from service.console.evaluation import show_autocomplete_evaluation
from service.operations.autocomplete import AutocompleteRequest, autocomplete
from tests.support.fake_models import FakeModel, RememberingModel, fake_vocabulary
from training.commands import run_evaluate_autocomplete, run_train
from training.evaluation.autocomplete import TypingContexts, Typist, sample_lines, typing_cost, typing_line
from training.evaluation.autocomplete_metrics import LIST_LENGTHS, Ranks, ratios
from training.progress import SILENT
from training.tokenizer import TokenizerSettings, learn_tokenizer

pytestmark = pytest.mark.usefixtures("no_pictures")

SHARES = {"the": 0.4, "then": 0.2, "they": 0.1, "cat": 0.15, "car": 0.05}


def steady(shares):
    """Word model with one distribution for all contexts; `</s>` has the remaining probability."""
    tokenizer = WordTokenizer(Vocabulary(shares))
    model = FakeModel(tokenizer.vocabulary)
    row = np.full(len(tokenizer.vocabulary), -np.inf)
    for word, share in shares.items():
        row[tokenizer.vocabulary.id_of(word)] = np.log(share)
    row[EOS] = np.log(1 - sum(shares.values()))
    model.table = np.tile(row.astype(np.float32), (len(row) + 1, 1))
    return model, tokenizer


def looks(model, tokenizer, *texts):
    lines = [typing_line(tokenizer, text) for text in texts]
    return Typist(TextModel("m@1", model, tokenizer)).type_lines(lines, progress=SILENT)


def test_ranks_are_those_among_words_that_begin_as_typed():
    (typed,) = looks(*steady(SHARES), "they cat car")
    assert [[look.rank for look in of_word] for of_word in typed.completion_ranks] == [
        [4, 3, 3, 3],
        [3, 1, 1],
        [5, 2, 2],
    ]


def test_savings_of_a_line_worked_out_by_hand():
    """13 keys; with 3 shown: t-they 2, cat 1, c-car 2, end 1; with 1 shown: they + space 5, c-cat 2, car + end 4.

    Word savings do not count the end after a completion.
    """
    told = ratios(Ranks.of(looks(*steady(SHARES), "they cat car")))
    values = {
        name: ratio.numerator.sum() / ratio.denominator.sum()
        for name, ratio in told.items()
        if ratio.denominator.sum()
    }
    expected = {
        "keystroke_savings_top_1": 2 / 13,
        "keystroke_savings_top_3": 7 / 13,
        "word_savings_top_1": 2 / 13,
        "word_savings_top_3": 8 / 13,
        "next_word_recall_top_1": 0,
        "next_word_recall_top_3": 1 / 3,
        "next_word_mrr": (1 / 4 + 1 / 3 + 1 / 5) / 3,
        "mrr": (1 / 4 + 3 / 3 + 1 / 3 + 2 + 1 / 5 + 2 / 2) / 10,
        "mean_recoverable_length_top_1": 2 / 3,
        "mean_recoverable_length_top_3": 8 / 3,
        "phrase_match_1": 0,
        "phrase_match_2": 0,
        "phrase_match_3": 0,
    }
    assert values == pytest.approx(expected)


def test_the_first_completions_probability_is_given_what_was_typed():
    (typed,) = looks(*steady(SHARES), "they")
    assert [look.probability for look in typed.completion_ranks[0]] == pytest.approx([4 / 9] + [4 / 7] * 3)


def test_unknown_words_are_typed_in_full_and_marks_never_shown():
    model, tokenizer = steady({"<unk>": 0.5, "cat": 0.3})
    (typed,) = looks(model, tokenizer, "cow <unk> cat")
    assert [[look.rank for look in of_word] for of_word in typed.completion_ranks] == [[0, 0, 0], [1, 1, 1]]


def cyclic_characters():
    """Character model in which each letter is followed by the next of "abab…" or a space."""
    tokenizer = CharacterTokenizer(Vocabulary("ab ."))
    model = FakeModel(tokenizer.vocabulary)
    _, a, b, space, stop = (tokenizer.vocabulary.id_of(c) for c in "\0ab .")
    p = np.zeros((8, 7))
    p[:, [a, b, space, EOS]] = 0.25
    p[a, [a, b, space, EOS, stop]] = [0, 0.6, 0.2, 0.1, 0.1]
    p[b, [a, b, space, EOS, stop]] = [0.1, 0, 0.7, 0.1, 0.1]
    p[space, [a, b, space, EOS, stop]] = [0.7, 0.3, 0, 0, 0]
    assert p[UNK].sum() == p[BOS].sum() == 1
    with np.errstate(divide="ignore"):
        model.table = np.log(p).astype(np.float32)
    return model, tokenizer


def test_characters_are_completed_to_words_up_to_punctuation():
    """After a space: "ab" 0.7·0.6·0.9, "a" 0.7·0.4, "b" 0.3·0.9, "ba" 0.3·0.1·0.4, …; the full stop ends a word."""
    (typed,) = looks(*cyclic_characters(), "a b. ab")
    assert [[look.rank for look in of_word] for of_word in typed.completion_ranks][1:] == [[3], [1, 1]]
    assert typed.completion_ranks[2][0].probability == pytest.approx(0.7 * 0.6 * 0.9, abs=1e-4)
    assert [word.spaced for word in typed.line.words] == [True, False, True]


TEXT = ["the cat sat on the mat .", "a cat , the cat ran", "they don't see the well-known house", "the"]


def tokenizers():
    pieces = TokenizerSettings(kind="bpe", vocab_size=60, byte_fallback=False)
    return {
        "words": WordTokenizer(Vocabulary(["the", "cat", "sat", "they", "a", "mat", "house", "see"])),
        "characters": CharacterTokenizer(Vocabulary(sorted(set("".join(TEXT))))),
        "pieces": learn_tokenizer(pieces, TEXT, progress=SILENT),
    }


@pytest.mark.parametrize("kind", ["words", "characters", "pieces"])
def test_lines_typed_side_by_side_are_as_typed_alone(kind):
    tokenizer = tokenizers()[kind]
    model = FakeModel(tokenizer.vocabulary, seed=3)
    typist = Typist(TextModel("m@1", model, tokenizer))
    for typed in looks(model, tokenizer, *TEXT):
        offsets = [offset for offset, character in enumerate(typed.line.text) if not character.isspace()]
        seen = dict(zip(offsets, typist.type_line(typed.line, model.initial_state(1)), strict=True))
        alone = [seen[offset] for word in typed.line.words for offset in range(word.begin, word.end)]
        together = [look for of_word in typed.completion_ranks for look in of_word]
        assert [look.rank for look in together] == [look.rank for look in alone]
        assert [look.ends for look in together] == [look.ends for look in alone]
        assert [look.probability for look in together] == pytest.approx([look.probability for look in alone])


def test_savings_without_repeats_worked_out_by_hand():
    """13 keys; with 1 shown: th-they 3, c-cat 2, car + end 4; with 3 shown: t-they 2, cat 1, c-car 2, end 1."""
    model, tokenizer = steady(SHARES)
    typist = Typist(TextModel("m@1", model, tokenizer), no_repeats=True)
    (typed,) = typist.type_lines([typing_line(tokenizer, "they cat car")], progress=SILENT)
    assert [typed.keys_pressed(number) for number in range(4)] == [11, 6, 9, 6]
    told = ratios(Ranks.of([typed]))
    savings = {
        name: ratio.numerator.sum() / ratio.denominator.sum()
        for name, ratio in told.items()
        if "no_repeats" in name
    }
    assert savings == {
        "keystroke_savings_top_1_no_repeats": pytest.approx(4 / 13),
        "keystroke_savings_top_3_no_repeats": pytest.approx(7 / 13),
    }


@pytest.mark.parametrize("kind", ["words", "characters", "pieces"])
def test_lists_without_repeats_are_those_of_a_session(kind):
    """Lists of one and of three differ: what the longer one has shown may be new in the shorter one."""
    tokenizer = tokenizers()[kind]
    loaded = TextModel("m@1", FakeModel(tokenizer.vocabulary, seed=7), tokenizer)
    limits = Limits(max_texts=1, max_tokens_per_sequence=1000, max_new_tokens=1)
    lines = [typing_line(tokenizer, text) for text in TEXT]
    ends = {}
    for typed in Typist(loaded, no_repeats=True).type_lines(lines, progress=SILENT):
        text, sessions = typed.line.text, {length: CompletionHistory() for length in LIST_LENGTHS}
        for offset, rank in typed.ranks.items():
            for length, end in zip(LIST_LENGTHS, rank.ends[2:], strict=True):
                request = AutocompleteRequest(text=text[:offset], limit=length)
                work = autocomplete([WeightedModel(loaded)], request, limits, shown=sessions[length])
                shown = [one for one in run_to_completion(work).completions if one.is_complete_word]
                right = [one for one in shown if f"{text} ".startswith(f"{text[: one.start]}{one.text} ")]
                expected = max((one.start + len(one.text) for one in right), default=0)
                if text[end : end + 1] in {"", " "}:
                    assert end == expected
                ends[length, end] = True
    assert {length for length, end in ends if end} == {1, 3}


def test_ranks_equal_those_by_going_through_all_words():
    tokenizer = tokenizers()["words"]
    model = FakeModel(tokenizer.vocabulary, seed=5)
    words = tokenizer.vocabulary.tokens[3:]
    for typed in looks(model, tokenizer, *TEXT):
        for word, of_word in zip(typed.line.words, typed.completion_ranks, strict=True):
            last = [BOS, *tokenizer.encode(typed.line.text[: word.begin])][-1]
            spelled = typed.line.text[word.begin : word.end]
            for letters, look in enumerate(of_word):
                fitting = [w for w in words if w.startswith(spelled[:letters])]
                fitting.sort(key=lambda w: -model.table[last, tokenizer.vocabulary.id_of(w)])
                assert look.rank == (fitting.index(spelled) + 1 if spelled in fitting else 0)


def pressed(shares, text, **options):
    """Keys pressed with a list of three, by a model of the shares."""
    model, tokenizer = steady(shares)
    tokenizer = WordTokenizer(tokenizer.vocabulary, **options)
    (typed,) = Typist(TextModel("m@1", model, tokenizer)).type_lines(
        [typing_line(tokenizer, text)], progress=SILENT
    )
    return typed.keys_pressed(1)


@pytest.mark.parametrize(
    ("shares", "text", "keys"),
    [
        ({"cat": 0.5, "dog": 0.3}, "cat cow cat", 7),  # unknown "cow" and its space are four keys
        ({"<unk>": 0.5, "cat": 0.3}, "<unk> cat", 8),  # a placeholder is typed as any unknown word
        ({"cat": 0.5}, "Cat cat", 6),  # capitals count
        ({"cat": 0.5}, "cat, cats cat's", 13),  # 3, 5 and 5: "cat" is no part of "cats"
        ({"cat": 0.5, "cat,": 0.1}, "cat, cat", 3),  # the longest right one: punctuation in tokens counts
    ],
)
def test_every_character_is_a_key(shares, text, keys):
    assert pressed(shares, text) == keys


def test_completions_have_the_capitals_typed_where_the_tokenizer_lower_cases():
    assert pressed({"cat": 0.5}, "Cat cat", lowercase=True) == 4


@pytest.mark.parametrize(("casing", "keys"), [({}, 6), ({"ignore_case": True}, 4)])
def test_completions_match_as_the_settings_say(casing, keys):
    model, tokenizer = steady({"cat": 0.5})
    typist = Typist(TextModel("m@1", model, tokenizer), RankingSettings(**casing))
    (typed,) = typist.type_lines([typing_line(tokenizer, "Cat cat")], progress=SILENT)
    assert typed.keys_pressed(1) == keys


def test_a_typist_that_learns_is_offered_the_words_of_earlier_lines():
    model, tokenizer = steady({"cat": 0.5})
    lines = [typing_line(tokenizer, "a gramophone")] * 2
    first, second = Typist(TextModel("m@1", model, tokenizer), learns=True).type_lines(lines, progress=SILENT)
    assert [one.keys_pressed(1) for one in (first, second)] == [13, 3]


@pytest.mark.parametrize("fuzzy", [0, 1])
@pytest.mark.parametrize("kind", ["words", "characters", "pieces"])
def test_ranks_are_those_of_the_service(kind, fuzzy):
    tokenizer, user = tokenizers()[kind], UserModel({"rather": 1.0}, {"": {"rather": 1.0}})
    loaded = TextModel("m@1", FakeModel(tokenizer.vocabulary, seed=7), tokenizer)
    limits = Limits(max_texts=1, max_tokens_per_sequence=1000, max_new_tokens=1)
    typist = Typist(loaded, RankingSettings(fuzzy=fuzzy))
    typist._user = user
    for text in TEXT:
        line = typing_line(tokenizer, text)
        for rank, offset in zip(
            typist.type_line(line, loaded.model.initial_state(1)),
            (offset for offset, character in enumerate(text) if not character.isspace()),
            strict=True,
        ):
            request = AutocompleteRequest(text=text[:offset], fuzzy=fuzzy)
            work = autocomplete([WeightedModel(loaded)], request, limits, user=user)
            served = [one for one in run_to_completion(work).completions if one.is_complete_word]
            assert rank.probability == pytest.approx(served[0].probability if served else 0)


def test_words_of_a_pattern_save_what_words_between_spaces_do():
    assert pressed({"cat": 0.5, ",": 0.2}, "cat, cat", pattern=r"\w+|[^\w\s]") == 5


def test_case_does_not_count_where_the_tokenizer_lower_cases():
    tokenizer = WordTokenizer(Vocabulary(["the", "cat"]), lowercase=True)
    (typed,) = looks(FakeModel(tokenizer.vocabulary), tokenizer, "The CAT")
    assert all(look.rank > 0 for of_word in typed.completion_ranks for look in of_word)
    assert [of_word[-1].rank for of_word in typed.completion_ranks] == [1, 1]


@pytest.mark.parametrize("kind", ["words", "characters"])
def test_first_ranked_word_stays_first_while_it_is_typed(kind):
    """Each letter only removes other words, as long as nothing is pruned."""
    tokenizer = tokenizers()[kind]
    for typed in looks(FakeModel(tokenizer.vocabulary), tokenizer, *TEXT):
        for word, of_word in zip(typed.line.words, typed.completion_ranks, strict=True):
            ranks = [look.rank for look in of_word]
            assert len(ranks) == word.end - word.begin
            assert 1 not in ranks or set(ranks[ranks.index(1) :]) == {1}


def test_a_line_of_a_stream_begins_where_the_one_before_ended():
    tokenizer = tokenizers()["words"]
    model = RememberingModel(tokenizer.vocabulary)
    lines = [typing_line(tokenizer, text) for text in ("the cat", "a mat", "see")]
    starts = list(Typist(TextModel("m@1", model, tokenizer), carries_state=True).starts(lines))
    ids = [tokenizer.encode(line.text) for line in lines]
    assert starts[2].texts == [(BOS, *ids[0], EOS, BOS, *ids[1], EOS, BOS)]
    assert [start.texts for start in Typist(TextModel("m@1", model, tokenizer)).starts(lines)] == [
        [(BOS,)]
    ] * 3
    typed = Typist(TextModel("m@1", model, tokenizer), carries_state=True).type_lines(lines, progress=SILENT)
    assert [one.line for one in typed] == lines
    assert starts[2].texts[0] in model.asked


@pytest.fixture
def model():
    return RememberingModel(fake_vocabulary())


@pytest.fixture
def contexts(model):
    return TypingContexts(model, model.initial_state(1), 3)


def stands_at(contexts):
    return [contexts.state(number).texts[0][1:] for number in range(3)]


def test_texts_go_on_from_where_they_stand(contexts, model):
    contexts.read({0: [3, 4], 2: [5]})
    contexts.read({0: [3, 4, 6], 1: [7], 2: [5]})
    assert stands_at(contexts) == [(3, 4, 6), (7,), (5,)]
    assert model.asked == [(BOS, 3, 4), (BOS, 5), (BOS, 3, 4, 6), (BOS, 7)]


def test_a_text_that_is_tokenised_otherwise_is_read_from_its_beginning(contexts):
    contexts.read({0: [3, 4], 1: [5]})
    contexts.read({0: [3, 6, 7], 1: [5, 8]})
    assert stands_at(contexts)[:2] == [(3, 6, 7), (5, 8)]


def test_a_text_may_become_empty(contexts):
    contexts.read({0: [3]})
    contexts.read({0: []})
    assert stands_at(contexts)[0] == ()


def test_unchanged_context_is_not_read_again(contexts, model):
    contexts.read({1: [3]})
    row = contexts.log_probs(1)
    contexts.read({1: [3]})
    assert len(model.asked) == 1
    assert contexts.log_probs(1) is row


WORDS = WordTokenizer(Vocabulary(["a"]))
CHARS = CharacterTokenizer(Vocabulary("a"))


def spelled(line):
    return [line.text[word.begin : word.end] for word in line.words]


def test_words_of_a_word_tokenizer_stand_between_spaces():
    line = typing_line(WORDS, "so , he's in  it")
    assert spelled(line) == ["so", ",", "he's", "in", "it"]
    assert [word.joined for word in line.words] == [False, True, True, True, False]
    assert all(word.spaced for word in line.words)
    assert line.num_keys == 17


def test_words_of_a_pattern_are_its_matches():
    line = typing_line(WordTokenizer(Vocabulary(["a"]), pattern=r"\w+|[^\w\s]"), "so, it")
    assert spelled(line) == ["so", ",", "it"]
    assert [word.spaced for word in line.words] == [False, True, True]


def test_words_of_characters_are_runs_of_word_characters():
    line = typing_line(CHARS, "“Don't,” well-known cafe\u0301s said — -3.")
    assert spelled(line) == ["Don't", "well-known", "cafe\u0301s", "said", "3"]
    assert [word.spaced for word in line.words] == [False, True, True, True, False]
    assert [word.joined for word in line.words] == [False, False, True, True, False]


@pytest.mark.parametrize("text", ["", "-", "--", "'a", "a-", "a--b", "-a'b-"])
def test_joiners_join_only_between_word_characters(text):
    runs = spelled(typing_line(CHARS, text))
    assert runs == {"'a": ["a"], "a-": ["a"], "a--b": ["a", "b"], "-a'b-": ["a'b"]}.get(text, [])


@pytest.mark.parametrize("tokenizer", [WORDS, CHARS])
def test_marks_of_unknown_words_are_neither_typed_nor_words(tokenizer):
    line = typing_line(tokenizer, "<unk> so <unk> it x<unk>")
    assert line.num_keys == len("so it x<unk> ")
    assert spelled(line)[:2] == ["so", "it"]
    assert not line.words[1].joined


@pytest.mark.parametrize(("text", "read"), [("So It", "so it"), ("İİ So", "İİ So")])
def test_words_are_compared_lower_cased_where_the_tokenizer_lower_cases(text, read):
    """In lower case, "İ" is two characters: offsets would differ."""
    line = typing_line(WordTokenizer(Vocabulary(["a"]), lowercase=True), text)
    assert (line.text, line.spelled) == (text, read)
    assert spelled(line) == text.split()


@pytest.mark.parametrize("kind", [WordTokenizer, CharacterTokenizer])
def test_a_line_is_typed_in_the_unicode_form_of_the_tokenizer(kind):
    tokenizer = kind(Vocabulary("a"), normalise="nfc")
    assert spelled(typing_line(tokenizer, "cafe\u0301 E\u0301t")) == ["caf\u00e9", "\u00c9t"]


def test_lines_are_drawn_until_there_are_words_enough_and_always_the_same():
    texts = [f"line {number} of five words" for number in range(50)]
    drawn = sample_lines(texts, 51)
    assert len(drawn) == 11
    assert drawn == sample_lines(texts, 51) == sorted(drawn, key=texts.index)
    assert sample_lines(texts, 10_000) == texts


def test_the_first_lines_are_drawn_if_they_are_to_hang_together():
    assert sample_lines(["a b", "c <unk>", "d e", "f"], 4, consecutive=True) == ["a b", "c <unk>", "d e"]


NOUNS, PLACES = ("cat", "dog", "owl", "hen"), ("mat", "bed", "sofa", "roof")
TRAIN = [f"the {noun} sat on the {place} and slept there" for noun in NOUNS for place in PLACES] * 6
HELD_OUT = [f"the {noun} sat on the {place} and slept" for noun, place in zip(NOUNS, PLACES, strict=True)] * 3
RECIPES = {
    "words": ["ngram.order=3"],
    "unigram": ["ngram.order=1"],
    "characters": ["ngram.order=5", "tokenizer.kind=char"],
    "backward": ["ngram.order=2", "ngram.direction=backward"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completing")
    for name, lines in {"train.txt": TRAIN, "held-out.txt": HELD_OUT}.items():
        (folder / name).write_text("\n".join(lines))
    for name, settings in RECIPES.items():
        given = {"valid": [folder / "train.txt"], "registry": folder, "assignments": settings}
        run_train("ngram", name=name, corpus=[folder / "train.txt"], **given)
    return folder


def evaluate(folder, model="words", **options):
    fixed = {"corpus": [folder / "held-out.txt"], "registry": folder, "unit": "line", "device": "cpu"}
    return run_evaluate_autocomplete(model, **{**fixed, **options})


def value(result, name):
    return result["figures"][name]["value"]


def test_a_model_of_the_text_spares_most_keys(folder):
    result = evaluate(folder)
    json.dumps(result, allow_nan=False)
    assert (result["model"], result["task"], result["lines"], result["words"]) == (
        "words@1",
        "autocomplete",
        12,
        96,
    )
    assert result["unknown_words"] == 0
    assert result["keys"] == sum(len(line) + 1 for line in HELD_OUT)
    pressed = result["keys_pressed"]
    assert value(result, "keystroke_savings_top_3") == pytest.approx(1 - pressed["top_3"] / result["keys"])
    assert value(result, "keystroke_savings_top_3") > value(result, "keystroke_savings_top_1") > 0.6
    assert value(result, "phrase_match_2") > 0.4
    assert result["keystroke_ms"]["p99"] >= result["keystroke_ms"]["p50"] > 0


def test_characters_are_evaluated_by_the_same_keys(folder):
    words, characters = evaluate(folder), evaluate(folder, "characters")
    assert characters["keys"] == words["keys"]
    assert value(characters, "keystroke_savings_top_3") == pytest.approx(
        value(words, "keystroke_savings_top_3"), abs=0.1
    )


def test_the_keys_saved_beside_the_cost_are_those_of_an_evaluation(folder):
    loaded = load_checkpoint(folder / "words" / "versions" / "1")
    cost = typing_cost(loaded.model, loaded.tokenizer, HELD_OUT, progress=SILENT)
    assert cost["keystroke_savings_top_3"] == pytest.approx(
        value(evaluate(folder), "keystroke_savings_top_3")
    )
    assert cost["words"] == 96
    assert 0 < cost["timed_keys"] < sum(map(len, HELD_OUT))  # not the first, nor spaces
    assert cost["core_ms_per_key"] > 0
    assert typing_cost(loaded.model, loaded.tokenizer, ["", "<unk>"], progress=SILENT) == {}


def test_waiting_is_no_time_of_a_core(folder, monkeypatch):
    def waiting(_self, line, _start):
        for _ in line.text:
            time.sleep(0.005)
            yield None

    monkeypatch.setattr(Typist, "type_line", waiting)
    took = evaluate(folder, sample=5)["keystroke_ms"]
    assert took["p50"] >= 5
    assert took["core"] < 2.5


def test_two_models_are_compared_line_by_line(folder):
    result = evaluate(folder, against="unigram")
    other, gap = result["against"], result["against"]["difference"]["keystroke_savings_top_1"]
    json.dumps(result, allow_nan=False)
    assert other["model"] == "unigram@1"
    assert gap["value"] == pytest.approx(
        value(result, "keystroke_savings_top_1") - value(other, "keystroke_savings_top_1")
    )
    assert 0 < gap["low"] <= gap["value"] <= gap["high"]


def test_only_so_many_words_are_typed(folder):
    assert evaluate(folder, sample=17)["lines"] == 3


def test_savings_without_repeats_stand_beside_the_others(folder, capsys):
    result = evaluate(folder, no_repeats=True, against="unigram", report=folder / "once.html")
    alone = evaluate(folder)
    figures = result["figures"]
    assert {name: figures[name] for name in alone["figures"]} == alone["figures"]
    for length in LIST_LENGTHS:
        name = f"top_{length}_no_repeats"
        saved = 1 - result["keys_pressed"][name] / result["keys"]
        assert value(result, f"keystroke_savings_{name}") == pytest.approx(saved)
        assert f"keystroke_savings_{name}" in result["against"]["difference"]
    top_1 = "keystroke_savings_top_1"
    assert value(result["against"], f"{top_1}_no_repeats") >= value(result["against"], top_1)
    show_autocomplete_evaluation(result)
    assert "keystroke savings top 3 no repeats" in capsys.readouterr().out
    page = "three shown, each once"
    assert page in (folder / "once.html").read_text()
    evaluate(folder, report=folder / "page.html")
    assert page not in (folder / "page.html").read_text()


def test_a_stream_is_the_first_lines_as_one_text(folder):
    result = evaluate(folder, context="stream", sample=20)
    assert (result["context"], result["lines"], result["words"]) == ("stream", 3, 24)


def test_people_get_tables_and_a_page(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    result = evaluate(folder, against="characters", report=folder / "page.html")
    show_autocomplete_evaluation(result)
    out = capsys.readouterr().out
    for said in (
        "keystroke savings top 3",
        "letters typed (characters@1)",
        "one keystroke with words@1, float32",
    ):
        assert said in out
    page = (folder / "page.html").read_text()
    assert "<h1>words@1: autocomplete</h1>" in page
    assert page.count("<svg") == 3
    assert "<script" not in page


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "backward"}, "reads right to left"),
        ({"against": "backward"}, "reads right to left"),
        ({"context": "document"}, "it must be 'sentence' or 'stream'"),
        ({"sample": 0}, "--sample is 0; it must be at least 1"),
        ({"report": "nowhere/page.html"}, "the folder .* does not exist"),
        ({"corpus": ["marks.txt"]}, "no word to type"),
    ],
)
def test_bad_input_is_named(folder, options, said):
    (folder / "marks.txt").write_text("<unk> <unk>\n")
    if "report" in options:
        options = {"report": folder / options["report"]}
    if "corpus" in options:
        options = {"corpus": [folder / name for name in options["corpus"]]}
    with pytest.raises(InputError, match=said):
        evaluate(folder, **options)

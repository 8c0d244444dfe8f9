"""Selection of in-domain lines: scores against a brute-force computation, the cut, the output, refusals."""

import gzip
import math
import random
from collections import Counter

import numpy as np
import pytest

from models.errors import FormatError, InputError
from training import selection
from training.corpus import EncodedCorpus
from training.selection import run_select

COOKS = ("stir", "boil", "salt", "soup", "the", "pot", "add", "slowly")
SAILORS = ("sail", "mast", "wind", "the", "deck", "rope", "haul", "slowly")


def lines(words, count, seed):
    """Lines in which each word is one of two that follow its predecessor."""
    rng, made = random.Random(seed), []
    for _ in range(count):
        place, line = rng.randrange(len(words)), []
        for _ in range(rng.randint(4, 9)):
            line.append(words[place % len(words)])
            place += rng.choice((1, 3))
        made.append(" ".join(line))
    return made


def write(path, texts):
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


@pytest.fixture
def files(tmp_path):
    """A small text of cooks, and a large one with as many lines of cooks as of others, in random order."""
    mixed = [*lines(COOKS, 600, 1), *lines(SAILORS, 1800, 2)]
    random.Random(3).shuffle(mixed)
    return write(tmp_path / "large.txt", mixed), write(tmp_path / "small.txt", lines(COOKS, 200, 4))


def is_of_cooks(line):
    return len(set(line.split()) & set(COOKS)) > len(set(line.split()) & set(SAILORS))


def test_the_lines_of_the_domain_are_selected_in_their_order(files, tmp_path, capsys):
    large, small = files
    result = run_select([large], in_domain=[small], output=tmp_path / "out.txt")
    chosen, everything = ((tmp_path / name).read_text().splitlines() for name in ("out.txt", "large.txt"))
    assert result["share"] == 0.25
    assert len(chosen) == 600
    assert sum(map(is_of_cooks, chosen)) >= 590
    rest = iter(everything)
    assert all(line in rest for line in chosen)
    found = {trial["share"]: trial for trial in result["trials"]}
    assert found[0.25]["lines"] == 600
    assert found[0.25]["tokens"] == sum(len(line.split()) for line in chosen)
    assert list(found) == list(selection.SHARES)
    assert found[0.25]["perplexity"] == min(trial["perplexity"] or math.inf for trial in result["trials"])
    assert "scoring lines: done in" in capsys.readouterr().err


def test_a_share_can_be_given_and_the_output_is_compressed_by_its_suffix(files, tmp_path):
    large, small = files
    result = run_select([large], in_domain=[small], output=tmp_path / "out.txt.gz", share=0.01)
    assert [trial["lines"] for trial in result["trials"]] == [24]
    chosen = gzip.decompress((tmp_path / "out.txt.gz").read_bytes()).decode().splitlines()
    assert len(chosen) == 24
    assert all(map(is_of_cooks, chosen))


def test_scores_are_differences_of_cross_entropies(files, tmp_path, monkeypatch):
    """Add-one unigram models, computed by hand; the end of the in-domain text is held out."""
    large, small = files
    seen = {}
    score = selection._score_lines
    monkeypatch.setattr(selection, "_score_lines", lambda *given: seen.setdefault("scores", score(*given)))
    unigrams = ["ngram.order=1", "ngram.smoothing=laplace", "tokenizer.min_count=1"]
    run_select([large], in_domain=[small], output=tmp_path / "out.txt", share=0.1, assignments=unigrams)
    texts = [line.split() for line in large.read_text().splitlines()]
    near = [line.split() for line in small.read_text().splitlines()][:190]
    known = {word for line in near for word in line}
    rows = [[word if word in known else "<unk>" for word in line] + ["</s>"] for line in texts]
    target = sum(len(line) + 1 for line in near)
    samples, used = ([], []), 0
    for index in np.random.default_rng(1).permutation(len(rows)):
        if used < 2 * target:
            samples[used // target].append(index)
        used += len(rows[index])

    def entropy(row, trained_on):
        counts = Counter(word for line in trained_on for word in line)
        total = counts.total() + len(known) + 2  # `<s>` is not predicted
        return -sum(math.log((counts[word] + 1) / total) for word in row) / len(row)

    in_domain = [[*line, "</s>"] for line in near]
    first, second = ([rows[index] for index in sample] for sample in samples)
    for index in [*samples[0][:3], *samples[1][:3], 5, 50, 500]:
        general = second if index in samples[0] else first
        expected = entropy(rows[index], in_domain) - entropy(rows[index], general)
        assert seen["scores"][index] == pytest.approx(expected, abs=1e-5)


def test_a_subset_has_the_chosen_lines_of_all_blocks():
    rows = [[3], [4, 5], [], [6, 7, 8], [9]]
    blocks = [EncodedCorpus.from_sentences(rows[:2]), EncodedCorpus.from_sentences(rows[2:])]
    for chosen in ([0, 1, 1, 0, 1], [1, 0, 0, 1, 0], [1] * 5):
        subset = selection._subset(blocks, np.array(chosen, dtype=bool))
        expected = [row for row, keep in zip(rows, chosen, strict=True) if keep]
        assert [subset.sentence(i).tolist() for i in range(subset.num_sentences)] == expected


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"output": "small.txt"}, InputError, r"--output .*small\.txt exists; name a new file"),
        ({"output": "no/out.txt"}, InputError, r"--output .*is in .*no, which is no folder"),
        ({"share": 0.0}, InputError, r"--share is 0\.0; it must be above 0 and at most 1"),
        ({"share": 1.5}, InputError, r"--share is 1\.5"),
        ({"share": math.nan}, InputError, r"--share is nan"),
        (
            {"in_domain": "few.txt"},
            InputError,
            r"--in-domain has 29 sentences .* at least 100 are needed",
        ),
        (
            {"large": "few.txt"},
            InputError,
            r"the large text has \d+ tokens, but needs [\d,]+, twice the number of the in-domain text",
        ),
        (
            {"large": "alien.txt"},
            InputError,
            r"the large text has none of the 8 words of the in-domain",
        ),
        ({"large": "nothing.txt"}, FormatError, r"nothing\.txt: there is no such file"),
        ({"assignments": ["ngram.order=0"]}, InputError, r"ngram\.order: must be at least 1, given 0"),
        (
            {"assignments": ["family=neural"]},
            InputError,
            r"--set: n-gram models that read forward select, given family=neural, direction=forward",
        ),
        (
            {"assignments": ["ngram.direction=backward"]},
            InputError,
            r"given family=ngram, direction=backward",
        ),
    ],
)
def test_unsuitable_input_is_refused_and_nothing_is_written(files, tmp_path, changes, error, said):
    write(tmp_path / "few.txt", lines(COOKS, 30, 5))
    write(tmp_path / "alien.txt", ["qua quo qui"] * 3000)
    options = {"large": "large.txt", "in_domain": "small.txt", "output": "out.txt"} | changes
    large, small = tmp_path / options.pop("large"), tmp_path / options.pop("in_domain")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(error, match=said):
        run_select([large], in_domain=[small], output=tmp_path / options.pop("output"), **options)
    assert sorted(tmp_path.iterdir()) == before


def test_a_large_text_that_changes_meanwhile_is_refused(files, tmp_path, monkeypatch):
    large, small = files
    score = selection._score_lines

    def shortened(*given):
        write(large, large.read_text().splitlines()[:-1])
        return score(*given)

    monkeypatch.setattr(selection, "_score_lines", shortened)
    with pytest.raises(FormatError, match=r"had 2,400 lines at first, and now has 2,399"):
        run_select([large], in_domain=[small], output=tmp_path / "out.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large.txt", "small.txt"]

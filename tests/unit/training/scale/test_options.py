"""What the command line's options of an estimation past memory mean, and what the plan refuses."""

from pathlib import Path

import pytest

from models.errors import InvalidInputError
from training.recipe import load_recipe
from training.scale.options import DEFAULT_LIMIT_BYTES, check_relational, scale_options


def options(engine="duckdb", limit=None, work_dir=None):
    return scale_options(engine, memory_limit=limit, work_dir=work_dir)


def test_the_estimator_in_memory_needs_no_options():
    assert options("memory") is None


def test_other_engines_have_a_limit_and_may_have_a_folder():
    assert options() == ("duckdb", DEFAULT_LIMIT_BYTES, None)
    assert options("spark", "1GB", Path("here")) == ("spark", 10**9, Path("here"))


@pytest.mark.parametrize(
    ("size", "expected"),
    [("1GiB", 2**30), ("1.5gb", 1_500_000_000), ("500 MB", 500_000_000), ("2T", 2 * 10**12), ("4096", 4096)],
)
def test_sizes_are_read_with_their_unit(size, expected):
    assert options(limit=size).memory_limit_bytes == expected


@pytest.mark.parametrize("size", ["", "0", "-1GB", "much", "1XB", "1GBs", "nan", "9999999999TB", "9" * 400])
def test_what_is_no_size_is_refused(size):
    with pytest.raises(InvalidInputError, match=r"--memory-limit is .*, it must be a size such as 500MB"):
        options(limit=size)


@pytest.mark.parametrize(
    ("name", "given"), [("memory-limit", {"limit": "1GB"}), ("work-dir", {"work_dir": "x"})]
)
def test_options_that_would_do_nothing_are_refused(name, given):
    with pytest.raises(
        InvalidInputError, match=rf"--{name} acts with --engine duckdb or spark only"
    ) as refused:
        options("memory", **given)
    assert refused.value.parameter == name


def test_another_engine_is_refused():
    with pytest.raises(InvalidInputError, match=r"--engine is 'sqlite', it can be memory, duckdb, spark"):
        options("sqlite")


@pytest.mark.parametrize(
    ("recipe", "assignments", "said"),
    [
        (
            "ngram",
            ["ngram.smoothing=witten-bell"],
            r"ngram\.smoothing absolute, kneser-ney or .*, given witten-bell",
        ),
        ("ngram", ["ngram.discounts=held-out"], r"ngram\.discounts counts only, given held-out"),
        ("ngram", ["ngram.prune_entropy=1e-8"], r"ngram\.prune_entropy 0 only, given 1e-08"),
        ("ngram", ["ngram.quantize_bits=8"], r"ngram\.quantize_bits not set only, given 8"),
        ("lstm", [], r"family ngram only, given neural"),
        ("mixture", [], r"family ngram only, given mixture"),
    ],
)
def test_what_the_plan_cannot_express_is_refused_with_its_key(recipe, assignments, said):
    with pytest.raises(
        InvalidInputError, match=rf"--engine duckdb estimates with {said}; use --engine memory"
    ):
        check_relational(load_recipe(recipe, assignments), "duckdb", name=recipe)


@pytest.mark.parametrize("smoothing", ["absolute", "kneser-ney", "modified-kneser-ney"])
def test_what_it_can_express_is_not(smoothing):
    assignments = [f"ngram.smoothing={smoothing}", "ngram.prune=[0, 1]", "ngram.direction=backward"]
    check_relational(load_recipe("ngram", assignments), "spark", name="ngram")

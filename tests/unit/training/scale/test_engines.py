"""Engines and options of out-of-core estimation."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from models.errors import InputError, RegistryError
from tests.support.relational import limit_with_room
from training.progress import SILENT
from training.recipe import load_recipe
from training.scale import options as scale_options
from training.scale.duckdb_engine import DuckDBEngine
from training.scale.options import (
    DEFAULT_LIMIT_BYTES,
    check_relational,
    engine_memory_bytes,
    own_memory_bytes,
    require_engine,
)
from training.scale.options import scale_options as options_scale_options
from training.scale.plan import Stage

MANY = Stage(
    "many", "SELECT i AS w1, hash(i) AS h FROM range(3_000_000) t(i) ORDER BY h", (), "sorting words"
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "table").mkdir()
    return tmp_path / "table"


@pytest.mark.parametrize(
    ("engine", "package", "extra"), [("duckdb", "duckdb", "scale"), ("spark", "pyspark", "spark")]
)
def test_a_missing_package_is_told_with_the_command_that_installs_it(monkeypatch, engine, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        InputError, match=rf"needs the package {package}: pip install 'gramophone-lm\[{extra}\]'"
    ):
        require_engine(engine)


def test_an_engine_may_take_what_the_process_leaves_less_a_reserve(monkeypatch):
    assert 10**7 < own_memory_bytes() < 10**11
    monkeypatch.setattr(scale_options, "own_memory_bytes", lambda: 500 * 1024**2)
    assert engine_memory_bytes(1500 * 1024**2) == int(0.8 * (1000 - 64) * 1024**2)


def test_a_limit_that_leaves_too_little_is_told_with_what_is_needed():
    with pytest.raises(InputError, match=r"--memory-limit is 100 MB; .* so at least [\d,]+ MB are needed"):
        engine_memory_bytes(100_000_000)


def duckdb_of_one_thread(limit_bytes, spill):
    engine = DuckDBEngine(limit_bytes, spill)
    engine._connection.execute("SET threads = 1")
    return engine


def test_a_stage_that_does_not_fit_into_the_limit_is_told(tmp_path, folder, monkeypatch):
    monkeypatch.setattr("training.scale.duckdb_engine.engine_memory_bytes", lambda _: 4 * 1024**2)
    engine = duckdb_of_one_thread(10**9, tmp_path)
    with pytest.raises(InputError, match="1000 MB is too little for sorting words with DuckDB; raise it"):
        engine.write(MANY, folder, SILENT)
    engine.close()


def test_a_full_disk_is_told(tmp_path, folder, monkeypatch):
    monkeypatch.setattr("training.scale.duckdb_engine.engine_memory_bytes", lambda _: 60 * 1024**2)
    engine = duckdb_of_one_thread(10**9, tmp_path)
    engine._connection.execute("SET max_temp_directory_size = '1MB'")
    with pytest.raises(RegistryError, match=r"cannot write to .*: the disk is full \(sorting words\)"):
        engine.write(MANY, folder, SILENT)
    engine.close()


def test_a_disk_that_fills_while_a_table_is_written_is_told_in_plain_words(tmp_path, folder):
    (folder / "part.parquet").symlink_to("/dev/full")
    engine = duckdb_of_one_thread(limit_with_room(), tmp_path)
    with pytest.raises(RegistryError, match=rf"cannot write to {tmp_path}: No space left on device$"):
        engine.write(MANY, folder, SILENT)
    engine.close()


@pytest.mark.parametrize("name", ["it's a dir", "50%", "ü", "a[1]", "data*", "what?", "{a,b}", "back\\slash"])
def test_a_folder_may_be_called_anything_and_is_no_pattern(tmp_path, name):
    engine = duckdb_of_one_thread(limit_with_room(), tmp_path)
    for number, folder in enumerate((tmp_path / name, tmp_path / "database")):
        folder.mkdir()
        engine.write(Stage("one", f"SELECT {number} AS w1", (), "counting"), folder, SILENT)
    engine.read("one", tmp_path / name)
    assert engine.rows("SELECT w1 FROM one") == [(0,)]
    engine.close()


def test_a_folder_that_is_gone_is_told(tmp_path):
    engine = duckdb_of_one_thread(limit_with_room(), tmp_path)
    with pytest.raises(RegistryError, match=r"cannot write to "):
        engine.write(Stage("one", "SELECT 1 AS w1", (), "counting"), tmp_path / "no" / "folder", SILENT)
    engine.close()


def test_sigint_interrupts_the_sql_statement(tmp_path, folder):
    pairs = "SELECT count(*) AS w1 FROM range(10_000_000) a(i), range(10_000_000) b(j) WHERE hash(i, j) = 1"
    engine = duckdb_of_one_thread(limit_with_room(), tmp_path)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        engine.write(Stage("pairs", pairs, (), "counting pairs"), folder, SILENT)
    engine.close()


def options(engine="duckdb", limit=None, work_dir=None):
    return options_scale_options(engine, memory_limit=limit, work_dir=work_dir)


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
def test_invalid_memory_limit_is_refused(size):
    with pytest.raises(InputError, match=r"--memory-limit is .*; it must be a size such as 500MB"):
        options(limit=size)


@pytest.mark.parametrize(
    ("name", "given"), [("memory-limit", {"limit": "1GB"}), ("work-dir", {"work_dir": "x"})]
)
def test_options_that_would_do_nothing_are_refused(name, given):
    with pytest.raises(InputError, match=rf"--{name} requires --engine duckdb or spark") as refused:
        options("memory", **given)
    assert refused.value.param == name


def test_another_engine_is_refused():
    with pytest.raises(InputError, match=r"--engine is 'sqlite'; use one of memory, duckdb, spark"):
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
def test_recipe_outside_the_plan_is_refused_with_its_key(recipe, assignments, said):
    with pytest.raises(InputError, match=rf"--engine duckdb estimates with {said}; use --engine memory"):
        check_relational(load_recipe(recipe, assignments), "duckdb", name=recipe)


@pytest.mark.parametrize("smoothing", ["absolute", "kneser-ney", "modified-kneser-ney"])
def test_recipe_in_the_plan_is_accepted(smoothing):
    assignments = [f"ngram.smoothing={smoothing}", "ngram.prune=[0, 1]", "ngram.direction=backward"]
    check_relational(load_recipe("ngram", assignments), "spark", name="ngram")

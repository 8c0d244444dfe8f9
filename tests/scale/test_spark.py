"""The relational plan on Spark gives the models of DuckDB's engine and of the in-memory estimator."""

import json
import lzma
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import InputError, RegistryError
from tests.support.relational import assert_same, in_memory, relational
from training.progress import SILENT
from training.scale.plan import Stage
from training.scale.spark_engine import SparkEngine

pytestmark = pytest.mark.timeout(900)  # Spark takes seconds for each stage, however small
LIMIT_BYTES = 10**9
WORDS = st.sampled_from(["a", "b", "c", "d", "the"])
LINES = st.lists(st.lists(WORDS, min_size=1, max_size=8).map(" ".join), min_size=1, max_size=40)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = SparkEngine(LIMIT_BYTES, tmp_path_factory.mktemp("spill"))
    engine._session.conf.set("spark.sql.shuffle.partitions", "2")  # small texts
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def reference(data_dir):
    return lzma.decompress((data_dir / "reference" / "corpus.txt.xz").read_bytes()).decode().splitlines()


@given(lines=LINES, order=st.integers(1, 4), thresholds=st.lists(st.integers(0, 2), max_size=3).map(sorted))
@settings(max_examples=4, deadline=None)
def test_of_any_text_the_model_is_that_of_the_estimator_in_memory(engine, lines, order, thresholds):
    wanted = {"order": order, "prune": [0, *thresholds][:order]}
    with tempfile.TemporaryDirectory() as folder:
        assert_same(relational(engine, Path(folder), lines, **wanted), in_memory(lines, **wanted))


@pytest.mark.data
@pytest.mark.parametrize("prune", [(), (0, 0, 1, 1)])
def test_of_the_reference_the_model_is_that_of_the_estimator_in_memory(engine, reference, tmp_path, prune):
    found = relational(engine, tmp_path, reference, order=4, prune=prune)
    assert_same(found, in_memory(reference, order=4, prune=prune))


def test_a_sorted_table_is_in_order_from_its_first_file_to_its_last(engine, tmp_path):
    import pyarrow.parquet as pq

    sql = "SELECT id AS w1 FROM range(0, 100000, 1, 8) ORDER BY hash(id)"
    engine._session.sql(sql).createOrReplaceTempView("shuffled")
    engine.write(Stage("one", "SELECT w1 FROM shuffled ORDER BY w1", (), "sorting"), tmp_path, SILENT)
    files = sorted(tmp_path.iterdir())
    assert {file.suffix for file in files} == {".parquet"}
    read = [number for file in files for number in pq.read_table(file)["w1"].to_pylist()]
    assert read == list(range(100_000))


@pytest.mark.parametrize("name", ["it's é%20", "a[1]", "data*", "{a,b}?"])
def test_a_folder_may_be_called_anything_and_is_no_pattern(engine, tmp_path, name):
    for number, folder in enumerate((tmp_path / name, tmp_path / "database")):
        folder.mkdir()
        engine.write(Stage("one", f"SELECT {number} AS w1", (), "counting"), folder, SILENT)
    engine.read("one", tmp_path / name)
    assert engine.rows("SELECT w1 FROM one") == [(0,)]


def test_failure_of_spark_has_its_first_cause_in_one_line(engine, tmp_path):
    stage = Stage("one", "SELECT raise_error('the dog ate it') AS w1", (), "counting words")
    with pytest.raises(RegistryError, match=r"Spark failed counting words: .*the dog ate it") as failed:
        engine.write(stage, tmp_path, SILENT)
    assert len(str(failed.value).splitlines()) == 1


def test_too_small_a_driver_is_refused(tmp_path):
    with pytest.raises(InputError, match="--memory-limit is 100 MB; Spark needs at least 524 MB"):
        SparkEngine(10**8, tmp_path)


def test_killed_and_started_again_the_command_publishes_the_model_of_the_engine_memory(tmp_path):
    words = random.Random(1)
    lines = (" ".join(f"w{int(words.paretovariate(0.7)) % 300}" for _ in range(9)) for _ in range(1000))
    (tmp_path / "corpus.txt").write_text("\n".join(lines))
    registry = tmp_path / "registry"

    def command(engine):
        run = [sys.executable, "-m", "service.cli", "train", "ngram", "--engine", engine, "--name", engine]
        files = ["--corpus", str(tmp_path / "corpus.txt"), "--registry", str(registry)]
        return [*run, *files, "--set", "ngram.order=2", "--json"]

    subprocess.run(command("memory"), check=True, capture_output=True)
    process = subprocess.Popen(command("spark"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and len(list(registry.glob(".runs/spark/estimation/stage-*"))) < 6:
        time.sleep(0.01)
    process.kill()
    process.wait()
    done = subprocess.run(command("spark"), capture_output=True, text=True, check=True)
    assert "stages of the estimation were already complete" in json.loads(done.stdout)["notes"][0]
    first, second = (registry / name / "versions" / "1" / "ngram.bin" for name in ("memory", "spark"))
    assert first.read_bytes() == second.read_bytes()

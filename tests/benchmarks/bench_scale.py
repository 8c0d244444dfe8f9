"""n-grams estimated in memory and out of core, in one run: seconds and peak memory of the commands, and their models.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_scale.py [--sentences 100000] [--order 5] [--memory-limit 600MB]

Memory is anonymous memory (no file pages), sampled every 20 ms. With --sentences 0 the text is all of novels/, for
which a limit of 1GB is half of what the in-memory estimator takes. Without the public data it is a text of random
words. Everything is deleted at the end.
"""

import argparse
import json
import random
import re
import subprocess
import tempfile
import time
from pathlib import Path

from preparation import GRAMOPHONE, data_folder, peer, read_lines

LOOK_EVERY_S = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=100_000)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--memory-limit", default="600MB")
    given = parser.parse_args()
    peer("duckdb", "duckdb>=2.0,<3")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = written(folder / "text.txt", given.sentences or None)
        print(f"{sum(1 for _ in text.open())} sentences, order {given.order}")
        command = ["train", "ngram", "--corpus", str(text), "--registry", str(folder / "registry"), "--json"]
        command += ["--set", f"ngram.order={given.order}"]
        in_memory = run([*command, "--name", "memory"])
        limits = ["--engine", "duckdb", "--memory-limit", given.memory_limit]
        past_memory = run([*command, "--name", "duckdb", *limits])
        files = [
            (folder / "registry" / n / "versions/1/ngram.bin").read_bytes() for n in ("memory", "duckdb")
        ]
    show("memory", *in_memory)
    show(f"duckdb, {given.memory_limit}", *past_memory)
    print(
        f"{past_memory[0] / in_memory[0]:.2f} of the seconds, {past_memory[1] / in_memory[1]:.2f} of the memory"
    )
    print(
        f"{'the same model to the bit' if files[0] == files[1] else 'other bits'}, {len(files[0]) >> 20} MiB"
    )


def written(path: Path, count: int | None) -> Path:
    """Write sentences of the novels, or random words."""
    data = data_folder()
    with path.open("w") as file:
        if data:
            novels = read_lines(data / "novels" / "novels.train.txt.xz")[:count]
            file.writelines(f"{line}\n" for line in novels)
        else:
            words = random.Random(1)
            for _ in range(count or 100_000):
                file.write(" ".join(f"w{int(words.paretovariate(0.8)) % 50_000}" for _ in range(18)) + "\n")
    return path


def run(command: list[str]) -> tuple[float, int, int]:
    """Return the command's seconds, peak of its own memory in bytes, and number of n-grams."""
    child = subprocess.Popen(
        [*GRAMOPHONE, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    peak, began = 0, time.monotonic()
    status = Path(f"/proc/{child.pid}/status")
    while child.poll() is None:
        if found := re.search(r"RssAnon:\s+(\d+) kB", status.read_text()):
            peak = max(peak, int(found[1]) * 1024)
        time.sleep(LOOK_EVERY_S)
    result = json.loads(child.communicate()[0])
    return time.monotonic() - began, peak, sum(result["ngrams"])


def show(name: str, seconds: float, peak: int, ngrams: int) -> None:
    print(f"{name:>16}: {seconds:6.1f} s, {peak / 1e6:6.0f} MB, {ngrams:,} n-grams")


if __name__ == "__main__":
    main()

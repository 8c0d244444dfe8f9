"""Run all benchmarks one after the other and print a table of results, failures and skipped benchmarks.

    python tests/benchmarks/run.py [--long] [--only bench_int8 …]

Each runs in a process of its own, with fewer rounds or smaller texts than its defaults (`PLANS`), so that all take some
half an hour on two cores; none starts after eighty minutes. With `--long` each runs with its defaults, for hours.
A benchmark that fails or exceeds its limit makes the run fail but does not end it; a benchmark that is left out because
of a missing requirement does not. Benchmarks with the same models share them, in a temporary folder.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from preparation import LEFT_OUT, REASON, data_folder

HERE = Path(__file__).parent
SHORT_LIMIT_S, LONG_LIMIT_S = 600, 4 * 3600
BEGIN_WITHIN_S = 80 * 60
GRACE_S = 15
DONE, OUT, FAILED = "done", "left out", "FAILED"


class Plan(NamedTuple):
    """Settings of one benchmark in a run.

    Attributes:
        short: its arguments without `--long`.
        long_only: the reason for running it only with `--long`; None if it always runs.
        models: `quickstart` or `novels`: models of the shared registry; without the public data both are the same.
        headline: the table shows the last line with this text; if empty, the very last line.
    """

    short: str = ""
    long_only: str | None = None
    models: str | None = None
    headline: str = ""


PLANS = {
    "bench_autocomplete": Plan("--keys 600", models="quickstart"),
    "bench_capacity": Plan("--seconds 2", models="quickstart", headline="next-token"),
    "bench_check": Plan("--count 100", models="novels", headline="mixture"),
    "bench_company": Plan("--equal 200 --requests 500", models="novels", headline="equal requests"),
    "bench_correct": Plan("--rounds 20", headline="list, phrases "),
    "bench_completion": Plan("--texts 50", headline="unigram"),
    "bench_domain": Plan(long_only="it trains eight networks, for half an hour"),
    "bench_engine": Plan("--rounds 2", headline="unstreamed"),
    "bench_families": Plan(long_only="it trains every family, for an hour"),
    "bench_growth": Plan("--sentences 100000"),
    "bench_heavy_company": Plan("--pairs 1 --seconds 2", models="quickstart", headline="ngram, beams"),
    "bench_hours": Plan(long_only="it trains for 200 minutes"),
    "bench_int8": Plan(headline="step of 1 rows, int8"),
    "bench_keystrokes": Plan("--sentences 20000 --words 200 --rounds 1", headline="service "),
    "bench_latency": Plan("--seconds 6", models="novels", headline="the same beside"),
    "bench_lattices": Plan("--lattices 60 --network-lattices 3", headline="4-gram, 64 tokens a node, 64"),
    "bench_losses": Plan("--seconds 1", headline="softmax"),
    "bench_misspellings": Plan("--words 5000", headline="dictionary "),
    "bench_ngram": Plan("--sentences 200000", headline="lines, 2 threads"),
    "bench_peers": Plan(
        "--seconds 1 --open-seconds 2 --rounds 1 --clients 32", headline="generate, int8, 32 clients"
    ),
    "bench_phrases": Plan("--sentences 100000 --sizes 1000", headline="rank and phrases"),
    "bench_pretrained": Plan("--pairs 3 --layers 4"),
    "bench_pretrained_text": Plan(long_only="it trains a GPT-2 and ten other models, for an hour"),
    "bench_purposes": Plan(long_only="it trains six mixtures, for an hour"),
    "bench_recurrent": Plan(headline="training, bfloat16"),
    "bench_rerank": Plan("--lists 300 --neural-lists 8 --rounds 2"),
    "bench_restore": Plan("--lines 600", headline="lines are sentences"),
    "bench_scale": Plan("--sentences 50000", headline="of the seconds"),
    "bench_service": Plan("--requests 400", models="quickstart", headline="next-token, ngram"),
    "bench_soak": Plan(long_only="it takes 25 minutes, and tests/fault has half a minute of it"),
    "bench_several_models": Plan("--sentences 4", headline="first letter of a word"),
    "bench_short_requests": Plan("--requests 8000 --rounds 3", headline="one text"),
    "bench_slots": Plan("--sentences 100", headline="ngram-words-slots"),
    "bench_start": Plan("--rounds 1", models="quickstart", headline="three models, warm"),
    "bench_states": Plan("--requests 40", models="novels", headline="advance 32 states, scored only"),
    "bench_training": Plan("--share 0.1"),
    "bench_tuning": Plan(headline="KenLM"),
    "bench_typing": Plan("--words 60", headline="intended word first, keys"),
    "bench_word_lists": Plan("--entries 100000 --requests 100", headline="keystroke, dictionary "),
    "bench_workers": Plan("--seconds 0.5", models="quickstart"),
}
"""Plans of the benchmarks that do not run with their defaults."""


class Row(NamedTuple):
    """Result of one benchmark."""

    name: str
    outcome: str
    seconds: float
    told: str


def end(process):
    """Stop a process and all of its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(GRACE_S)


def run(command, limit_s):
    """Return the exit status, None after the limit, and the output lines, which are also printed."""
    stopped, lines = threading.Event(), []
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    timer = threading.Timer(limit_s, lambda: (stopped.set(), end(process)))
    timer.start()
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines += [line.strip()] if line.strip() else []
        process.wait()
    finally:
        timer.cancel()
        end(process)
        process.stdout.close()
    return None if stopped.is_set() else process.returncode, lines


def told_by(status, lines, plan, limit_s):
    """Return the outcome of a process and the line to show."""
    if status is None:
        return FAILED, f"stopped after {limit_s / 60:g} minutes"
    last = lines[-1] if lines else ""
    if status == LEFT_OUT:
        return OUT, last.removeprefix(REASON)
    if status:
        return FAILED, f"exit status {status}: {last}"
    missing = "; ".join(line for line in lines if line.startswith(REASON))
    headline = next((line for line in reversed(lines) if plan.headline in line), last)
    return DONE, f"{headline} ({missing})" if missing else headline


def run_one(script, plan, folder, *, long, limit_s):
    """Run a benchmark, or skip it."""
    if plan.long_only and not long:
        return Row(script.stem, OUT, 0.0, f"{plan.long_only}: make bench LONG=1 ONLY={script.stem}")
    arguments = [] if long else plan.short.split()
    if plan.models:
        shared = plan.models if data_folder() else "quickstart"
        arguments += ["--registry", str(folder / shared)]
    print(f"\n== {script.stem} {' '.join(arguments)}", flush=True)
    began_s = time.monotonic()
    status, lines = run([sys.executable, "-u", str(script), *arguments], limit_s)
    outcome, told = told_by(status, lines, plan, limit_s)
    return Row(script.stem, outcome, time.monotonic() - began_s, told)


def show(rows):
    """Print the table."""
    print(f"\n{'benchmark':22}{'outcome':10}{'minutes':>7}")
    for row in rows:
        print(f"{row.name:22}{row.outcome:10}{row.seconds / 60:7.1f}  {row.told[:150]}")
    counts = ", ".join(f"{sum(row.outcome == one for row in rows)} {one}" for one in (DONE, OUT, FAILED))
    print(f"{len(rows)} benchmarks in {sum(row.seconds for row in rows) / 60:.1f} minutes: {counts}")


def main(arguments=None, scripts=HERE):
    """Run the benchmarks of a folder; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--long", action="store_true", help="run every benchmark in full; takes hours")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these, for example bench_int8")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="stop each benchmark after this time")
    given = parser.parse_args(arguments)
    found = {path.stem: path for path in sorted(scripts.glob("bench_*.py"))}
    if unknown := set(given.only or ()) - set(found):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    limit_s = given.limit or (LONG_LIMIT_S if given.long else SHORT_LIMIT_S)
    rows, began_s = [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for name in given.only or found:
            if not given.long and time.monotonic() - began_s > BEGIN_WITHIN_S:
                rows.append(Row(name, OUT, 0.0, "not begun: eighty minutes had passed"))
                continue
            plan = PLANS.get(name, Plan())
            rows.append(run_one(found[name], plan, Path(folder), long=given.long, limit_s=limit_s))
    show(rows)
    return int(any(row.outcome == FAILED for row in rows))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # exits normally, which also stops the benchmark
    sys.exit(main())

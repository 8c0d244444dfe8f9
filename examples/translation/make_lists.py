"""Join systems' translations into n-best lists: one half of the segments to tune on, the other to test.

    python make_lists.py SYSTEM.txt …

The system with the highest chrF on the tuning half is the first candidate of every list.
"""

import sys
from pathlib import Path

from sacrebleu.metrics import CHRF


def lines(file: str) -> list[str]:
    """Return the lines of a file."""
    return Path(file).read_text(encoding="utf-8").splitlines()


references = lines("reference.txt")
systems = {Path(file).stem: lines(file) for file in sys.argv[1:]}
halves = {"tune": range(0, len(references), 2), "test": range(1, len(references), 2)}


def chrf(name: str) -> float:
    """Return the chrF of a system on the tuning half."""
    outputs = [systems[name][segment] for segment in halves["tune"]]
    return CHRF().corpus_score(outputs, [[references[segment] for segment in halves["tune"]]]).score


ordered = sorted(systems, key=chrf, reverse=True)
for half, segments in halves.items():
    candidates = [
        f"{number} ||| {systems[name][segment]} ||| \n"
        for number, segment in enumerate(segments)
        for name in ordered
    ]
    Path(f"{half}.nbest").write_text("".join(candidates), encoding="utf-8")
    answers = [f"{references[segment]}\n" for segment in segments]
    Path(f"{half}.refs").write_text("".join(answers), encoding="utf-8")

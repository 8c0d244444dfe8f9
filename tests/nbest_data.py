"""The public n-best lists: hypotheses, best first, and their references."""

import json
import lzma
from pathlib import Path
from typing import NamedTuple

RECOGNISED = ("common-voice", "librispeech-clean")


class Listed(NamedTuple):
    texts: list[str]
    reference: str


def recognised(data_dir: Path, name: str) -> list[Listed]:
    """Five hypotheses of a recogniser for each utterance, copies that fill a list up included."""
    entries = json.loads((data_dir / "nbest" / f"{name}.json").read_text())
    return [Listed(entry["input"], entry["output"]) for entry in entries]


def translated(data_dir: Path) -> list[Listed]:
    """Nine systems' translations of each segment."""
    with lzma.open(data_dir / "nbest" / "mt-de-en.jsonl.xz", "rt") as lines:
        entries = [json.loads(line) for line in lines]
    return [Listed([one["text"] for one in entry["candidates"]], entry["reference"]) for entry in entries]

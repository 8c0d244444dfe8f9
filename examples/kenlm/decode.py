"""Decode the output of a CTC recogniser with pyctcdecode and a language model served by Gramophone."""

import sys
from pathlib import Path

import numpy as np

import gramophone_client.kenlm

sys.modules["kenlm"] = gramophone_client.kenlm  # pyctcdecode imports kenlm

from pyctcdecode import build_ctcdecoder  # noqa: E402 - after the line above

LABELS = [*" abcdefghijklmnopqrstuvwxyz", ""]  # the last is CTC's blank
SAID = "the cat ate the ham"
HEARD = {"h": "c", "m": "n", "c": "h"}
"""Labels to which the recogniser gives a little more than to the right one."""


def recogniser_output(text: str) -> np.ndarray:
    """Return log-probabilities [frames, labels]: two frames per character, some of them in doubt."""
    frames = np.full((2 * len(text), len(LABELS)), 1e-3)
    for number, character in enumerate(text):
        frames[2 * number, LABELS.index(character)] = 0.45
        frames[2 * number, LABELS.index(HEARD.get(character, character))] += 0.5
        frames[2 * number + 1, -1] = 0.95
    return np.log(frames / frames.sum(axis=1, keepdims=True))


words = sorted(set(Path("corpus.txt").read_text(encoding="utf-8").split()))
logits = recogniser_output(SAID)
print("without:", build_ctcdecoder(LABELS).decode(logits))
model = build_ctcdecoder(LABELS, sys.argv[1], unigrams=words, alpha=0.7, beta=1.0)
print("with:   ", model.decode(logits))
print("score:  ", round(gramophone_client.kenlm.Model(sys.argv[1]).score(SAID), 3))

"""Recognise synthetic speech with PocketSphinx, and write what re-ranking needs.

    python recognise.py SENTENCES

Flite speaks sentences of Python's documentation. PocketSphinx recognises them with its own American English models.
Written are n-best lists, lattices, references, and the remaining sentences as training text.
"""

import math
import random
import re
import subprocess
import sys
import wave
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import islice
from pathlib import Path

from pocketsphinx import Decoder, get_model_path

from training.progress import Progress
from training.texts import read_default_corpus

VOICES = ("slt", "rms")
MAX_PATHS, MAX_HYPOTHESES = 2_000, 50
"""Paths of a lattice that are read, and different texts that are kept."""


def choose_sentences(count: int) -> tuple[list[str], list[str]]:
    """Return sentences of Python's documentation to be spoken, and the others: lower-case words without punctuation.

    Spoken sentences consist of 5 to 14 words of the recogniser's dictionary. No other sentence holds one of them.
    """
    corpus, _, _ = read_default_corpus(Progress())
    words = {text: " ".join(re.findall("[a-z']+", text.lower())) for text in corpus.sentences}
    dictionary = Path(get_model_path("en-us/cmudict-en-us.dict")).read_text(encoding="utf-8")
    known = {line.split()[0] for line in dictionary.splitlines()}
    plain = sorted({words[text] for text in words if re.fullmatch(r"[A-Z][a-z ,']+\.", text)})
    random.Random(1).shuffle(plain)
    spoken = [text for text in plain if 5 <= len(text.split()) <= 14 and known.issuperset(text.split())][
        :count
    ]
    others = [
        text for text in dict.fromkeys(words.values()) if text and not any(one in text for one in spoken)
    ]
    return spoken, others


@cache
def recogniser() -> Decoder:
    """Return the recogniser of this process."""
    return Decoder(loglevel="FATAL")


def recognise(text: str, voice: str, name: Path) -> dict[str, float]:
    """Speak a text, recognise it, and write its lattice.

    Args:
        text: words.
        voice: of Flite.
        name: file of the speech and of the lattice, without suffix.

    Returns:
        Hypotheses, best first, with natural logarithms of the recogniser's scores.
    """
    speech = name.with_suffix(".wav")
    subprocess.run(["flite", "-voice", voice, "-t", text, "-o", speech], check=True)
    with wave.open(str(speech)) as audio:
        samples = audio.readframes(audio.getnframes())
    decoder = recogniser()
    decoder.start_utt()
    decoder.process_raw(samples, full_utt=True)
    decoder.end_utt()
    decoder.get_lattice().write_htk(str(name.with_suffix(".slf")))
    scores: dict[str, float] = {}  # paths differ in times and pronunciations too
    for path in islice(decoder.nbest(), MAX_PATHS):
        if path and len(scores) < MAX_HYPOTHESES:
            scores.setdefault(path.hypstr, math.log(path.score))
    return scores


def write_part(part: str, references: list[str]) -> None:
    """Write `PART.nbest` (Moses' format), `PART.refs` and the folder `PART` of speech and lattices."""
    folder = Path(part)
    folder.mkdir(exist_ok=True)
    count = len(references)
    voices = [VOICES[number % len(VOICES)] for number in range(count)]
    names = [folder / f"{number:03}" for number in range(count)]
    with ProcessPoolExecutor() as processes:
        recognised = list(processes.map(recognise, references, voices, names))
    candidates = [
        f"{name.name} ||| {text} ||| score= {score:.4f}\n"
        for name, scores in zip(names, recognised, strict=True)
        for text, score in scores.items()
    ]
    Path(f"{part}.nbest").write_text("".join(candidates), encoding="utf-8")
    Path(f"{part}.refs").write_text("".join(f"{text}\n" for text in references), encoding="utf-8")


def main(count: int) -> None:
    """Write the parts `tune` and `test`, each of a number of sentences, and `lm.txt`."""
    spoken, others = choose_sentences(2 * count)
    write_part("tune", spoken[:count])
    write_part("test", spoken[count:])
    Path("lm.txt").write_text("".join(f"{text}\n" for text in others), encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]))

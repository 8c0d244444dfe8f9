"""The folder in which the README's commands are followed: a user's texts, lists and lattices, and some models."""

import contextlib
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys

import zstandard

from tests.system.readme import ROOT

WORDS = (*"abcdefgh", "the", "cat", "dog", "sat", "saw", "on", "near", "mat", "house", "and", "value", "list")
NUM_LISTS = 40
PATIENCE_S = 240

SLF = """VERSION=1.1
UTTERANCE=one
N=3 L=4
J=0 S=0 E=1 W=the a=-2 l=-1
J=1 S=0 E=1 W=a a=-1 l=-1
J=2 S=1 E=2 W=cat a=-1 l=-1
J=3 S=1 E=2 W=!NULL a=-2 l=-1
"""
KALDI = "one\n0 1 1 1,2,3\n0 1 2 1,1,3\n1 2 2 1,1,4\n2\n\n"
SYMBOLS = "<eps> 0\nthe 1\ncat 2\n"


def sentences(count, seed):
    """Random sentences of few words."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 12))) for _ in range(count)]


def furnish(folder, default_models):
    """Put in all that the README takes for granted.

    Args:
        folder: to be made.
        default_models: registry of the three that `quickstart` makes.
    """
    folder.mkdir()
    write_texts(folder)
    write_lists(folder)
    write_program(folder)
    registry = folder / "registry"
    shutil.copytree(default_models, registry)
    for number in ("2", "3"):
        shutil.copytree(registry / "lstm/versions/1", registry / "lstm/versions" / number)
    shutil.copytree(registry / "mixture", registry / "mine-mixed")
    settings = "--set tokenizer.kind=word --set ngram.order=3"
    call(folder, f"gramophone train ngram --corpus my.txt --name mine {settings}")
    call(folder, "gramophone models promote lstm@2 --alias candidate")
    call(folder, "gramophone models export-arpa mine lm.arpa.gz")
    (folder / "lm.arpa").write_bytes(gzip.decompress((folder / "lm.arpa.gz").read_bytes()))
    for name in ("lm", "speech"):
        shutil.copytree(registry / "mine", registry / name)


def write_texts(folder):
    """Texts of a user's own, packed too, and what a service of somebody else's is asked."""
    names = (
        "my.txt",
        "held-out.txt",
        "more.txt",
        "mine.txt",
        "valid.txt",
        "dev.txt",
        "test.txt",
        "my-page.txt",
    )
    for seed, name in enumerate(names):
        (folder / name).write_text("\n".join(sentences(300, seed)) + "\n", encoding="utf-8")
    (folder / "big.txt.zst").write_bytes(zstandard.compress((folder / "my.txt").read_bytes()))
    body = {"context": "Return the", "top_k": 3}
    (folder / "bodies.jsonl").write_text(f"{json.dumps(body)}\n" * 3, encoding="utf-8")


def write_lists(folder):
    """Lists in Moses' format whose references are either candidate by chance, and lattices of both kinds."""
    for seed, name in enumerate(("train", "test"), start=20):
        rng, lines, references = random.Random(seed), [], []
        for number, text in enumerate(sentences(NUM_LISTS, seed)):
            other = " ".join([*text.split()[:-1], rng.choice(WORDS)])
            lines += [f"{number} ||| {one} ||| am={rng.uniform(-9, -8):.3f} ||| " for one in (text, other)]
            references.append(rng.choice((text, other)))
        (folder / f"{name}.nbest").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / f"{name}.refs").write_text("\n".join(references) + "\n", encoding="utf-8")
    (folder / "lattices").mkdir()
    (folder / "lattices/one.slf.gz").write_bytes(gzip.compress(SLF.encode()))
    (folder / "lat.txt").write_text(KALDI, encoding="utf-8")
    (folder / "words.txt").write_text(SYMBOLS, encoding="utf-8")


def write_program(folder):
    """The Makefile, and an environment that seems to be installed already: its programs are those of the tests'."""
    programs = folder / ".venv/bin"
    programs.mkdir(parents=True)
    for name, module in (
        ("gramophone", "service.cli"),
        ("pip", "pip"),
        ("torchrun", "torch.distributed.run"),
    ):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
        (programs / name).chmod(0o755)
    (programs / "python").symlink_to(sys.executable)
    (programs / "activate").write_text("")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copyfile(ROOT / name, folder / name)
    (folder / ".venv/.serve").touch()


def environment(folder, **more):
    """What commands find set: the program on the path, none of our settings."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("GRAMOPHONE_")}  # noqa: TID251
    path = f"{folder / '.venv/bin'}:{ours['PATH']}"
    return {**ours, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "160", **more}


def call(folder, script, **more):
    """What a script prints; its errors stand in the failure."""
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment(folder, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=PATIENCE_S)
    finally:  # nothing that it started is left
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, f"{script}\n{output[-3000:]}\n{errors[-3000:]}"
    return output

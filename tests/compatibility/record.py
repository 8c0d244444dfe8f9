"""Make checkpoints and record their replies with another version's code.

Both are stored once and never change: today's code must load these checkpoints and answer as that version did.
Only sentences for people are edited in the stored replies, when their wording in the code changes.
Make them again only to cover more, such as a new family or endpoint, and then with the same version's code:

    git worktree add --detach ../old c6402de
    python -m tests.compatibility.record ../old               # records the replies of the stored checkpoints
    python -m tests.compatibility.record ../old --train       # trains and stores the checkpoints first

The environment needs the libraries of both versions. The other version is used only through its command line and
HTTP, so its module names do not matter. Training again gives other weights and therefore other replies.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.compatibility.checkpoints import (
    ALIAS,
    CALIBRATED,
    CHECKPOINTS,
    PROFILE,
    PROMOTED,
    TOKENIZERS,
    TUNED,
    Checkpoint,
    training_text,
)
from tests.compatibility.questions import Question, exact, in_float32, service_topics, topics_of
from tests.compatibility.replies import (
    ARCHIVE,
    REPLIES,
    Handles,
    Service,
    Stored,
    ask,
    path_of,
    rounded,
    write,
)

_TRAIN_LINES, _VALIDATION_LINES = 160, 40
_MIXTURE_RECIPE = 'family = "mixture"\n'
_PICTURES = (".png", ".html")
_FOLDERS = (".calibrations", ".profiles")
"""Registry folders besides its models."""

_LISTS = (
    ("The cat sat on the mat.", "The cat sad on the mat.", -3.0, -2.5),
    ("A dog ran to the river!", "A dock ran to the river!", -4.0, -3.8),
    ("The owl saw the house.", "The owl saw the horse.", -2.0, -2.2),
    ("A hen slept near the roof.", "A hen slept near the proof.", -5.0, -4.1),
    ("The old café painted the bed.", "The old calf painted the bed.", -6.0, -5.9),
    ("A cat ran to the station.", "A cat run to the station.", -3.3, -3.0),
)
"""The spoken text, the misrecognised text, and the acoustic scores of both."""

# one process, to load libraries and compile kernels once
_RUN_ALL = """
import json, sys
from service.cli import main
for arguments in json.load(sys.stdin):
    sys.argv = ["gramophone", *arguments]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
"""


def publish_all(tree: Path, folder: Path) -> None:
    """Publish every checkpoint into `registry` within a folder, with the commands of a version's source tree.

    Args:
        tree: the source tree.
        folder: empty folder; the commands run in it, so provenance names no folder of this machine.
    """
    (folder / "train.txt").write_text(training_text(_TRAIN_LINES, seed=3), encoding="utf-8")
    (folder / "valid.txt").write_text(training_text(_VALIDATION_LINES, seed=4), encoding="utf-8")
    (folder / "mixture.toml").write_text(_MIXTURE_RECIPE, encoding="utf-8")
    (folder / "lists.jsonl").write_text("".join(map(_line, _LISTS)), encoding="utf-8")
    (folder / "said.txt").write_text("".join(f"{right}\n" for right, *_ in _LISTS), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tree)}  # noqa: TID251 - for the child
    commands = json.dumps([[*command, "--registry", "registry"] for command in _commands()])
    subprocess.run(
        [sys.executable, "-c", _RUN_ALL], cwd=folder, env=environment, input=commands, text=True, check=True
    )


def pack(registry: Path) -> None:
    """Drop the pictures of most model cards and store the registry as the tests' archive."""
    for checkpoint in CHECKPOINTS:
        _drop_pictures(registry / checkpoint.name / "versions" / "1", checkpoint.keeps)
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for name in (*(checkpoint.name for checkpoint in CHECKPOINTS), *_FOLDERS):
            archive.add(registry / name, name, filter=_anonymous)


def _commands() -> Iterator[list[str]]:
    """Yield the arguments of each `gramophone` call."""
    yield from map(_training, CHECKPOINTS)
    for name in CALIBRATED:
        yield ["evaluate", name, "--task", "check", "--corpus", "valid.txt", "--save-calibration"]
    yield ["models", "promote", f"{PROMOTED}@1", "--alias", ALIAS]
    yield ["tune", TUNED, "lists.jsonl", "--references", "said.txt", "--max-p-value", "1", "--save", PROFILE]


def _line(heard: tuple[str, str, float, float]) -> str:
    """Return a list of candidates as JSON."""
    right, wrong, right_score, wrong_score = heard
    candidates = [
        {"text": wrong, "features": {"am": wrong_score}},
        {"text": right, "features": {"am": right_score}},
    ]
    return json.dumps({"candidates": candidates}, ensure_ascii=False) + "\n"


def _training(checkpoint: Checkpoint) -> list[str]:
    """Return the arguments that train a checkpoint."""
    recipe = "mixture.toml" if checkpoint.recipe == "mixture" else checkpoint.recipe
    settings = dict(checkpoint.settings)
    if checkpoint.recipe != "mixture":  # the models of a mixture have their own
        settings |= {f"tokenizer.{key}": value for key, value in TOKENIZERS[checkpoint.tokenizer].items()}
    assignments = [word for key, value in settings.items() for word in ("--set", f"{key}={_toml(value)}")]
    texts = ["--valid", "valid.txt"]
    if checkpoint.recipe != "mixture":  # the parts of mixtures are already trained
        texts += ["--corpus", "train.txt"]
    return ["train", recipe, "--name", checkpoint.name, *texts, *assignments]


def _toml(value: object) -> str:
    """Return a value as TOML, which is the same as JSON for these values."""
    return json.dumps(value, ensure_ascii=False)


def _drop_pictures(directory: Path, keeps: tuple[str, ...]) -> None:
    """Delete pictures and reports of a checkpoint and of its parts, and remove them from the manifests."""
    for manifest in sorted(directory.rglob("manifest.json"), key=lambda path: -len(path.parts)):
        fields = json.loads(manifest.read_bytes())
        del fields["checksum"]
        files = {}
        for name in fields["files"]:
            path = manifest.parent / name
            if name.endswith(_PICTURES) and not name.endswith(keeps):
                path.unlink(missing_ok=True)
            else:  # the manifest of a part has changed
                content = path.read_bytes()
                files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        fields["files"] = files
        fields["checksum"] = hashlib.sha256(_canonical(fields)).hexdigest()
        manifest.chmod(0o644)
        manifest.write_bytes(_canonical(fields))


def _canonical(fields: dict[str, object]) -> bytes:
    return (json.dumps(fields, indent=1, sort_keys=True) + "\n").encode()


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove owner and time from an entry, so packing the same files gives the same archive."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() else 0o644
    return entry


def record(tree: Path, temporary: Path) -> None:
    """Record the replies of the stored checkpoints with the code of a source tree."""
    for precision, checkpoints in {"int8": exact(), "float32": in_float32()}.items():
        folder = REPLIES / precision
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        asked = {checkpoint.name: topics_of(checkpoint, precision) for checkpoint in checkpoints}
        if precision == "int8":
            asked["service"] = service_topics()
        work = temporary / precision
        work.mkdir()
        with contextlib.closing(Service(tree, work, checkpoints, precision)) as service:
            for name, topics in asked.items():
                replies = {topic: _replies(service, questions) for topic, questions in topics.items()}
                if precision == "float32":
                    replies = {topic: list(map(rounded, given)) for topic, given in replies.items()}
                write(path_of(folder, name), replies)
            if precision == "int8":
                _check_complete(service, asked.values())


def _check_complete(service: Service, asked: Iterable[dict[str, list[Question]]]) -> None:
    """Check that the requests cover every endpoint of the service."""
    questions = [question for topics in asked for some in topics.values() for question in some]
    documented = service.client.get("/openapi.json").json()["paths"]
    for path, operations in documented.items():
        pattern = re.compile(re.sub(r"\{\w+\}", "[^/?]+", path) + r"(\?.*)?")
        for method in operations:
            found = any(
                question.method == method.upper() and pattern.fullmatch(question.path)
                for question in questions
            )
            assert found, f"no question asks {method.upper()} {path}"


def _replies(service: Service, questions: Sequence[Question]) -> list[Stored]:
    """Return the replies to the requests of a topic."""
    handles = Handles()
    return [ask(service.client, question, handles) for question in questions]


def main() -> None:
    """Read the command line, and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tree", type=Path, help="source tree of the version to record")
    parser.add_argument("--train", action="store_true", help="train and store the checkpoints first")
    options = parser.parse_args()
    tree = options.tree.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if options.train:
            publish_all(tree, folder)
            pack(folder / "registry")
        record(tree, folder)


if __name__ == "__main__":
    main()

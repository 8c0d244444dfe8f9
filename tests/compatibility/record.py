"""Make checkpoints and record their replies with another version's code.

Both are stored once and stay as they are: today's code must load these checkpoints and answer as that version did.
They are made again only to cover more, such as a new family or endpoint, and then by the same version's code:

    git worktree add --detach ../old c6402de
    python -m tests.compatibility.record ../old               # records the replies of the stored checkpoints
    python -m tests.compatibility.record ../old --train       # trains and stores the checkpoints first

The environment needs the libraries of both versions. The other version is used by its command line and over HTTP
only, so that it does not matter how its modules are named. Training again gives other weights, hence other replies.
"""

import argparse
import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.compatibility.folders import REPLIES
from tests.compatibility.publish import pack, publish_all
from tests.compatibility.questions import Question, exact, in_float32, service_topics, topics_of
from tests.compatibility.replies import Handles, Stored, ask, path_of, rounded, write
from tests.compatibility.service import Service


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
    """Check that every endpoint of the service was asked."""
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
    """The replies to the questions of a topic."""
    handles = Handles()
    return [ask(service.client, question, handles) for question in questions]


def main() -> None:
    """Read the command line, and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tree", type=Path, help="source tree of the version that is recorded")
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

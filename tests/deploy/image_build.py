"""The image's build, replayed without a container engine: a folder replaces the root of the file system.

Stages before the last run unchanged, on top of one another, since each continues from the one before. Of the last stage
only copies and environment are replayed; its users and volumes need an engine.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import NamedTuple

from tests.deploy.tools import PATH, ROOT

DOCKERFILE = ROOT / "deploy/Dockerfile"
_PLACES = re.compile(r"(?<![\w.])/(opt|tmp|src|registry)\b")


class Instruction(NamedTuple):
    """Instruction of a Dockerfile, such as `COPY a b`."""

    name: str
    arguments: str


def stages(text):
    """Return the instructions of each stage, `FROM` first; instructions before the first are omitted."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    whole = re.sub(r"\\\n\s*", " ", lines).splitlines()
    found = []
    for name, _, arguments in (line.partition(" ") for line in whole if line.strip()):
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append(Instruction(name, arguments.strip()))
    return found


def environment(instructions, root=None):
    """Return the variables that `ENV` sets, with the image's paths moved below a root."""
    text = " ".join(each.arguments for each in instructions if each.name == "ENV")
    values = dict(re.findall(r"(\w+)=(\S+)", text))
    return {name: _below(root, value) if root else value for name, value in values.items()}


def command(instructions, name):
    """Return the words of an instruction in list form, such as `CMD`."""
    (found,) = [each.arguments for each in instructions if each.name == name]
    return json.loads(found[found.index("[") :])


def replay(root):
    """Build the image below a folder."""
    *building, last = stages(DOCKERFILE.read_text())
    work = root / "src"
    work.mkdir(parents=True)
    for each in (each for stage in building for each in stage):
        if each.name == "COPY":
            *sources, target = each.arguments.split()
            for source in sources:
                _copy_from_context(
                    source, work / target / (PurePosixPath(source).name if len(sources) > 1 else "")
                )
        elif each.name == "RUN":
            _run(_below(root, each.arguments), work)
    for each in last:
        if each.name == "COPY":
            _stage, source, target = each.arguments.split()
            if source != target:
                shutil.copytree(_below(root, source), _below(root, target), dirs_exist_ok=True)


def _run(line, folder):
    """Run a line of the build, and kill the processes it leaves."""
    environment = {**_PARENTS, "VARIANT": "cpu"}
    process = subprocess.Popen(["bash", "-ec", line], cwd=folder, env=environment, start_new_session=True)
    try:
        assert process.wait() == 0, f"RUN {line}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def is_sent(path, patterns):
    """True if a file of the working tree is in the build context: the last matching pattern decides."""
    sent = True
    for pattern in patterns:
        bare = pattern.removeprefix("!")
        parts = [str(path), *map(str, path.parents)]
        if any(fnmatch(part, bare) or fnmatch(f"/{part}", bare.replace("**/", "*/")) for part in parts):
            sent = pattern.startswith("!")
    return sent


def ignored():
    """Return the patterns of .dockerignore."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _copy_from_context(source, target):
    patterns = ignored()
    found = [ROOT / source] if (ROOT / source).is_file() else (ROOT / source).rglob("*")
    files = [file for file in found if file.is_file() and is_sent(file.relative_to(ROOT), patterns)]
    assert files, f"COPY {source}: nothing of it is in the build's context"
    for file in files:
        place = target if file == ROOT / source else target / file.relative_to(ROOT / source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, place)


def _below(root, text):
    return _PLACES.sub(lambda place: f"{root}/{place.group(1)}", text)


def _parents_environment():
    ours = ("GRAMOPHONE_", "NUMBA_", "PYTHON")
    return {key: value for key, value in os.environ.items() if not key.startswith(ours)} | {"PATH": PATH}  # noqa: TID251


_PARENTS = _parents_environment()

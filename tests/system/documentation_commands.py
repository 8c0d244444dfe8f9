"""Execution of the documentation's blocks.

What is run differently and why, the folder of a page, and the comparison of output shapes.
"""

import contextlib
import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from functools import cache

import zstandard

from tests.system.documentation import ADDRESS, README, ROOT, RUNBOOK, SERVE

COUNT_VARIES = {
    "issues",
    "suggestions",
    "text_offset",
    "token_ids",
    "token_logprobs",
    "tokens",
    "top_logprobs",
}
"""Lists that are longer or shorter with another model, but hold the same kind of thing."""

KEYS_ARE_TEXTS = {"top_logprobs"}
"""Names of objects whose keys are tokens."""

NUMBER = r"[-+]?[\d.,]*\d(?:e[-+]?\d+)?|-(?=\s|$)"


def differences(shown, given, place="reply"):
    """Where JSON differs in shape from what is shown, each in a line."""
    if kind(shown) != kind(given):
        yield f"{place} is {kind(given)}, shown as {kind(shown)}"
    elif isinstance(shown, dict):
        yield from differences_of_objects(shown, given, place)
    elif isinstance(shown, list):
        yield from differences_of_lists(shown, given, place)


def kind(value):
    """What JSON calls a value; whole and broken numbers are told apart."""
    return type(value).__name__


def differences_of_objects(shown, given, place):
    name = place.rpartition(".")[2].partition("[")[0]
    if name in KEYS_ARE_TEXTS:
        shown, given = ({str(i): v for i, v in enumerate(one.values())} for one in (shown, given))
    if list(shown) != list(given):
        yield f"{place} has {list(given)}, shown are {list(shown)}"
    for key in shown.keys() & given.keys():
        yield from differences(shown[key], given[key], f"{place}.{key}")


def differences_of_lists(shown, given, place):
    varies = place.rpartition(".")[2] in COUNT_VARIES
    if varies and bool(shown) != bool(given):
        yield f"{place} has {len(given)} items, shown are {len(shown)}"
    if not varies and len(shown) != len(given):
        yield f"{place} has {len(given)} items, shown are {len(shown)}"
    for number, (one, other) in enumerate(zip(shown, given, strict=False)):
        yield from differences(one, other, f"{place}[{number}]")


def first_unlike_line(shown, given):
    """The first line shown that the output lacks at its place, or None; a line of … stands for any others."""
    lines, may_skip = iter([line for line in given.splitlines() if line.strip()]), False
    for wanted in filter(str.strip, shown.splitlines()):
        if wanted.strip() == "…":
            may_skip = True
            continue
        found = next((line for line in lines if not may_skip or alike(wanted, line)), None)
        if found is None or not alike(wanted, found):
            return f"shown: {wanted}\ngiven: {found}"
        may_skip = False
    return None


def alike(shown, given):
    """Whether a line has the shape of one shown: JSON by its shape, all else but for numbers and spaces."""
    start = "data: " * shown.startswith("data: ")
    try:
        wanted = json.loads(shown.removeprefix(start))
    except ValueError:
        return bool(re.fullmatch(pattern(shown), given.strip()))
    return not list(differences(wanted, json.loads(given.removeprefix(start))))


def pattern(line):
    """A regular expression for a line of text, in which any number stands for another and … for any text."""
    pieces = re.split(rf"({NUMBER}|…|\s+)", line.strip())
    meant = {"…": ".*"}
    return "".join(
        f"(?:{NUMBER})"
        if re.fullmatch(NUMBER, piece)
        else r"\s+"
        if piece.isspace()
        else meant.get(piece, re.escape(piece))
        for piece in pieces
    )


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
    """Fill a folder with the texts, lists and models that the README, the runbook and some guides take for granted.

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
    """Write the Makefile, and an environment that seems to be installed: its programs are those of the tests."""
    programs = folder / ".venv/bin"
    programs.mkdir(parents=True)
    for name, options in (
        ("gramophone", "-m service.cli"),
        ("pip", "-m pip"),
        ("torchrun", "-m torch.distributed.run"),
        ("python", ""),
        ("sacrebleu", "-m sacrebleu"),
    ):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {options} "$@"\n')
        (programs / name).chmod(0o755)
    (programs / "activate").write_text("")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copyfile(ROOT / name, folder / name)
    (folder / "clients").symlink_to(ROOT / "clients")
    (folder / ".venv/.serve").touch()


def environment(programs, **more):
    """Return the variables that commands find set: programs on the path, none of our settings."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("GRAMOPHONE_")}  # noqa: TID251
    ours |= {"PATH": f"{programs}:{ours['PATH']}", "PYTHONPATH": f"{ROOT}:{ROOT / 'clients/python'}"}
    return {**ours, "COLUMNS": "160", **more}


def call(folder, script, *, programs=None, **more):
    """Return what a script prints; its errors stand in the failure.

    Args:
        folder: working directory.
        script: of bash.
        programs: folder of `gramophone`, `python`, …; None for that of a furnished folder.
        more: further variables.
    """
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment(programs or folder / ".venv/bin", **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        errors += f"\nnot done after {PATIENCE_S} s"
    finally:  # nothing that it started is left
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, f"{script.removeprefix(PRELUDE)}\n{output[-3000:]}\n{errors[-3000:]}"
    return output


NOT_RUN = {
    "make test": "it is what runs the tests",
    "kubectl ": "there is no cluster; tests/deploy/test_kubernetes_*.py check what it would apply",
    "in_trainer": "likewise; tests/deploy/test_runbook.py runs this function on what stands in for a cluster",
    "python tests/benchmarks/bench_capacity.py": "it measures for minutes",
}
"""Beginnings of commands that are left out of the README's and the runbook's blocks, and why."""

OTHERWISE = (
    (r"make run", "briefly make run", "it serves until it is stopped"),
    (r"(?<!serve_on )gramophone serve", "briefly gramophone serve", "likewise"),
    (
        r"train (lstm|gru|mixture|cpu-30min|taught\.toml) ",
        r"train \1 $SMALL ",
        "trained for minutes, models are better",
    ),
    (r"train finetune ", "train finetune --set train.max_steps=4 ", "likewise"),
    (r"--task (autocomplete|check)", r"--task \1 --sample 50", "thousands of words are looked at"),
    (r"recognise.py \d+", "recognise.py 20", "seconds of speech instead of minutes"),
    (r"sacrebleu -t wmt22 -l de-en --echo", "translations", "the data folder has what it would download"),
    (r"ADDRESS", "$URL", "a port that is free"),
    (r"http://127\.0\.0\.1:9000/predict", "$URL/v1/next-token", "somebody else's service"),
    (r"https://lm\.example\.org/v1", "$URL/v1", "likewise"),
    (r"--model NAME --key KEY", "--model mixture --key none", "what is to be put in"),
    (r"--rate \d+", "--rate 20", "what slow machines keep up with"),
    (r"--duration 30s", "", "half a second is measured instead"),
    (r"gramophone bench", "gramophone bench --warmup 0s --duration 500ms", "likewise"),
    (r"https://objects\.example\.org", "$AWS_ENDPOINT_URL", "a store of the tests' own"),
    (r"AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=…", "AWS_REGION=us-east-1", "its keys are set already"),
    (r"s3://models/registry", "$BUCKET/registry", "a bucket of the tests' own"),
    (
        r"s3://gramophone-models/registry|REGISTRY$|(?<=--registry )REGISTRY",
        "registry",
        "the README's is in a bucket",
    ),
    (r"FIRST --master-port 29500", "127.0.0.1 --master-port $PORT", "both machines are this one"),
    (r"(--node-rank 0 .*\\\n.*)", r"\1 & first=$!", "both at once"),
    (r"(--node-rank 1 .*\\\n.*)", r"\1; wait $first", "likewise"),
)
"""What is put instead of what (regular expressions), and why."""

VERDICT = (r"Keep the first pass: (.*), which .*", r"…: \1…", "it depends on the lists")
"""What of the output shown is put in another way, and why."""

BEFORE = {
    "python decode.py": "export PYTHONPATH=$PYTHONPATH:$(python -c '"
    'import sys; from tests.contract.decoders import importable; importable("pyctcdecode", "pygtrie"); '
    """print(":".join(sys.path[-2:]))')""",
    "admin/models": "serve_with_key",
    "kubectl config set-context": "serve_with_key",
    "models restore": "cp -r registry BACKUP",
    "models verify": "find registry -mindepth 1 -maxdepth 1 ! -name mine -exec rm -r {} +",
    "npm ci": f"mkdir -p path/to/gramophone/clients && cp -r {ROOT}/clients/typescript path/to/gramophone/clients",
    "lstm@4 --corpus held-out.txt": "cp -r registry/lstm/versions/3 registry/lstm/versions/4",
}
"""What has been done before a block that holds this."""

NEED_DATA = frozenset({ROOT / "examples/translation/README.md"})
"""Pages about texts of the public data folder."""

INDEPENDENT = frozenset({README, RUNBOOK})
"""Documents of blocks that do not follow one another: each runs in a furnished folder of its own."""

FURNISHED = frozenset({ROOT / "docs/index.md", ROOT / "examples/web/README.md"})
"""Pages that take texts, a Makefile and models for granted; other examples have their own files, other pages none."""

PRELUDE = r"""
SMALL='--set train.max_steps=4 --set neural.hidden_size=16 --set neural.embedding_size=16'
curl() { command curl -sS --fail-with-body "$@"; }
translations() {  # of WMT 2022: a system's, or the references
  python -c 'import json, lzma, sys
for one in map(json.loads, lzma.open(sys.argv[2])):
    texts = {name: told["text"] for told in one["candidates"] for name in told["features"]}
    texts["system:ref:A"] = one["reference"]
    print(texts["system:" + sys.argv[1]])' "$1" "$DATA/nbest/mt-de-en.jsonl.xz"
}
answers() {  # once it does; an error if the process has ended
  until command curl -sf -o /dev/null "http://127.0.0.1:$PORT/health/ready"; do kill -0 "$1"; sleep 0.1; done
}
briefly() {  # a command that serves: until it is ready
  GRAMOPHONE_PORT=$PORT "$@" & local service=$!
  answers $service
  kill $service
  wait $service || true
}
leave() {  # ends the service that an earlier block of the page started
  if [[ -f .service ]]; then kill -TERM "$(cat .service)" || true; tail --pid="$(cat .service)" -f /dev/null; fi
}
serve_on() {  # for the rest of the page: other blocks run in other processes
  leave
  GRAMOPHONE_PORT=$PORT setsid "$@" > .service.log 2>&1 & echo $! > .service
  answers $! || { cat .service.log >&2; exit 1; }
}
serve_with_key() {  # for the rest of the script; there is a version 4 to move to
  [[ -e registry/lstm/versions/4 ]] || cp -r registry/lstm/versions/3 registry/lstm/versions/4
  gramophone keys create --name operator --scopes infer,admin > keys 2> key
  KEY=$(sed 's/.*: //' key)
  leave
  GRAMOPHONE_API_KEYS_FILE=keys GRAMOPHONE_PORT=$PORT gramophone serve & local service=$!
  URL=http://127.0.0.1:$PORT
  trap "kill $service" EXIT
  answers $service
}
"""


def commands(script):
    """A script cut where a command is complete: continued lines, loops and functions stay whole."""
    pending = ""
    for line in script.splitlines():
        pending += line
        if not line.endswith("\\") and is_complete(pending):
            yield pending
            pending = ""
        else:
            pending += "\n"
    assert not pending, f"this is no shell: {pending}"


@cache
def is_complete(script):
    looked_at = subprocess.run(["bash", "-n"], input=script.encode(), capture_output=True, check=False)
    return looked_at.returncode == 0


def reason_not_run(command):
    """Return why a command is left out, or None."""
    return next((why for start, why in NOT_RUN.items() if command.startswith(start)), None)


def said_otherwise(command):
    """A command as the test runs it."""
    for old, new, _ in OTHERWISE:
        command = re.sub(old.replace("ADDRESS", re.escape(ADDRESS)), new, command, flags=re.MULTILINE)
    return command


def shown(block):
    """What a block's output is compared with."""
    return re.sub(VERDICT[0], VERDICT[1], block.shown)


def script(block):
    """Return what is run for a block of shell; empty if nothing of it is."""
    independent = block.document in INDEPENDENT
    kept = [one for one in commands(block.text) if not independent or reason_not_run(one) is None]
    if not any(line and not line.startswith("#") for line in kept):
        return ""
    if not independent:
        kept = [
            re.sub(SERVE, lambda line: line[0].replace("gramophone serve", "serve_on gramophone serve"), one)
            for one in kept
        ]
    before = [todo for text, todo in BEFORE.items() if text in block.text]
    return "\n".join([PRELUDE, *before, *map(said_otherwise, kept)])

"""How shell blocks of the README and the runbook are run: what is left out, what is said otherwise, and why."""

import re
import subprocess
from functools import cache

from tests.system.readme import ADDRESS, README, RUNBOOK, blocks

NOT_RUN = {
    "make test": "it is what runs the tests",
    "lm_eval ": "it downloads data sets; tests/system/test_lm_eval.py asks the same with texts of its own",
    "docker compose ": "there is no engine; tests/deploy/test_compose.py checks the file, test_image.py the image",
    "GRAMOPHONE_METRICS_KEY_FILE=./metrics-key docker compose ": "likewise",
    "kubectl ": "there is no cluster; tests/deploy/test_kubernetes_*.py check what it would apply",
    "in_trainer": "likewise; tests/deploy/test_runbook.py runs this function on what stands in for a cluster",
    "torchrun --nnodes 2 --node-rank 0 --nproc-per-node 1 --master-addr FIRST --master-port 29500 \\\n  -m": (
        "the README's block is run: the runbook says the same"
    ),
    "torchrun --nnodes 2 --node-rank 1 --nproc-per-node 1 --master-addr FIRST --master-port 29500 \\\n  -m": (
        "likewise"
    ),
    "python tests/benchmarks/bench_capacity.py": "it measures for minutes",
}
"""Beginnings of commands that are left out, and why."""

OTHERWISE = (
    (r"make run", "briefly make run", "it serves until it is stopped"),
    (r"gramophone serve", "briefly gramophone serve", "likewise"),
    (r"train (lstm|gru|mixture|cpu-30min) ", r"train \1 $SMALL ", "trained for minutes, models are better"),
    (r"--task (autocomplete|check)", r"--task \1 --sample 50", "thousands of words are looked at"),
    (r"ADDRESS", "$URL", "a port that is free"),
    (r"http://127\.0\.0\.1:9000/predict", "$URL/v1/next-token", "somebody else's service"),
    (r"https://lm\.example\.org/v1", "$URL/v1", "likewise"),
    (r"--model NAME --key KEY", "--model mixture --key none", "what is to be put in"),
    (r"--rate [\d,]+", "--rate 20,30,40", "what slow machines keep up with"),
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
    "admin/models": "serve_with_key",
    "kubectl config set-context": "serve_with_key",
    "models restore": "cp -r registry BACKUP",
    "models verify": "find registry -mindepth 1 -maxdepth 1 ! -name mine -exec rm -r {} +",
    "lstm@4 --corpus held-out.txt": "cp -r registry/lstm/versions/3 registry/lstm/versions/4",
}
"""What has been done before a block that holds this."""

PRELUDE = r"""
SMALL='--set train.max_steps=4 --set neural.hidden_size=16 --set neural.embedding_size=16'
curl() { command curl -sS --fail-with-body "$@"; }
answers() {  # once it does; an error if the process has ended
  until command curl -sf -o /dev/null "http://127.0.0.1:$PORT/health/ready"; do kill -0 "$1"; sleep 0.1; done
}
briefly() {  # a command that serves: until it is ready
  GRAMOPHONE_PORT=$PORT "$@" & local service=$!
  answers $service
  kill $service
  wait $service || true
}
serve_with_key() {  # for the rest of the script; there is a version 4 to move to
  cp -r registry/lstm/versions/3 registry/lstm/versions/4
  gramophone keys create --name operator --scopes infer,admin > keys 2> key
  KEY=$(sed 's/.*: //' key)
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
    """Why a command is left out, or None."""
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
    """What is run for a block; empty if nothing of it is."""
    kept = [said_otherwise(one) for one in commands(block.text) if reason_not_run(one) is None]
    if not any(line and not line.startswith("#") for line in kept):
        return ""
    before = [todo for text, todo in BEFORE.items() if text in block.text]
    return "\n".join([PRELUDE, *before, *kept])


SHELL_BLOCKS = [
    block
    for document in (README, RUNBOOK)
    for block in blocks(document)
    if block.language == "sh" and not block.is_request
]

"""lm-evaluation-harness against a running service: its figures equal those of offline evaluation."""

import contextlib
import json
import math
import os
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

from gramophone_client import Client
from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.language_model import score_sequences
from service.settings import Settings
from tests.support.pretrained import write_folder
from tests.support.services import running
from training.commands import run_evaluate, run_train
from training.publish import run_import_hf

pytestmark = pytest.mark.long
NOUNS, PLACES = ("cat", "dog", "owl", "hen", "naïve café"), ("mat", "bed", "sofa", "roof")
TRAIN = [
    f"The {noun} sat on the {place}, and {number} slept."
    for number in range(9)
    for noun in NOUNS
    for place in PLACES
]
DOCUMENTS = [
    "\n".join(["The cat sat on the roof.", "An owl slept, unseen.", "<s> is not the start </s>"] * 20),
    "the naïve  café  漢",
    "The dog sat on the mat, and 3 slept.",
]
QUESTIONS = [
    {"query": "The cat sat on the", "choices": [" mat", " zebra", " roof, and"], "gold": 0},
    {"query": "The owl sat on", "choices": [" the bed, and 5 slept.", " owl", " the"], "gold": 1},
    {"query": "The hen", "choices": [" slept", " sat"], "gold": 1},
]
MAX_LENGTH = 130  # the first document has several windows
HARNESS = """
import functools, json, sys
import lm_eval
from lm_eval.__main__ import cli_evaluate

# its standard errors, which nobody looks at here, take longer than all else
lm_eval.simple_evaluate = functools.partial(lm_eval.simple_evaluate, bootstrap_iters=0)
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    cli_evaluate()
"""
TASKS = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
"""
ROLLING = """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{page}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
"""
CHOICES = """
output_type: multiple_choice
doc_to_text: "{{query}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
target_delimiter: ""
metric_list: [{metric: acc}]
"""


class Case(NamedTuple):
    """Training and tokenizer options of a model."""

    tokenizer: list[str]
    backend: str


MODELS = {
    "ngram": Case(["tokenizer.kind=bpe", "tokenizer.vocab_size=300"], "auto"),
    "lstm": Case(["tokenizer.kind=unigram", "tokenizer.vocab_size=294"], "remote"),
    "mixture": Case(["tokenizer.kind=word"], "remote"),
    "pretrained": Case([], "remote"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Train models; write documents and tasks."""
    folder = tmp_path_factory.mktemp("harness")
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(TRAIN))
    for number, document in enumerate(DOCUMENTS):
        (folder / f"document-{number}.txt").write_text(document)
    write_task(folder, "documents", ROLLING, [{"page": document} for document in DOCUMENTS])
    write_task(folder, "choices", CHOICES, QUESTIONS)
    write_folder("gpt2", folder / "pretrained")
    run_import_hf(folder / "pretrained", name="pretrained", registry=folder / "registry")
    for name, case in MODELS.items():
        if name == "pretrained":
            continue
        settings = [*case.tokenizer, "ngram.order=3", "train.max_steps=4"]
        settings += [
            "neural.hidden_size=24",
            "neural.embedding_size=24",
            "train.batch_size=4",
            "train.bptt_length=8",
        ]
        run_train(name, name=name, registry=folder / "registry", corpus=[corpus], assignments=settings)
    return folder


def write_task(folder, name, task, rows):
    data = folder / f"{name}.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in rows))
    tasks = folder / "tasks"
    tasks.mkdir(exist_ok=True)
    (tasks / f"{name}.yaml").write_text(TASKS.format(name=name, data=data) + task)


@pytest.fixture(scope="module")
def harness(folder):
    """Run the harness on each model: figures by task, and samples by task."""
    with contextlib.ExitStack() as services:
        # one service per model: the harness names no model in token requests, so it gets the default's
        settings = [Settings(registry=folder / "registry", models=(model,)) for model in MODELS]
        urls = [services.enter_context(running(each)).url for each in settings]
        _run_harness(
            [_arguments(folder, url, model) for url, model in zip(urls, MODELS, strict=True)], folder
        )
    return {model: _read_output(folder / "out" / model) for model in MODELS}


def _arguments(folder, url, model):
    """Return the arguments of `lm_eval`."""
    arguments = {
        "model": model,
        "base_url": f"{url}/v1/completions",
        "tokenizer_backend": MODELS[model].backend,
        "max_length": MAX_LENGTH,
        "custom_prefix_token_id": 1,
    }
    given = ["--model", "local-completions", "--log_samples"]
    given += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    given += ["--tasks", "documents,choices", "--include_path", str(folder / "tasks")]
    return [*given, "--output_path", str(folder / "out" / model)]


def _run_harness(calls, folder):
    """Run the harness several times in one process: starting it takes longer than all its requests here."""
    offline = {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    environment = {**os.environ, **offline, "TOKENIZERS_PARALLELISM": "false"}  # noqa: TID251 - tests are no part of the service
    done = subprocess.run(
        [sys.executable, "-c", HARNESS, json.dumps(calls)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def _read_output(folder):
    (results,) = folder.rglob("results_*.json")
    samples = {
        task: [json.loads(line) for line in next(folder.rglob(f"samples_{task}_*")).read_text().splitlines()]
        for task in ("documents", "choices")
    }
    return json.loads(results.read_text())["results"], samples


@pytest.mark.parametrize("model", MODELS)
def test_its_perplexity_is_that_of_evaluation_by_documents(harness, folder, model):
    results, samples = harness[model]
    total = words = size = 0
    for number, document in enumerate(DOCUMENTS):
        offline = run_evaluate(
            model,
            corpus=[folder / f"document-{number}.txt"],
            registry=folder / "registry",
            context="document",
            unit="line",
            window=MAX_LENGTH - 2,
            device="cpu",
        )
        (own,) = (s["filtered_resps"][0] for s in samples["documents"] if s["doc_id"] == number)
        assert float(own) / offline["tokens"] == pytest.approx(
            offline["logprob"] / offline["tokens"], abs=1e-4
        )
        total, words = total + offline["logprob"], words + len(document.split())
        size += len(document.encode())
    figures = results["documents"]
    assert math.log(figures["byte_perplexity,none"]) == pytest.approx(-total / size, abs=1e-4)
    assert figures["bits_per_byte,none"] == pytest.approx(-total / size / math.log(2), abs=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_its_choices_are_scored_as_they_are_offline(harness, folder, model):
    results, samples = harness[model]
    checkpoint = load_checkpoint(LocalRegistry(folder / "registry").resolve(model).path)
    right = 0
    for sample in samples["choices"]:
        question = QUESTIONS[sample["doc_id"]]
        query = checkpoint.tokenizer.encode(question["query"])
        sums, greedy = [], []
        for choice in question["choices"]:
            ids = np.array(checkpoint.tokenizer.encode(question["query"] + choice))
            state = checkpoint.model.empty_state(1)  # the harness sends the question's ids, without `<s>`
            scores = score_sequences(checkpoint.model, state, ids[None], np.array([len(ids)]))[0]
            sums.append(float(scores[len(query) :].sum(dtype=float)))
            greedy.append(
                all(_is_greedy(checkpoint.model, ids, place) for place in range(len(query), len(ids)))
            )
        told = [(float(logprob), flag) for logprob, flag in sample["filtered_resps"]]
        assert [logprob for logprob, _ in told] == pytest.approx(sums, abs=1e-4)
        assert [flag in {True, "True"} for _, flag in told] == greedy
        right += int(np.argmax(sums)) == question["gold"]
    assert results["choices"]["acc,none"] == pytest.approx(right / len(QUESTIONS))


def _is_greedy(model, ids, place):
    """True if the token at a position is the most probable one."""
    state = model.empty_state(1)
    for token in ids[:place]:
        state = model.advance(state, np.array([token]))
    row = np.asarray(model.next_log_probs(state))[0]
    return row[ids[place]] == row.max()


def test_sentences_are_documents_without_their_ends(harness, folder):
    """The harness predicts no `</s>`; /v1/score can omit it too."""
    _, samples = harness["mixture"]
    settings = Settings(registry=folder / "registry", models=("mixture",))
    with running(settings) as server, Client(server.url) as client:
        for number in (1, 2):
            (own,) = (s["filtered_resps"][0] for s in samples["documents"] if s["doc_id"] == number)
            (scored,) = client.score([DOCUMENTS[number]], model="mixture", eos=False).results
            assert float(own) == pytest.approx(scored.logprob, abs=1e-4 * scored.num_tokens)

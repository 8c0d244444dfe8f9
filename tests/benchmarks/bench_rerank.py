"""Re-ranking 1,000 lists of 100 candidates in one JSONL request: an n-gram model, and an LSTM beside a torch loop.

With the public data, the n-gram model also with corrections that were learnt from the recogniser's lists, in one
request and in a request a list.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_rerank.py [--lists 1000] [--neural-lists 20] [--rounds 5]

The lists are derived from the hypotheses of data/nbest (without the public data: from Python's documentation) by word
substitutions and deletions with a fixed seed. The torch loop has the same weights and scores one list after the other
as one padded batch; it runs alone in a process of its own, and the service shares the machine with its client.
Rounds alternate: read the ratios. Nothing is written outside a temporary folder.
"""

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from peers.network import Network as TorchNetwork
from preparation import GRAMOPHONE, QUIET, data_folder, free_port, lists_of_variants, train, wait_until_ready

from models.calls import run_to_completion
from models.checkpoint.load import CheckpointDescription, load_checkpoint, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.language_model import EOS, Vocabulary
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.reranking.formats.reader import read_lists
from models.reranking.ranking import Profile, ProfileStore
from models.reranking.tuning.correction_estimation import count_corrections, learn_corrections
from models.tokenizers import WordTokenizer

CANDIDATES = 100
VOCAB_SIZE, LAYERS, HIDDEN = 16_000, 2, 512
LINES = "application/x-ndjson"
RECOGNISED = ("common-voice.json", "librispeech-clean.json")


def hypotheses(data):
    """Return the recognisers' lists as words; without data, sentences of the documentation with variants."""
    if data is None:
        yield from ([text.split() for text in texts] for texts in lists_of_variants())
        return
    for name in RECOGNISED:
        for one in json.loads((data / "nbest" / name).read_text(encoding="utf-8")):
            yield [text.split() for text in dict.fromkeys(one["input"]) if text.split()]


def edited(words, frequent, random):
    """Delete or replace one to three words of a hypothesis; replacements are frequent words."""
    words = list(words)
    for _ in range(random.integers(1, 4)):
        place = int(random.integers(len(words)))
        if random.random() < 0.3 and len(words) > 1:
            del words[place]
        else:
            words[place] = frequent[int(random.zipf(1.3)) % len(frequent)]
    return words


def make_lists(data, count):
    """Make lists of 100 candidates, the recogniser's own first, each with a made-up acoustic score."""
    random = np.random.default_rng(0)
    given = [one for one in hypotheses(data) if one]
    counts = Counter(word for one in given for words in one for word in words)
    frequent = [word for word, _ in counts.most_common(VOCAB_SIZE - 3)]
    lists = []
    for number in range(count):
        own = given[int(random.integers(len(given)))]
        more = [edited(own[int(random.integers(len(own)))], frequent, random) for _ in range(CANDIDATES)]
        texts = [" ".join(words) for words in [*own, *more][:CANDIDATES]]
        scores = np.sort(random.normal(-50, 5, CANDIDATES))[::-1].round(3).tolist()
        candidates = [{"text": t, "features": {"am": s}} for t, s in zip(texts, scores, strict=True)]
        lists.append({"id": f"utt-{number}", "candidates": candidates})
    return lists, frequent


def publish_lstm(root, words):
    """Publish a random LSTM over these words."""
    torch.manual_seed(0)
    vocabulary = Vocabulary([*words, *(f"<{i}>" for i in range(VOCAB_SIZE - 3 - len(words)))])
    config = NetworkConfig(cell="lstm", layers=LAYERS, embedding_size=HIDDEN, hidden_size=HIDDEN)
    model = NeuralModel(Network(config, VOCAB_SIZE), vocabulary)
    about = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {})
    tokenizer = WordTokenizer(vocabulary)
    LocalRegistry(root).publish("lstm", lambda folder: write_checkpoint(folder, model, tokenizer, about))


def store_profiles(registry, data):
    """Store the weights as profile `plain`, and as `corrected` with corrections learnt from the recogniser's lists."""
    lists = [one for name in RECOGNISED for one in read_lists(data / "nbest" / name)]
    counts = run_to_completion(count_corrections(lists, np.zeros(len(lists), dtype=np.int64)))
    learnt = run_to_completion(learn_corrections(counts))
    about = {
        "metric": "wer",
        "signature": "",
        "models": [],
        "decision": "tuned",
        "figures": {},
        "created": "",
    }
    for name, corrections in (("plain", []), ("corrected", learnt)):
        weights = {"lm": 0.5, "am": 1.0, "words": 0.3, "correction": 0.5}
        ProfileStore(registry).write(Profile(name=name, weights=weights, corrections=corrections, **about))


class Service:
    """Service in a process of its own.

    Args:
        registry: registry to serve.
        options: further options of `gramophone serve`.
    """

    def __init__(self, registry, *options):
        self.port = free_port()
        command = [*GRAMOPHONE, "serve", "--registry", str(registry), "--port", str(self.port), *options]
        self._process = subprocess.Popen(command, **QUIET)
        wait_until_ready(self.port)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()

    def rerank(self, body, model, settings="weights=lm=0.5,am=1,words=0.3"):
        """Return the given candidates per second of one JSONL request, and the reply."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        began = time.perf_counter()
        path = f"/v1/rerank?model={model}&{settings}"
        connection.request("POST", path, body, {"content-type": LINES})
        reply = connection.getresponse()
        pieces = []
        while piece := reply.read(1 << 20):
            pieces.append(piece)
        took = time.perf_counter() - began
        connection.close()
        answer = b"".join(pieces)
        count = CANDIDATES * (body.count(b"\n") + 1)
        assert reply.status == 200, answer[:500]
        assert b'{"error"' not in answer, answer[:500]
        assert answer.count(b'"index":') >= count
        return count / took, answer


def torch_loop(folder, body):
    """Return the candidates per second of the padded-batch loop, and the scores of the first list."""
    checkpoint = load_checkpoint(folder, device="cpu", precision="float32")
    network, encode = TorchNetwork(folder), checkpoint.tokenizer.encode
    lists = [json.loads(line)["candidates"] for line in body.split(b"\n")]
    texts = [[[*encode(c["text"]), EOS] for c in one] for one in lists]
    network.score(texts[0])
    began = time.perf_counter()
    scores = [network.score(one) for one in texts]
    return len(texts) * CANDIDATES / (time.perf_counter() - began), scores[0]


def in_own_process(folder, body):
    """Run `torch_loop` alone in a process of its own."""
    command = [sys.executable, __file__, "--torch-loop", str(folder)]
    done = subprocess.run(command, input=body, check=True, capture_output=True)
    return json.loads(done.stdout)


def report(name, rates, than=None, peer="the torch loop"):
    """Print a line; the ratio is to the median of other rates."""
    median = statistics.median(rates)
    spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
    ratio = "" if than is None else f"   {median / statistics.median(than):5.2f} x {peer}"
    print(f"{name:28} {median:10,.0f} candidates/s ({spread}){ratio}", flush=True)


def bench_corrections(registry, data, body, rounds):
    """Measure one request of all lists, and requests of a list."""
    store_profiles(registry, data)
    rates = {(kind, profile): [] for kind in ("lines", "a list") for profile in ("plain", "corrected")}
    with Service(registry) as service:
        for profile in ("plain", "corrected"):
            service.rerank(body, "ngram", f"profile={profile}")
        for _ in range(rounds):
            for profile in ("plain", "corrected"):
                rates["lines", profile].append(service.rerank(body, "ngram", f"profile={profile}")[0])
            for one in body.split(b"\n")[:100]:
                for profile in ("plain", "corrected"):
                    rates["a list", profile].append(service.rerank(one, "ngram", f"profile={profile}")[0])
    for kind in ("lines", "a list"):
        report(f"n-gram, call of {kind}", rates[kind, "plain"])
        report(
            f"n-gram, {kind}, corrections", rates[kind, "corrected"], rates[kind, "plain"], "no corrections"
        )


def bench_ngram(registry, body, rounds):
    with Service(registry) as service:
        service.rerank(body, "ngram")
        report("n-gram, one call of lines", [service.rerank(body, "ngram")[0] for _ in range(rounds)])


def bench_lstm(registry, body, rounds):
    folder = LocalRegistry(registry).resolve("lstm").path
    rates = {"torch loop": [], "float32": [], "int8": []}
    with (
        Service(registry, "--precision", "float32") as exact,
        Service(registry, "--precision", "int8") as int8,
    ):
        for _ in range(rounds):
            rate, scores = in_own_process(folder, body)
            rates["torch loop"].append(rate)
            for name, service in (("float32", exact), ("int8", int8)):
                rate, answer = service.rerank(body, "lstm")
                rates[name].append(rate)
                if name == "float32":
                    ranking = json.loads(answer.split(b"\n")[0])["ranking"]
                    for c in ranking:
                        assert abs(c["features"]["lm"] - scores[c["index"]]) < 1e-3
    report("LSTM, torch padded batches", rates["torch loop"])
    report("LSTM, service, float32", rates["float32"], rates["torch loop"])
    report("LSTM, service, int8", rates["int8"], rates["torch loop"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lists", type=int, default=1000)
    parser.add_argument("--neural-lists", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["ngram", "lstm"])
    parser.add_argument("--torch-loop", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.torch_loop:
        print(json.dumps(torch_loop(given.torch_loop, sys.stdin.buffer.read())))
        return
    data = data_folder()
    lists, words = make_lists(data, given.lists)
    body = "\n".join(map(json.dumps, lists)).encode()
    few = "\n".join(map(json.dumps, lists[: given.neural_lists])).encode()
    with tempfile.TemporaryDirectory() as folder:
        registry = Path(folder)
        corpus = [] if data is None else [f"--corpus={data / 'novels-1m' / 'train.txt.xz'}"]
        train(registry, "ngram", "ngram", *corpus, "--set", "tokenizer.kind=word")
        publish_lstm(registry, words)
        if given.only != "lstm":
            bench_ngram(registry, body, given.rounds)
            if data is not None:
                bench_corrections(registry, data, body, given.rounds)
        if given.only != "ngram":
            bench_lstm(registry, few, given.rounds)


if __name__ == "__main__":
    main()

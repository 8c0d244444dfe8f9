"""Speed of reading and rescoring lattices, beside a token-passing loop in Python over KenLM.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_lattices.py [--lattices 200] [--vocab-size 16000]

The lattices are built from the public n-best lists (without them: from variants of Python's documentation): the words
of each utterance, with the words that the recogniser confused them with elsewhere as alternatives, each at several
times. Speeds are lattice arcs per second; a way is an arc followed by one token, one query of the model. Figures are
medians; on a shared machine only ratios are meaningful. Nothing is written outside a temporary folder.
"""

import argparse
import json
import math
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import torch
from preparation import (
    GRAMOPHONE,
    QUIET,
    data_folder,
    free_port,
    gramophone,
    lists_of_variants,
    peer,
    wait_until_ready,
)
from rapidfuzz.distance import Levenshtein

from models.language_model import Vocabulary
from models.lattices.formats import format_kaldi, format_slf, read_kaldi, read_slf
from models.lattices.graph import LabelTokenizer, PathWeights
from models.lattices.lattice import Arc, build_lattice
from models.lattices.rescoring import nbest_candidates, rescore
from models.lattices.token_passing import LatticeSearch
from models.neural.config import NetworkConfig
from models.neural.int8.model import Int8Model
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.ngram.arpa_writer import write_arpa
from models.ngram.build import list_ngrams
from models.tokenizers import WordTokenizer
from tests.support.nbest_lists import Listed, recognised
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress

kenlm = peer("kenlm", "ufal.kenlm>=26")
WEIGHTS = PathWeights(am=0.1, lm=1.0)
TIMES = 3
"""Number of nodes at which a word may end."""
CHOICES = 5
"""Number of alternatives of a word."""
HTTP_WORDS, REPEATS = 556, 9
"""Words of the lattice over HTTP, of 10,000 arcs, and repetitions."""


def confusions(lists):
    """Map each word to the words it was confused with in any list, most frequent first."""
    counts = defaultdict(lambda: defaultdict(int))
    for one in lists:
        first = one.texts[0].split()
        for text in one.texts[1:]:
            other = text.split()
            for step in Levenshtein.opcodes(first, other):
                if step.tag == "replace":
                    for word, heard in zip(
                        first[step.src_start : step.src_end], other[step.dest_start :], strict=False
                    ):
                        counts[word][heard] += 1
                        counts[heard][word] += 1
    return {word: sorted(heard, key=heard.get, reverse=True) for word, heard in counts.items()}


def made_lattice(words, heard, common, random, name):
    """Build a lattice of consecutive words with alternatives, each ending at one of several times."""
    rows = []
    for place, word in enumerate(words):
        others = [*heard.get(word, [])[:CHOICES]]
        others += random.choice(common, CHOICES - len(others)).tolist()
        starts = range(1 + (place - 1) * TIMES, 1 + place * TIMES) if place else [0]
        for choice in [word, *others]:
            rows += [(start, 1 + place * TIMES + int(random.integers(TIMES)), choice) for start in starts]
    end = 1 + len(words) * TIMES
    rows += [(end - TIMES + time_, end, "") for time_ in range(TIMES)]
    am = random.normal(-60, 15, len(rows)) + [20 * (label in words) for *_, label in rows]
    old_lm = random.normal(-6, 2, len(rows))
    arcs = [Arc(*row, *scores) for row, *scores in zip(rows, am.tolist(), old_lm.tolist(), strict=True)]
    return build_lattice(arcs, name=name, start=0, end=end, times=np.full(end + 1, np.nan))


def timed(work, repeats=3):
    """Return the median seconds of some work, and its result."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        answer = work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds), answer


def python_loop(lattice, oracle):
    """Return the best path's total by token passing with KenLM, one token and arc at a time; exact, like ours."""
    start = kenlm.State()
    oracle.BeginSentenceWrite(start)
    tokens = [{} for _ in range(lattice.num_nodes)]
    tokens[0][start] = 0.0
    for arc in range(lattice.num_arcs):
        word = lattice.words[lattice.labels[arc]]
        known = WEIGHTS.am * lattice.am[arc]
        there = tokens[lattice.targets[arc]]
        for state, total in tokens[lattice.sources[arc]].items():
            after = state
            new = total + known
            if word:
                after = kenlm.State()
                new += oracle.BaseScore(state, word, after) * math.log(10)
            if new > there.get(after, -math.inf):
                there[after] = new
    end = kenlm.State()
    return max(
        total + oracle.BaseScore(state, "</s>", end) * math.log(10) for state, total in tokens[-1].items()
    )


def in_batches(lattices, size, model, speller, search):
    """Rescore all lattices in batches."""
    answers = []
    for begin in range(0, len(lattices), size):
        some = lattices[begin : begin + size]
        answers += rescore(some, model, speller, weights=[WEIGHTS] * len(some), search=search)
    return answers


def report(title, lattices, seconds, rescored):
    arcs = sum(one.num_arcs for one in lattices)
    ways = sum(len(one.tokens.edges.arcs) for one in rescored)
    print(f"{title:44s} {arcs / seconds:12,.0f} arcs/s {ways / seconds:12,.0f} ways/s")


def bench_files(lattices):
    for name, format_lattice, read in (
        ("SLF", format_slf, lambda lines: [read_slf(lines, "made")]),
        ("Kaldi", format_kaldi, lambda lines: list(read_kaldi(lines, "made"))),
    ):
        texts = [format_lattice(one).encode().split(b"\n") for one in lattices]
        seconds, _ = timed(lambda texts=texts, read=read: [read(lines) for lines in texts])
        print(f"{'read ' + name:44s} {sum(one.num_arcs for one in lattices) / seconds:12,.0f} arcs/s")


def bench_ngram(lattices, model, oracle, speller):
    few = lattices[: max(1, len(lattices) // 10)]
    seconds, totals = timed(lambda: [python_loop(one, oracle) for one in few], repeats=1)
    arcs = sum(one.num_arcs for one in few)
    print(f"{'4-gram, Python loop over KenLM':44s} {arcs / seconds:12,.0f} arcs/s")
    unpruned = LatticeSearch(max_tokens_per_node=1 << 30)
    rescored = in_batches(few, 64, model, speller, unpruned)
    ours = [one.tokens.forward[-1] for one in rescored]
    print(f"  largest difference of the best totals: {np.abs(np.array(ours) - totals).max():.1e}")
    for title, search in (
        ("all tokens", unpruned),
        ("64 tokens a node", LatticeSearch()),
        ("64 tokens a node, beam 10", LatticeSearch(beam=10.0)),
    ):
        for size in (1, 64):
            seconds, rescored = timed(
                lambda search=search, size=size: in_batches(lattices, size, model, speller, search)
            )
            report(f"4-gram, {title}, {size} at once", lattices, seconds, rescored)
    for count in (1, 10, 100):
        seconds, _ = timed(lambda count=count: [nbest_candidates(one, count) for one in rescored])
        print(f"{f'{count}-best of each, ms a lattice':44s} {1000 * seconds / len(rescored):12.1f}")


def bench_http(lattice, model, speller, arpa, folder):
    """Time one lattice over HTTP, in each form, beside the same work in this process."""
    registry, port = folder / "registry", free_port()
    gramophone("models", "import-arpa", arpa, "--name", "made", "--registry", registry)
    arcs = zip(lattice.sources, lattice.targets, lattice.labels, lattice.am, lattice.old_lm, strict=True)
    forms = {
        "SLF": {"slf": format_slf(lattice)},
        "arcs": {
            "arcs": [
                {"start": int(begin), "end": int(end), "word": lattice.words[label], "am": am, "old_lm": old}
                for begin, end, label, am, old in arcs
            ]
        },
    }
    lines = forms["SLF"]["slf"].encode().split(b"\n")
    whole, _ = timed(
        lambda: nbest_candidates(
            in_batches([read_slf(lines, "made")], 1, model, speller, LatticeSearch())[0], 1
        ),
        repeats=REPEATS,
    )
    seconds, _ = timed(
        lambda: nbest_candidates(in_batches([lattice], 1, model, speller, LatticeSearch())[0], 1),
        repeats=REPEATS,
    )
    print(
        f"{f'{lattice.num_arcs:,} arcs in process; with SLF read, ms':44s} {1e3 * seconds:12.1f} {1e3 * whole:12.1f}"
    )
    server = subprocess.Popen([*GRAMOPHONE, "serve", "--registry", registry, "--port", str(port)], **QUIET)
    try:
        wait_until_ready(port)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            for name, form in forms.items():
                body = json.dumps({"lattices": [form], "weights": {"am": 0.1, "lm": 1.0}}).encode()
                ask = partial(client.post, "/v1/lattices", content=body)
                assert ask().status_code == 200, ask().text
                http, _ = timed(ask, repeats=REPEATS)
                print(
                    f"{f'over HTTP, {name}, {len(body):,} bytes, ms':44s} {1e3 * http:12.1f} {http / whole:12.2f}"
                )
    finally:
        server.terminate()
        server.wait()


def bench_networks(lattices, tokenizer):
    speller = LabelTokenizer(tokenizer)
    torch.manual_seed(0)
    shape = NetworkConfig(cell="lstm", layers=2, embedding_size=512, hidden_size=512)
    network = Network(shape, len(tokenizer.vocabulary))
    for name, model in (
        ("float32", NeuralModel(network, tokenizer.vocabulary)),
        ("int8", Int8Model(network.weights(), tokenizer.vocabulary)),
    ):
        for title, search in (
            ("64 tokens a node, by 4 words", LatticeSearch()),
            (
                "8 tokens a node, by 3 words",
                LatticeSearch(max_tokens_per_node=8, recombination_order=3),
            ),
            (
                "8 tokens a node, by 3 words, beam 10",
                LatticeSearch(max_tokens_per_node=8, recombination_order=3, beam=10.0),
            ),
        ):
            seconds, rescored = timed(
                lambda model=model, search=search: in_batches(lattices, 64, model, speller, search),
                repeats=1,
            )
            report(f"LSTM {name}, {title}", lattices, seconds, rescored)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lattices", type=int, default=200)
    parser.add_argument("--network-lattices", type=int, default=16)
    parser.add_argument("--vocab-size", type=int, default=16_000)
    options = parser.parse_args()
    data = data_folder()
    lists = (
        recognised(data, "librispeech-clean") if data else [Listed(ts, ts[0]) for ts in lists_of_variants()]
    )
    references = [one.reference for one in lists]
    common = sorted({word for text in references for word in text.split()})
    padding = [f"word{i}" for i in range(max(0, options.vocab_size - len(common)))]
    tokenizer = WordTokenizer(Vocabulary([*common, *padding][: options.vocab_size]))
    speller = LabelTokenizer(tokenizer)
    heard, random = confusions(lists), np.random.default_rng(0)
    lattices = [
        made_lattice(text.split(), heard, common, random, str(number))
        for number, text in enumerate(references[: options.lattices])
    ]
    print(
        f"{len(lattices)} lattices, {sum(one.num_nodes for one in lattices):,} nodes, "
        f"{sum(one.num_arcs for one in lattices):,} arcs, words {len(tokenizer.vocabulary):,}"
    )
    bench_files(lattices)
    rows = [np.array(tokenizer.encode(text)) for text in references[options.lattices :]]
    corpus = EncodedCorpus.from_sentences(rows, num_words=sum(map(len, rows)), num_bytes=1)
    model = estimate(corpus, tokenizer.vocabulary, order=4, progress=Progress()).model
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "made.arpa")
        write_arpa(path, model.vocabulary, list_ngrams(model.automaton))
        bench_ngram(lattices, model, kenlm.Model(str(path)), speller)
        many = " ".join(references).split()[:HTTP_WORDS]
        long = made_lattice(many, heard, common, random, "long")
        bench_http(long, model, speller, path, Path(folder))
    bench_networks(lattices[: options.network_lattices], tokenizer)


if __name__ == "__main__":
    main()

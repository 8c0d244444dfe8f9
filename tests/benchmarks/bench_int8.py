"""Speed of an LSTM on a CPU in int8 and float32: ours, torch's and ONNX Runtime's.

    python tests/benchmarks/bench_int8.py [--layers 2] [--hidden-size 512] [--vocab-size 16000] [--threads 1]

The peers' int8 is their dynamic quantisation. Figures are medians of alternating stretches, with ratios to ours of the
same precision; on a shared machine only the ratios are meaningful. Networks with an adaptive softmax or attention
follow, in int8 beside our float32, which torch computes. ONNX Runtime is installed on first use, into a folder inside
this environment, and omitted if that fails. Nothing else is written outside a temporary folder.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from peers.network import OnnxNetwork, TorchNetwork
from peers.setup import PRECISIONS, import_onnx_from_peers
from torch import nn

from models.kernels.threads import THREADS
from models.language_model import Vocabulary, pad_sequences, score_sequences
from models.neural.config import NetworkConfig
from models.neural.int8.matrix import Parameters
from models.neural.int8.model import Int8Model
from models.neural.int8.output import multiply, to_int8_rows
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.tensor_files import PackedWeightCache

OURS = "Gramophone"
STRETCH = 5
"""Consecutive runs of a rival: after the first, the CPU caches hold its own data."""
SENTENCE_TOKENS = 20


OTHER_NETWORKS = {
    "adaptive softmax, V = 81,000": (NetworkConfig(output="adaptive", cutoffs=(4000, 20_000)), 81_000),
    "scaled attention": (NetworkConfig(attention="scaled"), 16_000),
    "additive attention": (NetworkConfig(attention="additive"), 16_000),
}
"""Networks without peers, with the size of their vocabularies."""


def median_times(rivals, repeats):
    """Run the rivals, by name and precision, in turn; return each median in seconds."""
    times = {rival: [] for rival in rivals}
    for turn in range(repeats + 2):
        for rival, work in rivals.items():
            started = time.perf_counter()
            for _ in range(STRETCH):
                work()
            if turn >= 2:
                times[rival].append((time.perf_counter() - started) / STRETCH)
    return {rival: statistics.median(values) for rival, values in times.items()}


def compare(title, rivals, repeats):
    """Print the median time of each rival, and who is fastest at each precision."""
    medians = median_times(rivals, repeats)
    print(f"\n{title}")
    for (name, precision), seconds in medians.items():
        ratio = seconds / medians[OURS, precision]
        print(f"  {name:15}{precision:8}{seconds * 1e6:11,.0f} µs   {ratio:5.2f} x ours")
    for precision in dict.fromkeys(precision for _, precision in medians):
        ours = medians[OURS, precision]
        best = min(
            (rival for rival in medians if rival[1] == precision and rival[0] != OURS), key=medians.get
        )
        verdict = f"{OURS} is fastest, {best[0]}" if ours < medians[best] else f"{best[0]} wins, it"
        print(
            f"{title}, {precision}: {verdict} takes {medians[best] / ours:.2f} x our {ours * 1e6:,.0f} µs",
            flush=True,
        )


def stepper(model, batch):
    """Return a function that advances our model by one step and returns the distribution."""
    random = np.random.default_rng(0)
    state = model.initial_state(batch)

    def step():
        nonlocal state
        state = model.advance(state, random.integers(3, len(model.vocabulary), batch))
        return model.next_log_probs(state)

    return step


def peer_stepper(network, batch, vocab_size):
    random = np.random.default_rng(0)
    hidden = None

    @torch.inference_mode()
    def step():
        nonlocal hidden
        ids = torch.from_numpy(random.integers(3, vocab_size, (1, batch)))
        outputs, hidden = network.read(ids, hidden=hidden)
        return network.logits(outputs[0]).log_softmax(-1)

    return step


def scorer(model, texts):
    """Return a function that scores texts [B, T] with our model."""
    tokens, lengths = pad_sequences(texts)
    return lambda: score_sequences(model, model.initial_state(len(texts)), tokens, lengths)


def random_texts(count, vocab_size):
    """Return sentences of random tokens [count, 20]."""
    return np.random.default_rng(0).integers(3, vocab_size, (count, SENTENCE_TOKENS))


def compare_scoring(models, networks, count, vocab_size):
    """Compare scoring of sentences."""
    texts = random_texts(count, vocab_size)
    rivals = {(OURS, precision): scorer(model, texts) for precision, model in models.items()}
    rivals |= {rival: lambda network=network: network.score(texts) for rival, network in networks.items()}
    compare(f"{count} sentences of {SENTENCE_TOKENS} tokens", rivals, repeats=3)


def compare_products(network, networks, batch, repeats):
    """Compare int8 products with the output matrix; `_int_mm` alone neither quantises vectors nor returns floats."""
    vectors = torch.randn(batch, network.feature_size)
    linear = nn.Linear(network.feature_size, network.vocab_size)
    parameters = {name: tensor.numpy() for name, tensor in linear.state_dict().items()}
    layer = Parameters(parameters, PackedWeightCache()).linear("weight", parameters["bias"])
    integers, weights = (
        torch.randint(-127, 128, shape, dtype=torch.int8) for shape in (vectors.shape, linear.weight.shape)
    )
    rivals = {(OURS, "int8"): lambda: multiply(layer, to_int8_rows(vectors.numpy()))}
    for rival, peer in networks.items():
        if "int8" in rival:
            rivals[rival] = torch.inference_mode()(lambda peer=peer: peer.logits(vectors))
    rivals["torch._int_mm", "int8"] = lambda: torch._int_mm(integers, weights.T)
    compare(f"output matrix, {batch} rows", rivals, repeats)


def peer_networks(network, threads, folder):
    """Return the peers' networks by runtime and precision."""
    tensors = {name: tensor.detach() for name, tensor in network.state_dict().items()}
    networks = {("torch", precision): TorchNetwork(tensors, precision) for precision in PRECISIONS}
    if import_onnx_from_peers():
        from peers.onnx_export import write_models

        write_models(tensors, folder)
        for precision in PRECISIONS:
            networks["onnxruntime", precision] = OnnxNetwork(folder / precision, threads)
    return networks


def compare_precisions(title, config, vocab_size):
    """Print the times of a network in int8 and in float32."""
    models = our_models(Network(config, vocab_size), vocab_size)
    texts = random_texts(16, vocab_size)
    works = {f"step of {batch} rows": lambda model, batch=batch: stepper(model, batch) for batch in (1, 16)}
    works[f"16 sentences of {SENTENCE_TOKENS} tokens"] = lambda model: scorer(model, texts)
    for work, make in works.items():
        medians = median_times({precision: make(model) for precision, model in models.items()}, repeats=9)
        int8_s, float32_s = medians["int8"], medians["float32"]
        print(
            f"{title}, {work}: int8 {int8_s * 1e6:,.0f} µs, float32 {float32_s * 1e6:,.0f} µs,"
            f" {float32_s / int8_s:.2f} x",
            flush=True,
        )


def our_models(network, vocab_size):
    """Return our models of a network by precision."""
    vocabulary = Vocabulary([f"w{i}" for i in range(vocab_size - 3)])
    return {"float32": NeuralModel(network, vocabulary), "int8": Int8Model(network.weights(), vocabulary)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--vocab-size", type=int, default=16000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    THREADS.limit = options.threads
    size, vocab_size = options.hidden_size, options.vocab_size
    shape = {"layers": options.layers, "embedding_size": size, "hidden_size": size}
    network = Network(NetworkConfig(**shape), vocab_size)
    models = our_models(network, vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        networks = peer_networks(network, options.threads, Path(folder))
    for batch, repeats in ((1, 30), (16, 10), (64, 5)):
        rivals = {(OURS, precision): stepper(model, batch) for precision, model in models.items()}
        rivals |= {rival: peer_stepper(one, batch, vocab_size) for rival, one in networks.items()}
        compare(f"step of {batch} rows", rivals, repeats)
        compare_products(network, networks, batch, repeats)
    for count in (1, 16, 128):
        compare_scoring(models, networks, count, vocab_size)
    print()
    for title, (config, own_size) in OTHER_NETWORKS.items():
        compare_precisions(title, config.model_copy(update=shape), own_size)


if __name__ == "__main__":
    main()

"""Training on a CUDA device or the stand-in for one: the CPU's weights, exact resuming, and few copies in an update."""

import functools
import re

import numpy as np
import pytest
import torch

from models.cache.model import CacheModel
from models.checkpoint.load import load_checkpoint
from models.errors import InputError
from models.language_model import Vocabulary
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from tests.support import cuda_stand_in, families
from tests.support.cuda_stand_in import KINDS, cuda_device, without_wrappers
from tests.support.resumable import Ending, weights
from tests.support.resumable import fit as fit_with_everything
from training.commands import run_evaluate, run_train
from training.dynamic_evaluation import dynamic_evaluation
from training.neural import resume, trainer
from training.neural.diagnostics import diagnose
from training.neural.embeddings import Embeddings
from training.neural.resume import check_structure
from training.neural.settings import TrainSettings
from training.neural.streams import DRAWN_TOKENS, TARGET_TOKENS, SoftTargets, write_soft_targets
from training.neural.trainer import train_network
from training.progress import SILENT
from training.recipe import Recipe

ROWS, STEPS = 4, 8
SETTINGS = {
    "batch_size": ROWS,
    "bptt_length": STEPS,
    "max_steps": 5,
    "max_minutes": None,
    "precision": "float32",
    "validations": 2,
}
NETWORK = {"embedding_size": 13, "hidden_size": 13, "dropout": 0.0}
TRAIN, VALID = families.corpus(60), families.corpus(10, seed=2)
CPU = torch.device("cpu")


@pytest.fixture(params=KINDS)
def cuda(request):
    with cuda_device(request.param) as device:
        yield device


@pytest.fixture
def comparing_types(monkeypatch):
    """Make the check of saved states compare the types of plain tensors."""

    def check(given, own, name):
        check_structure(given, without_wrappers(own), name)

    monkeypatch.setattr(resume, "check_structure", check)


@pytest.fixture
def updates(cuda, monkeypatch):
    """Report of every update of a run; none where no copies are counted."""
    reports, update = [], trainer._update

    def measured(*given):
        with cuda.measured() as report:
            result = update(*given)
        if cuda.counts_copies:
            reports.append(report)
        return result

    monkeypatch.setattr(trainer, "_update", measured)
    return reports


def fit(device, *, network=None, vocabulary=None, soft_targets=None, base=None, embeddings=None, **changes):
    return train_network(
        TRAIN,
        VALID,
        vocabulary or families.tokenizer().vocabulary,
        Recipe(
            family="neural",
            neural=NetworkConfig(**(NETWORK | (network or {}))),
            train=TrainSettings(**(SETTINGS | changes)),
        ),
        device=device,
        progress=SILENT,
        soft_targets=soft_targets,
        base=base,
        embeddings=embeddings,
    )


def assert_trained_alike(found, expected):
    """The weights of two runs are equal but for rounding, and those of the first are on the device.

    A device's own kernels round otherwise than the CPU's, which Adam multiplies where a gradient is nearly 0.
    """
    atol = 1e-5 if cuda_stand_in._current else 2e-4
    theirs = expected.model.network.state_dict()
    for name, tensor in found.model.network.state_dict().items():
        assert tensor.is_cuda
        torch.testing.assert_close(tensor.cpu(), theirs[name], atol=atol, rtol=0)
    for quantity in ("train_loss", "valid_perplexity", "grad_norm"):
        one, other = ([getattr(r, quantity) or 0 for r in result.history] for result in (found, expected))
        assert one == pytest.approx(other, rel=1e-4)


CASES = {
    **{name: {"network": options} for name, options in families.NEURAL.items()},
    "tied adaptive": {"network": {"output": "adaptive", "cutoffs": (7, 12), "tied": True}},
    "sampled": {"loss": "sampled", "samples": 10},
    "nce": {"loss": "nce", "samples": 10, "sampled_share": 0.5},
    "negative-sampling": {"loss": "negative-sampling", "samples": 10},
    "self-normalised": {"self_normalise": 0.1},
    "penalties": {"activation_penalty": 0.1, "slowness_penalty": 0.1},
    "sgd": {"optimizer": "sgd", "learning_rate": 1.0, "momentum": 0.5},
    "rmsprop": {"optimizer": "rmsprop"},
    "ema": {"average": "ema"},
    "nt-asgd": {"average": "nt-asgd", "nonmonotone": 1, "validations": 5},
    "resets": {"reset": 0.5, "variable_bptt": True},
}


@pytest.mark.parametrize("name", CASES)
def test_a_run_on_the_device_gives_the_weights_of_one_on_the_cpu(cuda, updates, name):
    """An update copies the ids and the rows to reset to the device; the host reads the loss and the norm."""
    options = CASES[name]
    assert_trained_alike(fit("cuda", **options), fit("cpu", **options))
    noise = 8 * options["samples"] if "samples" in options else 0
    clusters = 2 if "adaptive" in name else 0
    reports = updates[: SETTINGS["max_steps"]]  # those of the device
    assert len(reports) == SETTINGS["max_steps"] * cuda.counts_copies
    for number, report in enumerate(reports):
        drawn = noise if name != "nce" or number < 3 else 0  # the second half of a run is exact
        steps = report.to_device[1] // (8 * ROWS)
        ids = 8 * ROWS * steps
        assert report.to_device == [ROWS, ids, ids] + [drawn] * bool(drawn)
        assert report.to_host == [8, 4]
        assert report.waits == ["nonzero"] * (1 + clusters)


@pytest.mark.parametrize("precision", ["bfloat16", "auto"])
def test_products_are_rounded_where_the_device_has_instructions_for_it(cuda, updates, monkeypatch, precision):
    rounded, exact = fit("cuda", precision=precision), fit("cuda")
    differences = [
        float((tensor - exact.model.network.state_dict()[name]).abs().max())
        for name, tensor in rounded.model.network.state_dict().items()
    ]
    assert 1e-5 < max(differences) < 0.05
    assert all((len(report.to_device), len(report.to_host)) == (3, 2) for report in updates)
    if precision == "auto":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
        assert_trained_alike(fit("cuda", precision="auto"), fit("cpu"))


@pytest.mark.parametrize(
    "dropout",
    [{"dropout": 0.3}, {"dropout": 0.2, "variational": True, "embedding_dropout": 0.1}, {"weight_drop": 0.4}],
)
def test_dropout_draws_on_the_device(cuda, updates, dropout):
    first, second, without = fit("cuda", network=dropout), fit("cuda", network=dropout), fit("cuda")
    one, other, plain = (weights(result) for result in (first, second, without))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not all(torch.equal(one[name], plain[name]) for name in one)
    assert all((len(report.to_device), len(report.to_host)) == (3, 2) for report in updates)


@pytest.mark.parametrize("changes", [{}, {"optimizer": "sgd", "loss": "softmax", "average": "none"}])
def test_a_resumed_run_is_equal(cuda, comparing_types, tmp_path, changes):
    """The state has the device's random numbers: dropout differs without them."""
    few = {"max_steps": 12, "validations": 4, "device": "cuda", **changes}
    state_file = tmp_path / "state.pt"
    whole = fit_with_everything(**few)
    for updates in (2, 7):
        assert fit_with_everything(state_file, progress=Ending(updates), **few).stopped == "interrupted"
    resumed = fit_with_everything(state_file, **few)
    one, other = weights(whole), weights(resumed)
    assert all(tensor.is_cuda for tensor in one.values())
    losses = [[record.train_loss for record in result.history] for result in (whole, resumed)]
    if cuda.counts_copies:
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert losses[0] == losses[1]
        return
    for name, tensor in one.items():  # a device adds gradients in any order
        torch.testing.assert_close(tensor, other[name], atol=2e-4, rtol=0)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_run_of_the_cpu_continues_on_the_device(cuda, comparing_types, tmp_path):
    few = {"max_steps": 8, "validations": 2}
    state_file = tmp_path / "state.pt"
    assert fit_with_everything(state_file, progress=Ending(4), **few).stopped == "interrupted"
    resumed = fit_with_everything(state_file, device="cuda", **few)
    assert (resumed.stopped, resumed.history[-1].step) == ("max_steps", 8)
    assert all(tensor.is_cuda for tensor in weights(resumed).values())


def teachers(device):
    """Teachers of each kind on a device."""
    torch.manual_seed(5)
    vocabulary = families.tokenizer().vocabulary
    network = Network(NetworkConfig(**NETWORK), len(vocabulary))
    neural = NeuralModel(network, vocabulary, device=device)
    return {"neural": [neural], "cache": [CacheModel(neural, families.model("cache").config)]}


KINDS = {
    "neural": ("neural",),
    "cache": ("cache",),
    "both": ("neural", "cache"),
    "ngram": ("neural", "ngram"),
}


@pytest.fixture(params=KINDS)
def taught(request, cuda, tmp_path):
    """Soft targets written on the device and on the CPU; an n-gram model and a cache compute on the CPU."""
    found = {}
    for device in ("cuda", "cpu"):
        models = teachers(device) | {"ngram": [families.model("ngram")]}
        chosen = [model for kind in KINDS[request.param] for model in models[kind]]
        path = tmp_path / f"{device}.npy"
        write_soft_targets(
            path, chosen, TRAIN, device=torch.device(device), precision=torch.float32, progress=SILENT
        )
        found[device] = SoftTargets(path, ("teacher",))
    return found


TAUGHT = {"teacher": ("teacher",), "teacher_weight": 0.6}


def test_teachers_on_the_device_give_the_targets_of_the_cpu(cuda, taught):
    found, expected = (np.load(taught[device].path) for device in ("cuda", "cpu"))
    np.testing.assert_allclose(found["probabilities"], expected["probabilities"], atol=1e-3)
    np.testing.assert_allclose(found["of_drawn"], expected["of_drawn"], atol=1e-3)
    # a device draws other tokens than the CPU; the stand-in draws the same
    same = slice(None) if cuda.counts_copies else slice(TARGET_TOKENS)
    assert np.mean((found["ids"] == expected["ids"])[..., same]) > 0.99


@pytest.mark.parametrize("taught", ["neural"], indirect=True)
def test_a_student_on_the_device_learns_as_on_the_cpu(taught, updates):
    found = fit("cuda", soft_targets=taught["cpu"], **TAUGHT)
    assert_trained_alike(found, fit("cpu", soft_targets=taught["cpu"], **TAUGHT))
    ids, kept = 8 * ROWS * STEPS, 1 + TARGET_TOKENS + DRAWN_TOKENS
    for report in updates[: SETTINGS["max_steps"]]:
        changes = kept * (report.to_device[3] // (8 * kept))  # of all predicted tokens
        assert 0 < changes <= kept * ROWS * STEPS
        assert report.to_device == [ROWS, ids, ids, 8 * changes, 4 * changes]
        assert (report.to_host, report.waits) == ([8, 4], ["nonzero"])


@pytest.mark.parametrize("name", ["lstm", "adaptive", "every option"])
def test_a_run_from_a_base_continues_on_the_device(cuda, name):
    base = families.model(name).network
    vocabulary = Vocabulary([*families.WORDS, "new"])
    options = {"network": base.config.model_dump() | {"dropout": 0.0}, "vocabulary": vocabulary}
    found, expected = (fit(device, base=base, **options) for device in ("cuda", "cpu"))
    assert_trained_alike(found, expected)


@functools.cache
def known_vectors():
    random = np.random.default_rng(3)
    return Embeddings(rows=np.arange(5, 20), vectors=random.normal(size=(15, 13)).astype(np.float32))


@pytest.mark.parametrize("network", [{}, {"output": "adaptive", "cutoffs": (7, 12), "tied": False}])
def test_known_vectors_are_copied_to_the_device(cuda, network):
    found, expected = (fit(device, embeddings=known_vectors(), network=network) for device in ("cuda", "cpu"))
    assert_trained_alike(found, expected)
    assert not torch.equal(weights(found)["embedding.weight"].cpu(), weights(fit("cpu"))["embedding.weight"])


def test_a_run_that_diverges_on_the_device_names_its_text(cuda):
    with pytest.raises(InputError, match="diverged at step") as raised:
        fit("cuda", optimizer="sgd", learning_rate=1e30, clip_norm=1e30, max_steps=20)
    assert re.search(r"the row of text with the highest loss is '.*w\d+ w\d+", str(raised.value))


def test_diagnostics_are_those_of_the_cpu(cuda):
    here = fit("cpu").model.network
    there = fit("cuda").model.network
    found, expected = diagnose(there, VALID), diagnose(here, VALID)
    assert found["gradient_by_lag"] == pytest.approx(expected["gradient_by_lag"], rel=1e-3)
    for one, other in zip(found["gate_saturation"], expected["gate_saturation"], strict=True):
        assert (one["low"], one["high"]) == pytest.approx((other["low"], other["high"]), abs=0.02)


@pytest.mark.parametrize("name", ["lstm", "adaptive", "feed-forward"])
def test_dynamic_evaluation_on_the_device_has_the_scores_of_the_cpu(cuda, name):
    original = families.model(name)
    network = Network(original.network.config, len(original.vocabulary))
    network.load_state_dict(original.network.state_dict())
    there = NeuralModel(network, original.vocabulary, device="cuda")
    text = families.corpus(12)
    found = dynamic_evaluation(there, text, progress=SILENT).log_probs
    with cuda.measured() as report:
        again = dynamic_evaluation(there, text, progress=SILENT).log_probs
    assert np.array_equal(found, again)  # the model is unchanged
    np.testing.assert_allclose(
        found, dynamic_evaluation(original, text, progress=SILENT).log_probs, atol=1e-4
    )
    weights = sum(param.requires_grad for param in network.parameters())
    if not cuda.counts_copies:
        return
    segments = -(-(len(text.with_boundaries()) - 1) // 20)
    assert len(report.to_device) == segments
    # the host reads the scores, and one number for each weight
    assert report.to_host[1::2] == [4 * weights] * segments
    assert sum(report.to_host[::2]) == 4 * len(found)
    assert report.waits.count("nonzero") == len(report.waits) == segments * (3 if name == "adaptive" else 1)


@pytest.mark.usefixtures("no_pictures")
def test_a_published_model_trains_further_and_is_evaluated_on_the_device(cuda, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(
        "\n".join(
            f"the {noun} sat on the {place}"
            for noun in ["cat", "dog", "owl"]
            for place in ["mat", "bed", "roof"]
            for _ in range(9)
        )
    )
    small = ["train.max_steps=4", "train.batch_size=4", "train.bptt_length=8"]
    sizes = ["tokenizer.kind=char", "neural.hidden_size=16", "neural.embedding_size=16"]
    common = {"registry": tmp_path, "corpus": [corpus], "device": "cuda"}
    run_train("lstm", name="first", assignments=[*sizes, *small, "train.precision=auto"], **common)
    run_train("finetune", name="second", assignments=["train.from=first", *small], **common)
    run_train("lstm", name="taught", assignments=[*sizes, *small, 'train.teacher=["second"]'], **common)
    results = [
        run_evaluate(
            "taught",
            context="stream",
            unit="line",
            window=100,
            precision="float32",
            **common | {"device": device},
        )["perplexity"]
        for device in ("cuda", "cpu")
    ]
    assert results[0] == pytest.approx(results[1], rel=1e-4)
    loaded = load_checkpoint(tmp_path / "second" / "versions" / "1", device="cuda")
    assert loaded.model.network.embedding.weight.is_cuda

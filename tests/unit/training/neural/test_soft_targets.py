"""Soft targets of teachers: reading, look-up and gradients, against slow references."""

import numpy as np
import pytest
import torch

from models.arrays import to_numpy
from models.errors import FormatError
from models.language_model import BOS
from tests.support import families
from training.neural import streams as soft_targets
from training.neural.losses.softmax import linear_softmax
from training.neural.settings import TrainSettings
from training.neural.streams import SoftTargets, Streams, write_soft_targets
from training.progress import SILENT

CPU = torch.device("cpu")
WIDTH = 40  # of the distributions: the size of the vocabulary of `families`


def read(path, teachers, corpus, *, precision=torch.float32):
    write_soft_targets(path, teachers, corpus, device=CPU, precision=precision, progress=SILENT)
    return np.load(path)


def dense(records, position):
    """Probabilities of a position [V]."""
    found = records[position % len(records), position // len(records)]
    row = np.zeros(WIDTH)
    row[found["ids"][:32]] = found["probabilities"]
    return row


def drawn(records, position):
    """Probabilities of a position that the drawn tokens represent [V]."""
    found = records[position % len(records), position // len(records)]
    return np.bincount(found["ids"][32:], minlength=WIDTH) * float(found["of_drawn"])


def stepwise(models, text, start, position):
    """Mean distribution at a position after reading from `start` on, one token at a time, cut to 32 tokens."""
    states = [model.empty_state(1) for model in models]
    for token in range(start, position):
        ids = np.array([text[token % len(text)]])
        states = [model.advance(state, ids) for model, state in zip(models, states, strict=True)]
    rows = [to_numpy(m.next_log_probs(s))[0].astype(float) for m, s in zip(models, states, strict=True)]
    mean = np.exp(rows).mean(axis=0)
    mean[np.argsort(-mean)[32:]] = 0
    return mean


@pytest.fixture
def restored_threads():
    """Restore the number of torch's threads, which writing sets to what torch told before."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize(
    "names",
    [
        ("lstm",),
        ("adaptive",),
        ("ngram",),
        ("mixture by context",),
        ("cached mixture",),
        ("lstm", "ngram", "gru"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_running_stream_is_read_in_rows_with_context(tmp_path, monkeypatch, names, threads):
    monkeypatch.setattr(soft_targets, "_CONTEXT", 5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    models, corpus = [families.model(name) for name in names], families.corpus(60)
    records = read(tmp_path / "targets.npy", models, corpus)
    text = corpus.with_boundaries()
    assert records.shape[1] > 2
    assert records.size >= len(text)
    for position in [1, 2, len(records) - 1, len(records), len(records) + 1, len(text) - 1]:
        start = position // len(records) * len(records) - 5
        expected = stepwise(models, text, start, position)
        np.testing.assert_allclose(dense(records, position), expected, atol=2e-3)
        rest = drawn(records, position)
        assert rest.sum() == pytest.approx(1 - expected.sum(), abs=2e-3)
        assert not rest[expected > 0].any()


def test_rows_that_are_no_multiple_of_the_segments_are_complete(tmp_path, monkeypatch):
    monkeypatch.setattr(soft_targets, "_CONTEXT", 3)
    corpus = families.corpus(23)
    wholes = []
    for steps in (1, 7, 1000):
        monkeypatch.setattr(soft_targets, "_SEGMENT_STEPS", steps)
        wholes.append(read(tmp_path / f"{steps}.npy", [families.model("gru")], corpus))
    for other in wholes[1:]:
        assert other.shape == wholes[0].shape
        np.testing.assert_allclose(other["probabilities"], wholes[0]["probabilities"], atol=2e-3)


def test_bfloat16_is_near_float32(tmp_path):
    model, corpus = families.model("lstm"), families.corpus(30)
    single = read(tmp_path / "a.npy", [model], corpus)
    half = read(tmp_path / "b.npy", [model], corpus, precision=torch.bfloat16)
    for position in (1, 40, 99):
        rows = dense(half, position), dense(single, position)
        both = np.minimum(*rows) > 0  # nearly equal tokens may change places at the end of the list
        assert both.sum() > 25
        np.testing.assert_allclose(rows[0][both], rows[1][both], rtol=0.03)


def test_a_file_that_cannot_be_written_is_told_by_its_path(tmp_path):
    with pytest.raises(FormatError, match=r"missing/targets\.npy"):
        read(tmp_path / "missing" / "targets.npy", [families.model("ngram")], families.corpus(5))
    assert torch.get_num_threads() >= 1


def changes_of(targets, ids, probabilities, weight):
    """Changes of the targets for soft targets as ids and probabilities [N, K]."""
    amounts = np.concatenate([np.full((len(targets), 1), -1.0), probabilities], axis=1) * weight
    both = np.concatenate([np.asarray(targets)[:, None], ids], axis=1)
    return torch.as_tensor(both), torch.as_tensor(amounts).float()


def test_changes_are_looked_up_by_position(tmp_path):
    corpus = families.corpus(200)
    records = read(tmp_path / "targets.npy", [families.model("lstm")], corpus)
    assert records.shape[1] > 1
    for segment in Streams(
        corpus, TrainSettings(batch_size=3, bptt_length=60, unknown_share=0.0), seed=1
    ).segments(1):
        predicted = segment.targets != BOS
        got = SoftTargets(tmp_path / "targets.npy", ()).changes(segment, weight=0.25, device=CPU)
        rows = [dense(records, p) + drawn(records, p) for p in segment.positions[predicted]]
        found = torch.zeros(len(rows), WIDTH).scatter_add_(1, *got)
        expected = torch.as_tensor(np.array(rows)) * 0.25
        expected[torch.arange(len(rows)), torch.as_tensor(segment.targets[predicted])] -= 0.25
        torch.testing.assert_close(found, expected.float(), atol=1e-6, rtol=0)


def test_positions_of_segments_are_those_of_the_text():
    """Over several epochs, each with another offset, and across the end of the cyclic text."""
    corpus = families.corpus(30)
    text = corpus.with_boundaries()
    settings = TrainSettings(batch_size=3, bptt_length=11, variable_bptt=True, unknown_share=0.0)
    streams = Streams(corpus, settings, seed=4)
    met = set()
    for segment in streams.segments(5):
        np.testing.assert_array_equal(text[segment.positions], segment.targets)
        np.testing.assert_array_equal(text[segment.positions - 1], segment.inputs)
        met.update(segment.positions.ravel().tolist())
    assert met == set(range(len(text)))


def taught_loss(weight, bias, inputs, targets, soft, share, pull):
    """Mean loss in float64, from its definition, with soft labels as pairs of ids and probabilities."""
    total = 0.0
    for row, target, (ids, probabilities) in zip(inputs, targets, soft, strict=True):
        logits = weight @ row + bias
        log_sum = np.log(np.exp(logits).sum())
        log_probs = logits - log_sum
        total -= (1 - share) * log_probs[target] + share * (probabilities * log_probs[ids]).sum()
        total += 0.5 * pull * log_sum**2
    return total / len(targets)


def numerical(function, point, step=1e-6):
    """Gradient by central differences."""
    gradient = np.empty_like(point)
    for index in np.ndindex(point.shape):
        moved = [point.copy(), point.copy()]
        moved[0][index] += step
        moved[1][index] -= step
        gradient[index] = (function(moved[0]) - function(moved[1])) / (2 * step)
    return gradient


@pytest.mark.parametrize("device", families.DEVICES)
@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("pull", [0.0, 0.4])
@pytest.mark.parametrize("rows", [2, 256], ids=["sliced", "whole"])
def test_gradients_are_those_of_the_definition(monkeypatch, device, share, pull, rows):
    for limit in ("MAX_LOGITS", "MAX_LOGITS_ON_CUDA"):
        monkeypatch.setattr(f"training.neural.losses.softmax.{limit}", 0)
    monkeypatch.setattr("training.neural.losses.softmax.MIN_ROWS", rows)
    random = np.random.default_rng(int(10 * share))
    vocab_size, count, kept = 11, 5, 4
    weight, bias = random.normal(size=(vocab_size, 3)), random.normal(size=vocab_size)
    inputs, targets = random.normal(size=(count, 3)), random.integers(2, vocab_size, count)
    ids = np.array([random.choice(vocab_size, kept, replace=False) for _ in range(count)])
    ids[0, 0] = targets[0] if targets[0] not in ids[0] else ids[0, 0]  # a target among the soft labels
    probabilities = random.dirichlet(np.ones(kept), count)
    soft = list(zip(ids, probabilities, strict=True))
    changes = tuple(change.to(device) for change in changes_of(targets, ids, probabilities, share))
    tensors = [torch.as_tensor(array).float().to(device) for array in (weight, bias, inputs)]
    done = linear_softmax(
        *tensors,
        torch.as_tensor(targets, device=device),
        scale=1 / count,
        precision=torch.float32,
        pull=pull,
        changes=changes,
    )

    def loss(changed, index):
        given = [weight, bias, inputs]
        given[index] = changed
        return taught_loss(*given, targets, soft, share, pull)

    for index, got in enumerate((done.grad_weight, done.grad_bias, done.grad_inputs)):
        expected = numerical(lambda p, index=index: loss(p, index), (weight, bias, inputs)[index])
        np.testing.assert_allclose(got.cpu().numpy(), expected, atol=2e-6)
    plain = linear_softmax(
        *tensors,
        torch.as_tensor(targets, device=device),
        scale=1 / count,
        precision=torch.float32,
        pull=pull,
    )
    assert torch.equal(done.losses, plain.losses)  # the reported loss is that of the text


def test_gradients_in_bfloat16_are_near_those_in_float32():
    torch.manual_seed(1)
    weight, bias, inputs = torch.randn(90, 16), torch.randn(90), torch.randn(40, 16)
    targets, ids = torch.randint(2, 90, (40,)), torch.stack([torch.randperm(90)[:8] for _ in range(40)])
    changes = changes_of(targets, ids, torch.softmax(torch.randn(40, 8), -1), 0.5)

    def of(precision):
        return linear_softmax(
            weight, bias, inputs, targets, scale=1 / 40, precision=precision, changes=changes
        )

    single, half = of(torch.float32), of(torch.bfloat16)
    torch.testing.assert_close(half.grad_weight, single.grad_weight, atol=4e-3, rtol=0.03)
    torch.testing.assert_close(half.grad_inputs.float(), single.grad_inputs, atol=4e-3, rtol=0.05)


def test_bos_is_never_a_soft_target(tmp_path):
    records = read(tmp_path / "targets.npy", [families.model("lstm")], families.corpus(20))
    assert not records["probabilities"][records["ids"][..., :32] == BOS].any()
    assert not records["of_drawn"][(records["ids"][..., 32:] == BOS).any(axis=-1)].any()
    total = records["probabilities"].astype(float).sum(-1) + 16 * records["of_drawn"].astype(float)
    np.testing.assert_allclose(total, 1, atol=2e-3)


def test_drawn_tokens_represent_the_rest_of_a_distribution_without_bias():
    p = torch.softmax(torch.randn(1, 3_000, generator=torch.Generator().manual_seed(2)), -1)
    record = np.dtype(
        [("ids", np.uint16, (48,)), ("probabilities", np.float32, (32,)), ("of_drawn", np.float32)]
    )
    generator, rest, rounds = torch.Generator().manual_seed(3), np.zeros(3_000), 4_000
    for _ in range(rounds):
        (found,) = soft_targets._record(p.clone(), record, generator)
        rest += np.bincount(found["ids"][32:], minlength=3_000) * found["of_drawn"] / rounds
    expected = p[0].numpy().astype(float)
    expected[found["ids"][:32]] = 0
    spread = np.sqrt(expected * found["of_drawn"] / rounds)
    assert (np.abs(rest - expected) <= 5 * spread + 1e-9).all()

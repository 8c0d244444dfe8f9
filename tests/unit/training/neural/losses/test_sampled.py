"""Losses over all, clustered and sampled tokens, against explicit formulas in float64."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from models.errors import InputError
from models.language_model import BOS
from models.neural.output import AdaptiveSoftmax, ClusteredEmbedding, Softmax
from training.neural.losses import sampled, softmax
from training.neural.losses.sampled import (
    NegativeSampling,
    NoiseContrastive,
    NoiseSampler,
    SampledSoftmax,
    SwitchedLoss,
    make_loss,
    noise_weights,
)
from training.neural.losses.softmax import AdaptiveCrossEntropy, FullSoftmax
from training.neural.settings import TrainSettings
from training.recipe import load_recipe

V, E, N = 30, 8, 40
COUNTS = torch.arange(V, 0, -1).float() ** 2


@pytest.fixture
def text():
    """Features and target tokens, some of them frequent."""
    torch.manual_seed(3)
    ids = torch.multinomial(COUNTS.index_fill(0, torch.tensor([BOS]), 0.0), N, replacement=True)
    return torch.randn(N, E), ids


@pytest.fixture
def layer():
    torch.manual_seed(4)
    softmax = Softmax(E, V, shared=None)
    torch.nn.init.normal_(softmax.weight)
    softmax.initialise_from_counts(COUNTS)
    return softmax


@pytest.fixture
def adaptive():
    torch.manual_seed(5)
    softmax = AdaptiveSoftmax(E, ClusteredEmbedding(V, E, cutoffs=(7, 15)))
    for vectors in (*softmax.vectors.tables, softmax.clusters):
        torch.nn.init.uniform_(vectors, -1, 1)
    softmax.initialise_from_counts(COUNTS.flip(0))
    return softmax


def sampler(samples=12, seed=1, kind="unigram"):
    return NoiseSampler(noise_weights(COUNTS.numpy(), kind), samples=samples, seed=seed)


def check_gradients(loss, output, features, ids, formula, atol=1e-6):
    """Check the loss and all gradients against autograd through a float64 formula of the layer."""
    output.zero_grad()
    learned = loss(features, ids, precision=torch.float32)
    got = {name: p.grad.clone() for name, p in output.named_parameters()}
    output.zero_grad()
    exact = output.double()
    leaf = features.double().requires_grad_()
    want = formula(exact, leaf)
    want.backward()
    assert learned.loss == pytest.approx(want.item(), abs=max(atol, 1e-5))
    torch.testing.assert_close(learned.gradient.double(), leaf.grad, atol=atol, rtol=1e-4)
    for name, param in exact.named_parameters():
        torch.testing.assert_close(got[name].double(), param.grad, atol=atol, rtol=1e-4)


def sampled_formula(drawn, log_expected, ids):
    def formula(layer, features):
        logits = features @ layer.weight.T + layer.bias
        own = logits.gather(1, ids[:, None])
        others = logits[:, drawn] - log_expected.double()
        others = others.masked_fill(drawn == ids[:, None], -torch.inf)
        return (torch.cat([own, others], 1).logsumexp(1) - own[:, 0]).mean()

    return formula


def contrastive_formula(drawn, correction, ids):
    def formula(layer, features):
        scores = features @ layer.weight.T + layer.bias - correction.double()
        true, false = scores.gather(1, ids[:, None])[:, 0], scores[:, drawn]
        return -(functional.logsigmoid(true) + functional.logsigmoid(-false).sum(1)).mean()

    return formula


@pytest.fixture(params=["whole", "slices"])
def slices(request, monkeypatch):
    """All positions at once, or a few at a time."""
    if request.param == "slices":
        monkeypatch.setattr(sampled, "MAX_SAMPLED_LOGITS", 60)
        monkeypatch.setattr(softmax, "MAX_LOGITS", 60)
        monkeypatch.setattr(softmax, "MIN_ROWS", 1)


@pytest.mark.usefixtures("slices")
def test_the_adaptive_loss_and_its_gradients(adaptive, text):
    features, ids = text

    def formula(layer, leaf):
        return -layer.log_probs(leaf).gather(1, ids[:, None]).mean()

    check_gradients(AdaptiveCrossEntropy(adaptive), adaptive, features, ids, formula)


def test_clusters_that_nothing_needs_get_gradients_of_zero(adaptive, text):
    features, _ = text
    frequent = torch.full((N,), V - 1)  # counts fall from the last id to the first
    AdaptiveCrossEntropy(adaptive)(features, frequent, precision=torch.float32)
    assert not adaptive.vectors.table(2).grad.any()
    assert adaptive.vectors.table(0).grad.any()


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("kind", ["unigram", "log-uniform"])
def test_the_sampled_softmax_and_its_gradients(layer, text, kind):
    source = sampler(kind=kind)
    drawn = source.draw()
    formula = sampled_formula(drawn, source.log_expected[drawn], text[1])
    check_gradients(SampledSoftmax(layer, sampler(kind=kind)), layer, *text, formula)


@pytest.fixture
def changes(text):
    """Changes of the targets as teachers make them: 0.6 from the text's token to six tokens, two of them equal."""
    torch.manual_seed(6)
    ids = torch.randint(BOS + 1, V, (N, 6))
    ids[:, 1] = ids[:, 0]
    ids[::2, 2] = text[1][::2]
    given = 0.6 * torch.rand(N, 6).softmax(1)
    return torch.cat([text[1][:, None], ids], 1), torch.cat([torch.full((N, 1), -0.6), given], 1)


def taught(formula, changes, weights):
    """Subtract the changes' share of the logits, as gradients see it, by the tokens' weights [N, V]."""

    def changed(layer, features):
        logits = features @ layer.weight.T + layer.bias
        moved = logits.gather(1, changes[0]) * changes[1].double() * weights.double().gather(1, changes[0])
        difference = moved.sum(1).mean()
        return formula(layer, features) - (difference - difference.detach())

    return changed


@pytest.mark.usefixtures("slices")
def test_teachers_of_the_sampled_softmax_and_its_gradients(layer, text, changes):
    source = sampler()
    drawn = source.draw()
    weights = torch.zeros(N, V)  # of a sampled token, 1 / inclusion probability; of the target, 1
    weights[:, drawn] = (-source.log_expected[drawn]).exp()
    weights.scatter_(1, text[1][:, None], 1.0)
    formula = sampled_formula(drawn, source.log_expected[drawn], text[1])
    loss = SampledSoftmax(layer, sampler())
    loss.changes = changes
    check_gradients(loss, layer, *text, taught(formula, changes, weights))


def test_with_all_tokens_drawn_teachers_move_the_sampled_softmax_as_the_full_one(layer, text, changes):
    full, sampled = FullSoftmax(layer), SampledSoftmax(layer, sampler(samples=10**6))
    learned = []
    for loss in (full, SwitchedLoss(sampled, full, share=0.5)):
        layer.zero_grad()
        loss.changes = changes
        learned.append((loss(*text, precision=torch.float32).gradient, layer.weight.grad.clone()))
    torch.testing.assert_close(learned[0], learned[1], atol=1e-6, rtol=1e-4)


@pytest.mark.usefixtures("slices")
def test_noise_contrastive_estimation_and_its_gradients(layer, text):
    correction = sampler().log_expected.nan_to_num(neginf=0)
    formula = contrastive_formula(sampler().draw(), correction, text[1])
    check_gradients(NoiseContrastive(layer, sampler()), layer, *text, formula)


@pytest.mark.usefixtures("slices")
def test_negative_sampling_and_its_gradients(layer, text):
    formula = contrastive_formula(sampler().draw(), torch.zeros(V), text[1])
    check_gradients(NegativeSampling(layer, sampler()), layer, *text, formula)


@pytest.mark.parametrize("kind", [FullSoftmax, SampledSoftmax, NoiseContrastive])
def test_bfloat16_is_near_float32(layer, text, kind):
    def learn(precision):
        loss = kind(layer) if kind is FullSoftmax else kind(layer, sampler())
        layer.zero_grad()
        learned = loss(*text, precision=precision)
        return learned, layer.weight.grad.clone()

    (single, of_single), (half, of_half) = learn(torch.float32), learn(torch.bfloat16)
    assert half.loss == pytest.approx(single.loss, rel=0.02)
    torch.testing.assert_close(half.gradient, single.gradient, atol=2e-3, rtol=0.05)
    torch.testing.assert_close(of_half, of_single, atol=2e-3, rtol=0.05)


def test_with_all_tokens_drawn_the_sampled_softmax_is_the_full_one(layer, text):
    full = FullSoftmax(layer)(*text, precision=torch.float32)
    want = layer.weight.grad.clone()
    layer.zero_grad()
    sampled = SampledSoftmax(layer, sampler(samples=10**6))(*text, precision=torch.float32)
    assert sampled.loss == pytest.approx(full.loss, abs=1e-6)
    torch.testing.assert_close(layer.weight.grad, want, atol=1e-6, rtol=1e-4)


def test_the_mean_gradient_nears_the_full_softmaxs_as_samples_grow(layer, text):
    full = FullSoftmax(layer)(*text, precision=torch.float32).gradient

    def distance(samples):
        loss = SampledSoftmax(layer, sampler(samples=samples))
        draws = [loss(*text, precision=torch.float32).gradient for _ in range(300)]
        return (torch.stack(draws).mean(0) - full).norm() / full.norm()

    few, more, most = distance(3), distance(10), distance(25)
    assert few > 1.5 * more > 2 * most
    assert most < 0.03


def test_noise_is_drawn_as_often_as_it_says():
    """Frequencies of 4,000 draws, each without replacement, lie within five deviations."""
    source = sampler()
    drawn = torch.cat([source.draw() for _ in range(4000)])
    often = torch.bincount(drawn, minlength=V) / 4000
    expected = source.log_expected.exp()
    assert expected[BOS] == 0
    assert expected.sum() == pytest.approx(12, abs=1e-4)
    assert ((often - expected).abs() <= 5 * (expected * (1 - expected) / 4000).sqrt() + 1e-6).all()


def test_a_draw_holds_no_token_twice():
    source = sampler(samples=20)
    for _ in range(200):
        ids = source.draw().numpy()
        assert len(np.unique(ids)) == len(ids) == 20


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_draws_continue_from_a_saved_state(layer, text, share):
    settings = TrainSettings(loss="sampled", samples=5, sampled_share=share)

    def learn(loss):
        return loss(*text, precision=torch.float32).loss

    loss = make_loss(settings, layer, COUNTS, seed=7)
    learn(loss)
    state, want = loss.state(), [learn(loss) for _ in range(3)]
    again = make_loss(settings, layer, COUNTS, seed=8)
    again.restore(state)
    assert [learn(again) for _ in range(3)] == want


def test_the_second_loss_takes_over_after_its_share(layer, text):
    full = FullSoftmax(layer)
    loss = SwitchedLoss(SampledSoftmax(layer, sampler(samples=3)), full, share=0.4)
    want = full(*text, precision=torch.float32).loss
    # a run resumed with a later end samples again
    for done, same in [(0.0, False), (0.39, False), (0.4, True), (1.0, True), (0.3, False), (0.5, True)]:
        loss.set_progress(done)
        assert (loss(*text, precision=torch.float32).loss == want) == same


@pytest.mark.parametrize(
    ("validations", "switched_at"),
    [
        ([(0.1, 90, False), (0.2, 89.9, False), (0.6, 70, False), (0.7, 60, False)], None),
        # gains less than one per cent
        ([(0.1, 90, False), (0.5, 80, False), (0.6, 79.5, False), (0.7, 60, False)], 0.6),
        ([(0.1, 90, False), (0.5, 91, False)], 0.5),
        ([(0.1, 90, True)], 0.1),  # updates, not minutes, end the run
        ([(0.1, 90, False), (0.9, 60, False)], 0.9),
        ([(0.0, 90, True)], None),  # of a base, before the first update
    ],
)
def test_validations_end_the_chosen_sampling(validations, switched_at):
    layer = Softmax(E, 4000, shared=None)
    counts = torch.ones(4000)
    loss = make_loss(TrainSettings(loss="auto"), layer, counts, seed=7)
    assert loss.name == "softmax of 512 sampled tokens"
    for number, (done, perplexity, has_spare_time) in enumerate(validations):
        if number == len(validations) // 2:  # a resumed run continues as the first
            state, loss = loss.state(), make_loss(TrainSettings(loss="auto"), layer, counts, seed=7)
            loss.restore(state)
        loss.set_progress(done)
        loss.record_validation(perplexity, has_spare_time=has_spare_time)
        assert loss.is_final == (done == switched_at or loss.switched_at == switched_at is not None)
    assert loss.switched_at == switched_at
    if switched_at:
        assert loss.name == f"softmax of 512 sampled tokens; from {switched_at:.0%} on, softmax of all tokens"


@pytest.mark.parametrize(
    ("settings", "size", "name"),
    [
        ({}, 2047, "softmax of all tokens"),
        ({}, 2048, "softmax of 512 sampled tokens"),
        ({}, 8000, "softmax of 1,000 sampled tokens"),
        ({}, 40_000, "softmax of 2,048 sampled tokens"),
        ({"samples": 100}, 4000, "softmax of 100 sampled tokens"),
        ({"self_normalise": 0.1}, 8000, "softmax of all tokens"),
    ],
)
def test_auto_samples_where_the_vocabulary_is_large(settings, size, name):
    layer = Softmax(E, size, shared=None)
    assert make_loss(TrainSettings(loss="auto", **settings), layer, torch.ones(size), seed=7).name == name


def test_auto_leaves_an_adaptive_softmax(adaptive):
    assert make_loss(TrainSettings(loss="auto"), adaptive, COUNTS, seed=7).name == "adaptive softmax"


@pytest.mark.parametrize("name", ["sampled", "nce", "negative-sampling"])
def test_drawing_losses_refuse_an_adaptive_softmax(name):
    with pytest.raises(InputError, match=f"train.loss={name} requires neural.output=softmax, given adaptive"):
        load_recipe("lstm", ["neural.output=adaptive", "neural.cutoffs=[10]", f"train.loss={name}"])


def test_self_normalisation_refuses_an_adaptive_softmax():
    with pytest.raises(InputError, match=r"train\.self_normalise requires neural\.output=softmax"):
        load_recipe("lstm", ["neural.output=adaptive", "neural.cutoffs=[10]", "train.self_normalise=0.1"])

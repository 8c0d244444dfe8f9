"""The stand-in for a CUDA device: it refuses what CUDA refuses, counts copies, and computes the CPU's results."""

import copy
import io
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from models.neural.layers import AttentionBody
from models.neural.model import NeuralModel
from tests.support import cuda_stand_in, families
from tests.support.cuda_stand_in import TO_DEVICE, TO_HOST, DeviceTensor, Transfer, stand_in

MIXED = "Expected all tensors to be on the same device"


@pytest.fixture
def cuda():
    with stand_in() as device:
        yield device


@pytest.fixture
def here():
    return torch.arange(6.0).view(2, 3)


@pytest.fixture
def there(cuda, here):
    return here.to("cuda")


def test_the_device_is_named_as_a_cuda_device(there):
    assert (there.device, there.is_cuda, there.get_device()) == (torch.device("cuda", 0), True, 0)
    assert torch.cuda.is_available()
    assert there.cpu().device == torch.device("cpu")
    assert type(there.cpu()) is torch.Tensor


@pytest.mark.parametrize(
    ("operation", "mix"),
    [
        ("add", lambda here, there: here + there),
        ("mul", lambda here, there: there * here),
        ("mm", lambda here, there: there @ here.T),
        ("cat", lambda here, there: torch.cat([there, here])),
        ("where", lambda here, there: torch.where(here > 1, there, 0.0)),
        ("add_", lambda here, there: there.add_(here)),
        ("gather", lambda here, there: there.gather(1, here.long().clamp(max=2))),
        ("index_put_", lambda here, there: there.__setitem__((there > 1,), here[0])),
        ("index", lambda here, there: here[(there > 1).nonzero(as_tuple=True)]),
        ("masked_fill", lambda here, there: there.masked_fill(here > 1, 0)),
        ("mul", lambda here, there: here * there.sum()),
        ("mm", lambda here, there: torch.mm(there, there.T, out=here.new_empty(2, 2))),
    ],
)
def test_tensors_of_the_cpu_and_of_the_device_do_not_mix(here, there, operation, mix):
    with pytest.raises(RuntimeError, match=rf"{MIXED}.*arguments for {operation};"):
        mix(here, there)


def test_scalars_and_indices_of_the_host_mix_with_device_tensors(cuda, here, there):
    """Scalars are arguments of operations; indices are copied."""
    with cuda.measured() as report:
        assert torch.equal((there * torch.tensor(2.0)).inner, here * 2)
        assert torch.equal(torch.add(there, np.float32(1)).inner, here + 1)
    assert report.transfers == []
    with cuda.measured() as report:
        assert torch.equal(there[torch.tensor([1, 0])].inner, here[[1, 0]])
        there[:, np.array([0, 2])] = -1
    assert report.transfers == [
        Transfer(TO_DEVICE, 16, "index of index"),
        Transfer(TO_DEVICE, 16, "index of index_put_"),
    ]
    assert there.tolist() == [[-1, 1, -1], [-1, 4, -1]]


@pytest.mark.parametrize("read", [lambda t: t.numpy(), np.asarray, np.exp, lambda t: np.sum([t])])
def test_numpy_cannot_read_the_device(there, read):
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        read(there)


@pytest.mark.parametrize(
    ("copied", "transfers"),
    [
        (lambda here, _: here.to("cuda"), [(TO_DEVICE, 24)]),
        (lambda here, _: here.to(device=torch.device("cuda"), dtype=torch.float64), [(TO_DEVICE, 48)]),
        (lambda here, there: here.to(there), [(TO_DEVICE, 24)]),
        (lambda here, _: here.cuda(), [(TO_DEVICE, 24)]),
        (lambda here, _: torch.as_tensor(here.numpy(), device="cuda:0"), [(TO_DEVICE, 24)]),
        (lambda here, there: torch.as_tensor(here.numpy(), device=there.device), [(TO_DEVICE, 24)]),
        (lambda *_: torch.tensor([1, 2], device="cuda"), [(TO_DEVICE, 16)]),
        (lambda _, there: there.new_tensor([1, 2]), [(TO_DEVICE, 8)]),
        (lambda here, there: there.copy_(here), [(TO_DEVICE, 24)]),
        (lambda here, there: there.__setitem__(0, here[0]), [(TO_DEVICE, 12)]),
        (lambda here, there: here.copy_(there), [(TO_HOST, 24)]),
        (lambda _, there: there.cpu(), [(TO_HOST, 24)]),
        (lambda _, there: there.to("cpu", torch.float64), [(TO_HOST, 48)]),
        (lambda _, there: there.tolist(), [(TO_HOST, 24)]),
        (lambda _, there: there.sum().item(), [(TO_HOST, 4)]),
        (lambda _, there: float(there.sum()), [(TO_HOST, 4)]),
        (lambda _, there: bool((there > 1).any()), [(TO_HOST, 1)]),
        (lambda _, there: torch.equal(there, there), [(TO_HOST, 4)]),
        (lambda _, there: there.to("cuda"), []),
        (lambda _, there: there.to(torch.float64), []),
        (lambda _, there: torch.as_tensor(there, device="cuda"), []),
        (lambda _, there: torch.as_tensor(there), []),
        (lambda _, there: torch.zeros(2, device="cuda") + there.new_zeros(2), []),
        (lambda *_: torch.full((2,), 3.0, device="cuda"), []),
        (lambda _, there: there.__setitem__(0, 3.0), []),
        (lambda _, there: torch.zeros_like(there) + torch.arange(3, device=there.device), []),
        (lambda here, _: here.to(torch.float64).to("cpu"), []),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_copies_are_counted_with_their_bytes(cuda, here, there, copied, transfers, inference):
    with torch.inference_mode(mode=inference), cuda.measured() as report:
        copied(here, there)
    assert {(one.direction, one.size) for one in report.transfers} == set(transfers)
    if not inference:  # in inference mode, `item` is another operation around the copy
        assert len(report.transfers) == len(transfers)


@pytest.mark.parametrize(
    ("compute", "waits"),
    [
        (lambda there: there.nonzero(), ["nonzero"]),
        (lambda there: there[there > 1], ["index"]),
        (lambda there: there.unique(), ["_unique2"]),
        (lambda there: there.masked_select(there > 1), ["masked_select"]),
        (lambda there: there[0].long().repeat_interleave(there[0].long()), ["repeat_interleave"]),
        (lambda there: torch.repeat_interleave(there[0].long(), output_size=3), []),
        (lambda there: there[:, there[0].long()], []),
        (lambda there: there.masked_fill(there > 1, 0), []),
    ],
)
def test_waits_for_shapes_are_counted(cuda, there, compute, waits):
    with cuda.measured() as report:
        compute(there)
    assert (report.waits, report.transfers) == (waits, [])


def test_views_share_memory_and_operations_in_place_return_their_argument(there):
    row, turned = there[1], there.T
    assert there.add_(1) is there
    row.zero_()
    turned[0] = 9
    assert there.tolist() == [[9, 2, 3], [9, 0, 0]]
    assert row.tolist() == [9, 0, 0]
    with pytest.raises(AssertionError, match="changed the shape of its argument in place"):
        there.t_()


def test_a_moved_module_keeps_its_parameters_and_what_they_share(cuda):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.lstm, self.output = nn.Embedding(5, 4), nn.LSTM(4, 4), nn.Linear(4, 5)
            self.output.weight = self.embedding.weight
            self.register_buffer("mask", torch.ones(5), persistent=False)

    module = Tied()
    before = list(module.parameters())
    assert module.to("cuda") is module
    after = list(module.parameters())
    assert all(one is other and one.is_cuda for one, other in zip(before, after, strict=True))
    assert all(isinstance(param, nn.Parameter) for param in after)
    assert module.mask.is_cuda
    assert module.output.weight is module.embedding.weight
    assert all(weight.is_cuda for weight in module.lstm._flat_weights)
    assert module.to("cpu").embedding.weight.device.type == "cpu"
    assert module.output.weight is module.embedding.weight


def loss_of(module, inputs, targets):
    outputs, _ = module.lstm(module.embedding(inputs))
    return nn.functional.cross_entropy(module.output(outputs).flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop])
def test_a_network_trained_there_has_the_gradients_and_weights_of_one_trained_here(cuda, optimizer):
    torch.manual_seed(3)
    module = nn.Module()
    module.embedding, module.lstm, module.output = nn.Embedding(5, 4), nn.LSTM(4, 4), nn.Linear(4, 5)
    moved = copy.deepcopy(module).to("cuda")
    inputs, targets = torch.randint(5, (2, 7, 3))
    for network, place in ((module, "cpu"), (moved, "cuda")):
        learner = optimizer(
            network.parameters(), lr=0.1, **({} if optimizer is torch.optim.RMSprop else {"fused": True})
        )
        for _ in range(3):
            learner.zero_grad()
            loss_of(network, inputs.to(place), targets.to(place)).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            learner.step()
    for one, other in zip(module.parameters(), moved.parameters(), strict=True):
        assert isinstance(other.grad, DeviceTensor)
        torch.testing.assert_close(other.grad.cpu(), one.grad, atol=1e-6, rtol=0)
        torch.testing.assert_close(other.detach().cpu(), one.detach(), atol=1e-5, rtol=0)


def test_a_recurrent_layer_gets_new_memory_whenever_it_is_moved(cuda):
    layer = nn.LSTM(2, 3).to("cuda")
    weight = layer.weight_hh_l0
    before, values = weight.data, weight.detach().cpu()
    layer.to("cuda")
    assert layer.weight_hh_l0 is weight
    with torch.no_grad():
        weight.zero_()
    assert torch.equal(before.cpu(), values)


def test_gradients_flow_through_copies(cuda):
    weights = torch.ones(3, requires_grad=True)
    (weights.to("cuda") * 2).cpu().sum().backward()
    assert weights.grad.tolist() == [2, 2, 2]


def test_the_device_has_its_own_random_numbers(cuda):
    torch.manual_seed(1)
    first, of_host = torch.rand(4, device="cuda"), torch.get_rng_state()
    dropped = nn.functional.dropout(torch.ones(99, device="cuda"), 0.5)
    assert torch.equal(torch.get_rng_state(), of_host)
    state = torch.cuda.get_rng_state()
    more = torch.zeros(4, device="cuda").uniform_()
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.zeros(4, device="cuda").uniform_(), more)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(4, device="cuda"), first)
    assert torch.equal(nn.functional.dropout(torch.ones(99, device="cuda"), 0.5), dropped)
    with torch.random.fork_rng(devices=[torch.device("cuda")]):
        inside = torch.rand(4, device="cuda")
    assert torch.equal(torch.rand(4, device="cuda"), inside)


def test_a_generator_belongs_to_one_device(cuda):
    here, there = torch.Generator().manual_seed(1), torch.Generator("cuda").manual_seed(1)
    assert torch.rand(3, generator=there, device="cuda").is_cuda
    torch.rand(3, generator=here, device="cpu")
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.rand(3, generator=here, device="cuda")
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        torch.rand(3, generator=there, device="cpu")
    with pytest.raises(RuntimeError, match=r"for generator but found 'cpu' \(bernoulli_"):
        torch.ones(3, device="cuda").bernoulli_(0.5, generator=here)


def test_autocast_rounds_products_on_the_device(cuda, there):
    with torch.autocast("cuda", torch.bfloat16):
        assert (there @ there.T).dtype == torch.bfloat16
    with torch.autocast("cuda", torch.bfloat16, enabled=False):
        assert (there @ there.T).dtype == torch.float32


def captured(compute):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = compute()
    return graph, result


def test_a_captured_graph_repeats_its_operations_with_the_memory_of_the_capture(there):
    weights = torch.full((3,), 2.0, device="cuda")
    graph, result = captured(lambda: torch.cat([(there * weights).T[1:], torch.ones(1, 2, device="cuda")]))
    assert result.tolist() == [[2, 8], [4, 10], [1, 1]]
    there.fill_(1)
    weights[1] = 5
    assert result.tolist() == [[2, 8], [4, 10], [1, 1]]
    graph.replay()
    assert result.tolist() == [[5, 5], [2, 2], [1, 1]]


@pytest.mark.parametrize(
    "compute",
    [
        lambda t: t.sum().item(),
        lambda t: t + torch.as_tensor(np.ones(3, np.float32), device="cuda"),
        lambda t: t[t > 1],
        lambda t: t.cpu(),
    ],
)
def test_nothing_is_copied_while_a_graph_is_captured(there, compute):
    with pytest.raises(RuntimeError, match="operation not permitted when stream is capturing"):
        captured(lambda: compute(there))
    assert there.sum().item() == 15  # the capture has ended


def test_files_have_the_values(cuda, there):
    content = io.BytesIO()
    torch.save({"weights": there, "other": 3}, content)
    content.seek(0)
    loaded = torch.load(content, map_location="cpu", weights_only=True)
    assert (loaded["weights"].tolist(), loaded["other"]) == (there.tolist(), 3)
    assert load(save({"weights": there}))["weights"].tolist() == there.tolist()


def test_every_thread_sees_the_device(cuda):
    found = []

    def compute():
        found.append((torch.ones(2, device="cuda") * 2).tolist())

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    assert found == [[2, 2]]


def test_after_the_block_torch_is_as_before():
    owners = (torch, torch.cuda, torch.Tensor, nn.Module, torch._C, torch.backends.cudnn)
    before = [dict(vars(owner)) for owner in owners]
    tf32 = torch.backends.cudnn.allow_tf32
    with stand_in():
        changed = [
            name
            for owner, was in zip(owners, before, strict=True)
            for name in vars(owner)
            if vars(owner)[name] is not was.get(name)
        ]
        torch.backends.cudnn.allow_tf32 = not tf32
    assert {"zeros", "as_tensor", "is_available", "to", "Generator"} <= {*changed}
    assert [dict(vars(owner)) for owner in owners] == before
    assert torch.backends.cudnn.allow_tf32 == tf32
    assert not torch.cuda.is_available() or families.DEVICES[-1] == "cuda"
    with torch.device("meta"):
        assert torch.empty(2).is_meta
    assert cuda_stand_in._current == []


def test_a_mask_that_a_model_leaves_on_the_cpu_is_found(cuda, monkeypatch):
    original = families.model("attentive elman")
    monkeypatch.setattr(
        AttentionBody,
        "_visible",
        lambda self, times, filled: torch.ones(filled.shape[1], times, self.before + times, dtype=torch.bool),
    )
    model = NeuralModel(copy.deepcopy(original.network), original.vocabulary, device="cuda")
    with pytest.raises(
        RuntimeError, match=rf"{MIXED}.*arguments for masked_fill; on the cpu: \[\[1, 1, 4\]\]"
    ):
        model.advance(model.empty_state(1), np.array([3]))


def test_a_copy_that_a_model_makes_in_every_step_is_found(cuda, monkeypatch):
    original = families.model("attentive elman")
    made = AttentionBody._visible
    monkeypatch.setattr(AttentionBody, "_visible", lambda self, *given: made(self, *given).cpu().to("cuda"))
    model = NeuralModel(copy.deepcopy(original.network), original.vocabulary, device="cuda")
    state = model.empty_state(1)
    with cuda.measured() as report:
        model.advance(state, np.array([3]))
    assert (report.to_device, report.to_host) == ([8, 4], [4])

"""The network, its files and its device."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.errors import InputError, ManifestError
from models.language_model import BOS, pad_sequences, score_sequences
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network, resolve_device
from tests.support import families


@pytest.fixture(params=families.NEURAL)
def network(request):
    torch.manual_seed(3)
    options = {"layers": 2, "embedding_size": 6, "hidden_size": 6, **families.NEURAL[request.param]}
    return Network(NetworkConfig(**options), 40)


def test_rows_that_go_on_keep_their_state_and_others_begin_anew(network):
    for param in network.parameters():
        torch.nn.init.normal_(param)  # a learned state that is not zero
    tokens = torch.tensor([[3, 4, 5], [6, 7, 8]])
    before = network(tokens, network.initial_hidden(3))[1]
    hidden = network.detach_and_reset(before, torch.tensor([True, False, True]))
    for part, old, new in zip(hidden, before, network.initial_hidden(3), strict=True):
        assert torch.equal(part[:, [0, 2]], old[:, [0, 2]])
        assert torch.equal(part[:, 1], new[:, 1])


def test_gradients_end_where_a_stretch_begins(network):
    tokens = torch.tensor([[3, 4], [6, 7]])
    before = network(tokens, network.initial_hidden(2))[1]
    hidden = network.detach_and_reset(before, torch.ones(2, dtype=torch.bool))
    assert all(part.grad_fn is None or not _reaches(part, network) for part in hidden)


def _reaches(part, network):
    """True if a gradient of a state part reaches a parameter."""
    grads = torch.autograd.grad(part.sum(), list(network.parameters()), allow_unused=True)
    return any(grad is not None and bool(grad.any()) for grad in grads)


def test_a_learned_state_is_learned_by_rows_that_begin():
    config = NetworkConfig(cell="lstm", layers=2, embedding_size=6, hidden_size=6, learned_state=True)
    network = Network(config, 15)
    hidden = network.detach_and_reset(network.initial_hidden(2), torch.tensor([True, False]))
    network(torch.tensor([[3, 4]]), hidden)[0][:, 0].sum().backward()
    assert not any(part.grad.any() for part in network.body.initial)  # row 0 continued
    network.zero_grad()
    hidden = network.detach_and_reset(network.initial_hidden(2), torch.tensor([True, False]))
    network(torch.tensor([[3, 4]]), hidden)[0][:, 1].sum().backward()
    assert all(part.grad.any() for part in network.body.initial)


@pytest.mark.parametrize("tied", [True, False])
def test_lengths_of_initial_vectors_follow_log_counts(tied):
    network = Network(NetworkConfig(embedding_size=6, hidden_size=6, tied=tied), 9)
    before = network.output.weight.detach().clone()
    counts = torch.tensor([1.0, 1, 30, 20, 10, 5, 4, 3, 2])
    network.output.initialise_from_counts(counts)
    counts[BOS] = 30  # read as often as </s>
    logs = torch.log(counts + 1)
    torch.testing.assert_close(network.output.weight.detach(), before * (logs / logs.mean())[:, None])
    assert torch.equal(network.embedding.weight, network.output.weight) == tied


def test_every_parameter_gets_a_gradient(network):
    """Reads several tokens, so memories and recurrent weights are in use."""
    tokens = torch.stack([torch.randperm(40), torch.randperm(40)], dim=1)
    hidden = network.detach_and_reset(network.initial_hidden(2), torch.zeros(2, dtype=torch.bool))
    outputs = network(tokens, hidden)[0]
    features = network.features(outputs).flatten(0, 1)
    predicted = tokens.flatten() != BOS
    network.output.target_log_probs(features[predicted], tokens.flatten()[predicted]).sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in network.parameters())


@pytest.fixture
def saved(model, tmp_path):
    model.save(tmp_path)
    return tmp_path


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_a_loaded_model_answers_as_the_saved_one(model, saved, vocabulary):
    loaded = NeuralModel.load(saved, vocabulary, device="cpu")
    batch = pad_sequences([[3, 4, 5], [6]])
    np.testing.assert_allclose(  # a mapped matrix may have another layout, which changes the order of sums
        score_sequences(loaded, loaded.initial_state(2), *batch),
        score_sequences(model, model.initial_state(2), *batch),
        rtol=1e-6,
    )
    assert loaded.config == model.config


def test_untied_and_narrowed_networks_survive(vocabulary, tmp_path):
    for number, tied in enumerate((True, False)):
        config = NetworkConfig(embedding_size=4, hidden_size=7, tied=tied)
        model = NeuralModel(Network(config, len(vocabulary)), vocabulary)
        folder = tmp_path / str(number)
        folder.mkdir()
        model.save(folder)
        loaded = NeuralModel.load(folder, vocabulary)
        state = loaded.advance(loaded.initial_state(1), np.array([5]))
        expected = model.next_log_probs(model.advance(model.initial_state(1), np.array([5])))
        np.testing.assert_array_equal(loaded.next_log_probs(state), expected)


def test_the_tied_matrix_is_stored_once_and_is_one_again(saved, vocabulary):
    assert "output.weight" not in load_file(saved / "model.safetensors")
    network = NeuralModel.load(saved, vocabulary).network
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    twice = parameters - {name for name, _ in network.named_parameters()}
    assert (
        twice
        >= {name for name in parameters if name.startswith(("output.weight", "output.vectors."))}
        != set()
    )


def test_changed_weights_leave_the_mapped_file_unchanged(saved, vocabulary):
    before = (saved / "model.safetensors").read_bytes()
    with torch.no_grad():
        for param in NeuralModel.load(saved, vocabulary).network.parameters():
            param.add_(1)
    assert (saved / "model.safetensors").read_bytes() == before


def test_a_loaded_network_can_be_trained_further(saved, vocabulary):
    network = NeuralModel.load(saved, vocabulary).network
    outputs, _ = network(torch.arange(6).view(2, 3), network.initial_hidden(3))
    network.output.log_probs(network.features(outputs.flatten(0, 1)))[:, 3:].sum().backward()
    assert all(param.grad is not None for param in network.parameters())


def test_loading_brings_in_no_compiler(vocabulary, tmp_path):
    """The compiler costs a second and 64 MB in every serving process."""
    for name in families.NEURAL.keys() - {"adaptive"}:
        (tmp_path / name).mkdir()
        network = Network(NetworkConfig(**families.NEURAL[name], orthogonal=True), len(vocabulary))
        NeuralModel(network, vocabulary).save(tmp_path / name)
    code = (
        "import sys; from pathlib import Path; from models.neural.network import read_network\n"
        f"for one in Path({str(tmp_path)!r}).iterdir(): read_network(one, vocab_size={len(vocabulary)})\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_loading_leaves_the_random_stream_alone(saved, vocabulary):
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    NeuralModel.load(saved, vocabulary)
    assert torch.rand(1) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell": "rnn"}, r"field 'cell'"),
        ({"hidden_size": -1}, r"field 'hidden_size'"),
        ({"hidden_size": 11}, r"config\.json requires"),
        ({"hidden_size": 8192, "layers": 16}, r"missing or unexpected"),  # 30 GB if it were built
        ({"layers": 1}, r"missing or unexpected"),
        ({"surprise": 1}, r"field 'surprise'"),
        ({"vocab_size": 99}, r"vocab_size is 99, the vocabulary has 15"),
    ],
)
def test_a_wrong_configuration_is_refused(saved, vocabulary, changes, message):
    change_config(saved, **changes)
    with pytest.raises(ManifestError, match=message):
        NeuralModel.load(saved, vocabulary)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "holds a list, not a JSON object"),
        ("null", "not a JSON object"),
        ("{}", "vocab_size is None"),
    ],
)
def test_invalid_configuration_is_refused(saved, vocabulary, content, message):
    (saved / "config.json").write_text(content)
    with pytest.raises(ManifestError, match=message):
        NeuralModel.load(saved, vocabulary)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("projection.bias"), r"missing or unexpected: projection\.bias"),
        (lambda t: t.update(extra=torch.zeros(1)), r"missing or unexpected: extra"),
        (
            lambda t: t.update({"projection.bias": t["projection.bias"].int()}),
            r"projection\.bias is \[6\] int32, config\.json requires \[6\] float32",
        ),
        (lambda t: t["projection.bias"].fill_(torch.nan), r"projection\.bias has values that are not finite"),
    ],
)
def test_wrong_tensors_are_refused(saved, vocabulary, change, message):
    change_tensors(saved, change)
    with pytest.raises(ManifestError, match=message):
        NeuralModel.load(saved, vocabulary)


def test_weights_of_the_first_version_are_told_of(saved, vocabulary):
    change_tensors(saved, lambda t: t.update({"recurrent.weight_ih_l0": torch.zeros(1)}))
    with pytest.raises(ManifestError, match="written by an earlier version; train the model again"):
        NeuralModel.load(saved, vocabulary)


@pytest.mark.parametrize("content", [b"", b"no weights at all", b"\xff" * 64])
def test_invalid_weights_file_is_refused(saved, vocabulary, content):
    (saved / "model.safetensors").write_bytes(content)
    with pytest.raises(ManifestError, match="not a safetensors file"):
        NeuralModel.load(saved, vocabulary)


def test_a_missing_file_of_weights_is_refused(saved, vocabulary):
    (saved / "model.safetensors").unlink()
    with pytest.raises(ManifestError, match="not a safetensors file"):
        NeuralModel.load(saved, vocabulary)


def test_auto_is_the_best_device_there_is():
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["tpu", "cpu:1", "cuda:", "cuda:x", "cuda:-1", ""])
def test_other_names_are_refused(name):
    with pytest.raises(InputError, match="it can be auto, cpu, cuda or cuda:<number>"):
        resolve_device(name)


def test_a_cuda_device_that_is_not_there_is_refused():
    with pytest.raises(InputError, match=r"'cuda:99', but torch sees \d+ CUDA devices"):
        resolve_device("cuda:99")


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
def test_single_precision_is_not_rounded_on_a_cuda_device(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert resolve_device(name).type == "cuda"
    assert torch.backends.cudnn.rnn.fp32_precision != "tf32"


def test_a_number_is_a_number_however_it_is_spelled(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert resolve_device("cuda:00") == torch.device("cuda", 0)

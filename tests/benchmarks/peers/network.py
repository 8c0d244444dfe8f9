"""A checkpoint's LSTM as the peers compute it: by torch or ONNX Runtime, in float32 or int8."""

import warnings
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

BOS = 1
NUM_CONTROLS = 3
"""`<unk>`, `<s>` and `</s>`, the first ids: never drawn, as with the service's `ignore_eos`."""

POSITIONS = 256
"""Positions per output computation: a few MB of memory are reused, more would be allocated anew each time."""

CELL_ROWS = 16
"""Maximum rows for stepping cell by cell in float32: `nn.LSTM` packs its weights again at every call."""


class Network(ABC):
    """Tied LSTM language model of V tokens and width H, over a runtime's computation of its layers."""

    @abstractmethod
    def read(self, ids, lengths=None, hidden=None):
        """Read tokens, ids [T, B]; rows end after `lengths` [B] if given.

        Returns:
            Outputs [T, B, H], and the hidden state to continue with, of the runtime's own type.
        """

    @abstractmethod
    def logits(self, outputs):
        """Return logits [N, V] after outputs [N, H]."""

    @torch.inference_mode()
    def score(self, texts):
        """Return log-probabilities [B] of texts of token ids, each after `<s>`; `</s>` is not scored."""
        targets, real = _pad(texts)
        outputs, _ = self.read(torch.cat([torch.full((1, len(texts)), BOS), targets[:-1]]))
        parts = zip(outputs[real].split(POSITIONS), targets[real].split(POSITIONS), strict=True)
        losses = torch.zeros(targets.shape)
        losses[real] = torch.cat([self._losses(*part) for part in parts])
        return (-losses.sum(0)).tolist()

    @torch.inference_mode()
    def generate(self, prompts, max_tokens, seeds):
        """Draw tokens [B, T] at temperature 1 after prompts of token ids; each row has its own seed."""
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        draws = torch.stack([torch.rand(max_tokens, generator=generator) for generator in generators])
        ids, real = _pad([[BOS, *prompt] for prompt in prompts])
        lengths = real.sum(0)
        outputs, hidden = self.read(ids, lengths)
        output = outputs[lengths - 1, torch.arange(len(prompts))]
        chosen = []
        for step in range(max_tokens):
            logits = self.logits(output)
            logits[:, :NUM_CONTROLS] = -torch.inf
            mass = logits.softmax(-1).cumsum_(-1)
            ids = torch.searchsorted(mass, draws[:, step : step + 1] * mass[:, -1:])
            chosen.append(ids.clamp_(max=mass.shape[1] - 1))
            if step + 1 < max_tokens:
                outputs, hidden = self.read(chosen[-1].T, hidden=hidden)
                output = outputs[0]
        return torch.cat(chosen, dim=1).tolist()

    def _losses(self, outputs, ids):
        logits = self.logits(outputs)
        logits[:, BOS] = -torch.inf
        return functional.cross_entropy(logits, ids, reduction="none")


def _pad(texts):
    """Return ids [T, B] padded with 0, and the mask of the real ones [T, B]."""
    lengths = torch.tensor([len(ids) for ids in texts])
    ids = nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in texts])
    return ids, torch.arange(len(ids))[:, None] < lengths


class TorchNetwork(Network):
    """The network by `nn.LSTM` and `nn.Linear`, in int8 dynamically quantised.

    Args:
        tensors: the checkpoint's tensors by name.
        precision: `float32` or `int8`.
    """

    def __init__(self, tensors, precision):
        self.embedding = nn.Embedding.from_pretrained(tensors["embedding.weight"])
        layers = cell_layers(tensors)
        hidden_size, embedding_size = layers[-1]["weight_hh"].shape[1], self.embedding.embedding_dim
        lstm = nn.LSTM(embedding_size, hidden_size, len(layers))
        lstm.load_state_dict(
            {f"{name}_l{number}": part for number, layer in enumerate(layers) for name, part in layer.items()}
        )
        linear = nn.Linear(*reversed(self.embedding.weight.shape))
        linear.load_state_dict({"weight": self.embedding.weight, "bias": tensors["output.bias"]})
        both = nn.ModuleList([lstm, linear]).eval()
        if precision == "int8":
            with warnings.catch_warnings(action="ignore"):  # torch announces a successor
                both = torch.ao.quantization.quantize_dynamic(both, {nn.LSTM, nn.Linear})
        self.lstm, self.linear = both
        self.cells = self.lstm.all_weights if precision == "float32" else None

    def read(self, ids, lengths=None, hidden=None):
        vectors = self.embedding(ids)
        if self.cells and hidden is not None and len(ids) == 1 and ids.shape[1] <= CELL_ROWS:
            return self._step(vectors[0], hidden)
        if lengths is None or bool((lengths == len(ids)).all()):
            return self.lstm(vectors, hidden)
        packed = nn.utils.rnn.pack_padded_sequence(vectors, lengths, enforce_sorted=False)
        outputs, hidden = self.lstm(packed, hidden)
        return nn.utils.rnn.pad_packed_sequence(outputs)[0], hidden

    def logits(self, outputs):
        return self.linear(outputs)

    def _step(self, output, hidden):
        layers = []
        for weights, h, c in zip(self.cells, *hidden, strict=True):
            layers.append(torch.lstm_cell(output, (h, c), *weights))
            output = layers[-1][0]
        return output[None], [torch.stack(part) for part in zip(*layers, strict=True)]


class OnnxNetwork(Network):
    """The network by ONNX Runtime, from the files that `onnx_export.write_models` wrote for one precision.

    Args:
        folder: folder with the files.
        threads: number of threads.
    """

    def __init__(self, folder, threads):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the clients need the cores
        self.body, self.output = (
            onnxruntime.InferenceSession(folder / f"{part}.onnx", options) for part in ("body", "output")
        )
        self.names = [given.name for given in self.body.get_inputs()]
        *_, state = self.body.get_inputs()
        self.size = state.shape[-1]

    def read(self, ids, lengths=None, hidden=None):
        steps, rows = ids.shape
        lengths = np.full(rows, steps, np.int32) if lengths is None else lengths.numpy().astype(np.int32)
        hidden = hidden or [np.zeros((1, rows, self.size), np.float32)] * (len(self.names) - 2)
        outputs, *hidden = self.body.run(
            None, dict(zip(self.names, (ids.numpy(), lengths, *hidden), strict=True))
        )
        return torch.from_numpy(outputs), hidden

    def logits(self, outputs):
        return torch.from_numpy(self.output.run(None, {"outputs": outputs.numpy()})[0])


def cell_layers(tensors):
    """Return the weights and biases of each LSTM layer by name, from a checkpoint's tensors."""
    count = sum(name.endswith("weight_hh_l0") for name in tensors)
    return [
        {name: tensors[f"body.cells.{number}.kernel.{name}_l0"] for name in _CELL_TENSORS}
        for number in range(count)
    ]


_CELL_TENSORS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def add_model_options(parser):
    """Add the options of `load_network` to a server's command line, and its port."""
    parser.add_argument("folder", type=Path, help="a published version; for onnxruntime, models by precision")
    parser.add_argument("--runtime", choices=["torch", "onnxruntime"], default="torch")
    parser.add_argument("--precision", choices=["float32", "int8"], default="float32")
    parser.add_argument("--threads", type=int, default=1, help="threads of the runtime, in each process")
    parser.add_argument("--port", type=int, required=True)


def load_network(given):
    """Return the network that a command line names."""
    torch.set_num_threads(given.threads)
    if given.runtime == "onnxruntime":
        return OnnxNetwork(given.folder / given.precision, given.threads)
    return TorchNetwork(load_file(given.folder / "model.safetensors"), given.precision)

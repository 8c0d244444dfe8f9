"""A checkpoint's LSTM in plain torch, as both peers compute it: `nn.LSTM`, batches, no gradients."""

import json

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

BOS = 1
CONTROLS = [0, 1, 2]
"""`<unk>`, `<s>` and `</s>`: never drawn, as with the service's `ignore_eos`."""

POSITIONS = 256
"""Positions per output computation: a few MB of memory are reused, more would be allocated anew each time."""

CELL_ROWS = 16
"""Maximum rows for stepping cell by cell: `nn.LSTM` packs its weights again at every call."""


class Network:
    """Tied LSTM language model.

    Args:
        folder: folder of a published version; its `config.json` and `model.safetensors` are read.
    """

    def __init__(self, folder):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "model.safetensors")
        self.embedding = nn.Embedding.from_pretrained(tensors["embedding.weight"])
        self.lstm = nn.LSTM(
            config["embedding_size"], config["hidden_size"], config["layers"], batch_first=True
        ).eval()
        self.lstm.load_state_dict(
            {
                f"{name}_l{layer}": tensors[f"body.cells.{layer}.kernel.{name}_l0"]
                for layer in range(config["layers"])
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            }
        )
        self.bias = tensors["output.bias"].index_fill(0, torch.tensor([BOS]), -torch.inf)
        self.drawn_bias = tensors["output.bias"].index_fill(0, torch.tensor(CONTROLS), -torch.inf)

    @torch.inference_mode()
    def score(self, texts):
        """Return log-probabilities [B] of texts of token ids, each after `<s>`; `</s>` is not scored."""
        lengths = torch.tensor([len(ids) for ids in texts])
        targets = nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in texts], batch_first=True)
        inputs = torch.cat([torch.full((len(texts), 1), BOS), targets[:, :-1]], dim=1)
        outputs, _ = self.lstm(self.embedding(inputs))
        real = torch.arange(targets.shape[1]) < lengths[:, None]
        wanted, ids = outputs[real].split(POSITIONS), targets[real].split(POSITIONS)
        losses = torch.cat([self._losses(*both) for both in zip(wanted, ids, strict=True)])
        return [-part.sum().item() for part in losses.split(lengths.tolist())]

    @torch.inference_mode()
    def generate(self, prompts, max_tokens, seeds):
        """Draw tokens [B, T] at temperature 1 after prompts of token ids; each row has its own seed."""
        draws = torch.stack(
            [torch.rand(max_tokens, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        )
        output, hidden = self._read([[BOS, *ids] for ids in prompts])
        chosen = []
        for step in range(max_tokens):
            logits = functional.linear(output, self.embedding.weight, self.drawn_bias)
            mass = logits.softmax(-1).cumsum(-1)
            ids = torch.searchsorted(mass, draws[:, step : step + 1] * mass[:, -1:])
            chosen.append(ids.clamp_(max=mass.shape[1] - 1))
            if step + 1 < max_tokens:
                output, hidden = self._step(chosen[-1], hidden)
        return torch.cat(chosen, dim=1).tolist()

    def _losses(self, outputs, ids):
        logits = functional.linear(outputs, self.embedding.weight, self.bias)
        return functional.cross_entropy(logits, ids, reduction="none")

    def _step(self, ids, hidden):
        """Read one token per row, ids [B, 1]; return the output [B, H] and the hidden state."""
        if len(ids) > CELL_ROWS:
            outputs, hidden = self.lstm(self.embedding(ids), hidden)
            return outputs[:, 0], hidden
        output, layers = self.embedding(ids)[:, 0], []
        for weights, h, c in zip(self.lstm.all_weights, *hidden, strict=True):
            layers.append(torch.lstm_cell(output, (h, c), *weights))
            output = layers[-1][0]
        return output, [torch.stack(part) for part in zip(*layers, strict=True)]

    def _read(self, prompts):
        """Return the last output [B, H] of each row, and the hidden state."""
        tokens = [torch.tensor(ids) for ids in prompts]
        if len({len(ids) for ids in tokens}) == 1:
            outputs, hidden = self.lstm(self.embedding(torch.stack(tokens)))
            return outputs[:, -1], hidden
        vectors = [self.embedding(ids) for ids in tokens]
        _, hidden = self.lstm(nn.utils.rnn.pack_sequence(vectors, enforce_sorted=False))
        return hidden[0][-1], hidden

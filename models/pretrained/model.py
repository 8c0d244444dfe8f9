"""Pretrained causal transformers as language models, on a CPU or a CUDA device.

The library transformers builds and runs the network; this module feeds it texts without padding, keeps states,
and normalises its predictions over the tokens that the tokenizer has.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface
from typing_extensions import override

from models.arrays import Array, FloatArray, ModelBytes, TokenIds, add_bytes, array_bytes
from models.errors import ManifestError
from models.files import CONFIG_FILE
from models.language_model import BOS, STATE, LanguageModel, ReadResult, SequenceReader, Vocabulary, Want
from models.neural.network import resolve_device
from models.pretrained.attention import Context, attend, group_texts
from models.pretrained.folder import centre_outputs, files_of, quantise_layers, read_network
from models.pretrained.tokenizer import PRETRAINED_FOLDER, PretrainedVocabulary
from models.tensor_files import PackedWeightCache

_ATTENTION = "gramophone"
AttentionInterface.register(_ATTENTION, attend)

# Tokens of a pass, and logits in memory at once (16 and 512 MiB).
_MAX_PASS_TOKENS, _MAX_PASS_TOKENS_ON_CUDA = 1024, 4096
_MAX_LOGITS, _MAX_LOGITS_ON_CUDA = 1 << 22, 1 << 27
_MAX_MEAN_LOGIT = 16.0  # in bfloat16, with a precision of 1/16


@dataclass(frozen=True, slots=True, eq=False)
class TransformerState:
    """State of B texts.

    Attributes:
        contexts: tokens that the next one sees, of each text.
        outputs: output of the last layer for the last token of each text [B, W].
    """

    contexts: tuple[Context, ...]
    outputs: Tensor

    def __len__(self) -> int:
        return len(self.contexts)

    @property
    def nbytes(self) -> int:
        """Bytes of outputs and buffers of keys and values, which other states may share."""
        buffers = {id(context.buffer): context.buffer.pairs.nbytes for context in self.contexts}
        return sum(buffers.values()) + self.outputs.nbytes

    def select(self, rows: TokenIds) -> "TransformerState":
        """Return a state of rows `rows[0], rows[1], …`; rows may repeat."""
        index = torch.as_tensor(rows, dtype=torch.int64, device=self.outputs.device)
        with torch.inference_mode():
            outputs = self.outputs.index_select(0, index)
        return TransformerState(tuple(self.contexts[row] for row in rows), outputs)

    def concatenate(self, states: Sequence["TransformerState"]) -> "TransformerState":
        """Return a state with this state's rows, then those of each of `states`."""
        together = (self, *states)
        contexts = tuple(context for state in together for context in state.contexts)
        with torch.inference_mode():
            return TransformerState(contexts, torch.cat([state.outputs for state in together]))


class PretrainedModel(SequenceReader[TransformerState], LanguageModel[TransformerState]):
    """Causal transformer of a folder in Hugging Face's format.

    A text begins with the model's token for the start or, without one, for the end. `<s>` and
    tokens that the tokenizer lacks are never predicted: their probabilities go to others in proportion. If a text
    is longer than the model's positions, the older half of the tokens is forgotten when they are used up.
    Predictions computed differently agree within rounding, not bit by bit.

    Args:
        folder: folder with `config.json`, weights in safetensors and `tokenizer.json`.
        vocabulary: tokens of the ids, from the folder's tokenizer.
        device: `cpu`, `cuda`, `cuda:1`, … or `auto`.
        bfloat16: whether the network computes in bfloat16; log-probabilities are float32.
        int8_weights: cache of int8 weights, for the linear layers on a CPU; None for none.

    Attributes:
        num_parameters: number of weights.
        window: number of tokens that a prediction can depend on.

    Raises:
        ManifestError: the folder is no such model, or predicts fewer tokens than the vocabulary has.
        InputError: the device does not exist.
    """

    family = "pretrained"
    normalised = True

    def __init__(
        self,
        folder: Path,
        vocabulary: PretrainedVocabulary,
        *,
        device: str = "cpu",
        bfloat16: bool = False,
        int8_weights: PackedWeightCache | None = None,
    ) -> None:
        self.vocabulary: Vocabulary = vocabulary
        self._folder = folder
        self._device = resolve_device(device)
        on_cpu = self._device.type == "cpu"
        self._max_pass_tokens = _MAX_PASS_TOKENS if on_cpu else _MAX_PASS_TOKENS_ON_CUDA
        self._max_logits = _MAX_LOGITS if on_cpu else _MAX_LOGITS_ON_CUDA
        dtype = torch.bfloat16 if bfloat16 else torch.float32
        network = read_network(folder, attention=_ATTENTION, dtype=dtype)
        self._network = network.to(self._device).eval()
        count = int(network.get_output_embeddings().weight.shape[0])
        self.num_parameters = network.num_parameters()
        self._int8_layers = []
        if int8_weights is not None:
            centre_outputs(network)
            self._int8_layers = quantise_layers(network, int8_weights)
        self._head = network.get_output_embeddings()
        config = network.config
        heads = int(config.num_attention_heads)
        self._empty = Context.empty(
            int(config.num_hidden_layers),
            int(getattr(config, "num_key_value_heads", heads)),
            int(getattr(config, "head_dim", None) or config.hidden_size // heads),
            dtype=dtype,
            device=self._device,
        )
        self.feature_size = int(config.hidden_size)
        self.window = int(config.max_position_embeddings)
        if self.window < 2:
            raise ManifestError(f"{folder / CONFIG_FILE}: a text has {self.window} positions, less than 2")
        numbers = vocabulary.numbers
        if (highest := int(numbers.max())) >= count:
            raise ManifestError(
                f"{folder / 'tokenizer.json'} does not match the model: it has the token {highest}, "
                f"but the model predicts {count} tokens"
            )
        fed = np.where(numbers < 0, numbers[BOS], numbers)
        self._fed = torch.as_tensor(fed, device=self._device)
        used = numbers >= 0
        used[BOS] = False
        self._is_never = torch.as_tensor(~used, device=self._device)
        self._bias = torch.full((count,), -torch.inf, device=self._device)
        self._bias[self._fed[~self._is_never]] = 0
        with torch.inference_mode():
            unknown = torch.zeros(1, self.feature_size, dtype=dtype, device=self._device)
            start = TransformerState((self._empty,), unknown)
            begun: TransformerState = self._read(start, np.array([[BOS]]), np.array([1]), STATE).state
        if not begun.outputs.isfinite().all():
            raise ManifestError(f"{folder}: the model computes numbers that are not finite")
        self._begun = begun
        # not always: a tied output layer becomes one more matrix
        if bfloat16 and abs(float(self._head(begun.outputs).mean())) > _MAX_MEAN_LOGIT:
            centre_outputs(network)

    @override
    def memory(self) -> ModelBytes:
        size = sum(tensor.nbytes for tensor in (*self._network.parameters(), *self._network.buffers()))
        if self._device.type != "cpu":
            return ModelBytes(device=size)
        layers = (part.layer for part in self._int8_layers)
        arrays = [array for layer in layers for array in (*layer.matrix, layer.bias)]
        return add_bytes([ModelBytes(own=size), array_bytes(arrays)])

    @override
    def initial_state(self, batch: int) -> TransformerState:
        return TransformerState(self._begun.contexts * batch, self._begun.outputs.expand(batch, -1))

    @override
    def empty_state(self, batch: int) -> TransformerState:
        """Return the state before any token; it predicts as the state after `<s>`."""
        begun = self.initial_state(batch)
        return TransformerState((self._empty,) * batch, begun.outputs)

    @override
    @torch.inference_mode()
    def advance(self, state: TransformerState, tokens: TokenIds) -> TransformerState:
        tokens = self.vocabulary.check_ids(tokens, param="tokens")
        lengths = np.ones(len(tokens), np.int64)
        after: TransformerState = self._read(state, tokens[:, None], lengths, STATE).state
        return after

    @override
    @torch.inference_mode()
    def next_log_probs(self, state: TransformerState) -> Array:
        log_probs = self._log_probs(state.outputs).index_select(1, self._fed)
        log_probs.masked_fill_(self._is_never, -torch.inf)
        return log_probs if log_probs.is_cuda else log_probs.numpy()

    @override
    @torch.inference_mode()
    def read(self, state: TransformerState, tokens: TokenIds, lengths: TokenIds, want: Want) -> ReadResult:
        is_token = np.arange(tokens.shape[1]) < lengths[:, None]
        self.vocabulary.check_ids(tokens[is_token], param="tokens")
        return self._read(state, tokens, lengths, want)

    @torch.inference_mode()
    def features(self, state: TransformerState) -> Array:
        """Return the vectors [B, W] from which the next tokens are predicted."""
        features = state.outputs.float()
        return features if features.is_cuda else features.numpy()

    def save(self, directory: Path) -> None:
        """Copy the configuration and the weights; the tokenizer has its own files."""
        (directory / PRETRAINED_FOLDER).mkdir(exist_ok=True)
        for name in files_of(self._folder):
            shutil.copyfile(self._folder / name, directory / PRETRAINED_FOLDER / name)

    @classmethod
    def load(cls, directory: Path, vocabulary: PretrainedVocabulary, **options: Any) -> "PretrainedModel":
        """Load a saved model; the options are those of the class."""
        return cls(directory / PRETRAINED_FOLDER, vocabulary, **options)

    def in_int8(self) -> "PretrainedModel":
        """Return the model of the same folder in int8, on a CPU."""
        vocabulary = cast("PretrainedVocabulary", self.vocabulary)
        return PretrainedModel(self._folder, vocabulary, int8_weights=PackedWeightCache())

    def _read(self, state: TransformerState, tokens: TokenIds, lengths: TokenIds, want: Want) -> ReadResult:
        """Read sequences in passes of bounded tokens; see `SequenceReader.read`."""
        scores = np.zeros(tokens.shape, np.float32)
        contexts, last = list(state.contexts), list(state.outputs)
        before: list[list[Tensor]] = [[] for _ in contexts]
        done = np.zeros(len(contexts), np.int64)
        while (done < lengths).any():
            rows, counts = self._next_pass(contexts, lengths - done)
            cuts = [np.arange(done[row], done[row] + count) for row, count in zip(rows, counts, strict=True)]
            done[rows] += counts
            ids = [tokens[row, cut] for row, cut in zip(rows, cuts, strict=True)]
            kept = [want.state or done[row] < lengths[row] for row in rows]
            outputs = self._pass(contexts, rows, ids, kept)
            inputs = [
                torch.cat([last[row][None], part[:-1]]) for row, part in zip(rows, outputs, strict=True)
            ]
            for row, given, part in zip(rows, inputs, outputs, strict=True):
                last[row] = part[-1]
                if want.before or want.features:
                    before[row].append(given)
            if want.scores:
                scores[np.repeat(rows, counts), np.concatenate(cuts)] = self._scores(
                    torch.cat(inputs), np.concatenate(ids)
                )
        after = TransformerState(tuple(contexts), torch.stack(last)) if want.state and last else state
        parts = [part for of_row in before for part in of_row]
        vectors = torch.cat(parts) if parts else state.outputs[:0]
        return ReadResult(scores, after, TransformerState((self._empty,) * len(vectors), vectors))

    def _next_pass(self, contexts: list[Context], remaining: TokenIds) -> tuple[list[int], list[int]]:
        """Choose a pass's rows and numbers of tokens; replace contexts without free positions."""
        rows, counts, free = list[int](), list[int](), self._max_pass_tokens
        for row in np.flatnonzero(remaining > 0).tolist():
            if contexts[row].length == self.window:
                kept = contexts[row].ids[-(self.window // 2) :]
                contexts[row] = self._context_of(kept)
            count = min(int(remaining[row]), self.window - contexts[row].length, free)
            rows.append(row)
            counts.append(count)
            free -= count
            if not free:
                break
        return rows, counts

    def _context_of(self, ids: TokenIds) -> Context:
        """Read tokens from the first position on."""
        contexts = [self._empty]
        for start in range(0, len(ids), self._max_pass_tokens):
            self._pass(contexts, [0], [ids[start : start + self._max_pass_tokens]], [True])
        return contexts[0]

    def _pass(
        self, contexts: list[Context], rows: Sequence[int], ids: Sequence[TokenIds], kept: Sequence[bool]
    ) -> tuple[Tensor, ...]:
        """Compute outputs [T, W] of new tokens of rows; extend the contexts of those to keep."""
        before = [contexts[row] for row in rows]
        after = [
            context.extended(new) if keep else None
            for context, new, keep in zip(before, ids, kept, strict=True)
        ]
        counts = [len(new) for new in ids]
        positions = [context.length + np.arange(count) for context, count in zip(before, counts, strict=True)]
        given = np.stack([np.concatenate(ids), np.concatenate(positions)])
        input_ids, position_ids = torch.as_tensor(given, device=self._device)[:, None]
        outputs = self._network.base_model(
            input_ids=self._fed[input_ids],
            position_ids=position_ids,
            use_cache=False,
            groups=group_texts(counts, before, after, self._device),
        )[0]
        for row, context in zip(rows, after, strict=True):
            if context is not None:
                contexts[row] = context
        return torch.split(outputs[0], counts)

    def _log_probs(self, outputs: Tensor) -> Tensor:
        """Return log-probabilities of the network's tokens [N, outputs], −∞ for others."""
        return torch.log_softmax(self._head(outputs).float() + self._bias, dim=-1)

    def _scores(self, outputs: Tensor, ids: TokenIds) -> FloatArray:
        """Return the log-probabilities [N] of ids [N] after outputs [N, W]."""
        given = torch.as_tensor(ids, device=self._device)
        targets = self._fed[given]
        size = max(1, self._max_logits // len(self._bias))
        parts = zip(torch.split(outputs, size), torch.split(targets, size), strict=True)
        found = [self._log_probs(some).gather(1, of_some[:, None])[:, 0] for some, of_some in parts]
        return torch.cat(found).masked_fill_(self._is_never[given], -torch.inf).cpu().numpy()

"""Soft targets: the distributions of teacher models at every position of a training text, from which a network learns.

A network that learns from distributions, beside the tokens of the text, predicts better than one that learns from the
tokens alone (Hinton, Vinyals and Dean 2015). The teacher reads the text once, before the training. The most probable
tokens of each distribution are stored in a file, which the trainer maps into memory.
"""

import hashlib
import io
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.arrays import TokenIds
from models.cache.model import CacheModel
from models.decoding.top_k import top_tokens_of_rows
from models.files import atomic_writer
from models.language_model import LanguageModel, prefill_sequences
from models.mixture import MixtureModel
from models.neural.model import NeuralModel, advance_many
from models.neural.network import Network
from training.corpus import EncodedCorpus
from training.progress import Progress

TARGET_TOKENS = 32
"""Number of tokens stored of each distribution, the most probable ones."""

_CONTEXT = 200
"""Tokens that a row reads before its own part of the text."""

_ROWS, _ROWS_OF_CACHE = 64, 16  # by thread; a cache stores a vector for each token of its rows
_SEGMENT_STEPS = 32


class SoftTargets(NamedTuple):
    """Distributions of teachers at every position of a text, stored in a file.

    Attributes:
        path: file of an array [L, R]: the text is cut into R rows of L positions.
        digest: SHA-256 (hex) of the teachers and the text.
        teachers: titles or addresses of the teachers.
    """

    path: Path
    digest: str
    teachers: tuple[str, ...]

    def read(self) -> npt.NDArray[Any]:
        """Map the file: records [L, R] of `ids` and `probabilities`, K each."""
        records: npt.NDArray[Any] = np.load(self.path, mmap_mode="r")
        return records


class SoftLabels(NamedTuple):
    """Soft targets of N tokens.

    Attributes:
        ids: distinct ids [N, K].
        probabilities: their probabilities, summing to 1 [N, K].
        weight: α, share of the soft targets in the loss.
    """

    ids: Tensor
    probabilities: Tensor
    weight: float

    @classmethod
    def at(
        cls, records: npt.NDArray[Any], positions: TokenIds, *, weight: float, device: torch.device
    ) -> "SoftLabels":
        """Look up the soft targets of positions [N] in the records of a text [L, R]."""
        found = records[positions % len(records), positions // len(records)]
        ids = torch.as_tensor(found["ids"].astype(np.int64), device=device)
        return cls(ids, torch.as_tensor(found["probabilities"].astype(np.float32), device=device), weight)

    def correct(self, gradients: Tensor, targets: Tensor, rows: slice, *, scale: float) -> None:
        """Turn gradients scale · (p − y) of rows into scale · (p − (1 − α) y − α q), in place.

        Args:
            gradients: gradients of the logits of the rows [n, V].
            targets: ids of the tokens y of the rows [n].
            rows: the rows' part of the N tokens.
            scale: scale of the gradients.
        """
        share = scale * self.weight
        gradients.scatter_add_(1, targets[:, None], gradients.new_full((len(targets), 1), share))
        soft = self.probabilities[rows].mul(-share).to(gradients.dtype)
        gradients.scatter_add_(1, self.ids[rows], soft)


def targets_digest(teachers: Sequence[str], text: str) -> str:
    """Return the SHA-256 (hex) of fingerprints of teachers, the hash of a text, and the number of stored tokens."""
    return hashlib.sha256(repr((sorted(teachers), text, TARGET_TOKENS)).encode()).hexdigest()


def write_soft_targets(
    path: Path,
    teachers: Sequence[LanguageModel[Any]],
    corpus: EncodedCorpus,
    *,
    device: torch.device,
    precision: torch.dtype,
    progress: Progress,
) -> None:
    """Write the mean distribution of teachers at every position of a text, for `SoftTargets`.

    The text is one running stream, whose end is followed by its beginning, as in `Streams`. It is read in parallel
    rows; each begins with the tokens before its own part of the text.

    Args:
        path: file to write.
        teachers: models with one vocabulary.
        corpus: the text.
        device: device of the teachers; on a CPU, torch's threads share the rows.
        precision: type of the matrix products of networks.
        progress: counts positions.

    Raises:
        FormatError: the file cannot be written.
    """
    share = 1 / len(teachers)
    teacher = teachers[0] if len(teachers) == 1 else MixtureModel(teachers, [share] * len(teachers))
    text = corpus.with_boundaries().astype(np.int64)
    threads = torch.get_num_threads()
    rows = max(1, min(_most_rows(teacher) * threads, len(text) // (4 * _CONTEXT)))
    length = -(-len(text) // rows)
    size = min(TARGET_TOKENS, len(teacher.vocabulary))
    id_type = np.uint16 if len(teacher.vocabulary) < 1 << 16 else np.int32
    record = np.dtype([("ids", id_type, (size,)), ("probabilities", np.float16, (size,))])
    header = io.BytesIO()
    described = {
        "descr": np.lib.format.dtype_to_descr(record),
        "fortran_order": False,
        "shape": (length, rows),
    }
    np.lib.format.write_array_header_1_0(header, described)
    positions = np.arange(-_CONTEXT, length)[:, None] + length * np.arange(rows)  # [C + L, R]
    num_readers = 1 if device.type == "cuda" else min(threads, rows)
    readers = [
        _read_segments(teacher, part, record, precision)
        for part in np.array_split(text[positions % len(text)], num_readers, axis=1)
    ]
    progress.start("reading the text with the teachers", len(text))
    # these threads wait for each other less often than those of torch
    pool = ThreadPoolExecutor(len(readers), initializer=_prepare_thread)
    with pool, atomic_writer(path) as write, torch.no_grad():
        write(header.getvalue())
        for start in range(0, length, _SEGMENT_STEPS):
            run = pool.map if start else map  # the first segment compiles kernels, in one thread
            records = np.concatenate(list(run(next, readers)), axis=1)
            write(records.tobytes())
            progress.advance(records.size)
    torch.set_num_threads(threads)  # also of threads that begin later
    progress.finish()


def _prepare_thread() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)


def _most_rows(model: LanguageModel[Any]) -> int:
    if isinstance(model, MixtureModel):
        return min(map(_most_rows, model.parts))
    return _ROWS_OF_CACHE if isinstance(model, CacheModel) else _ROWS


def _read_segments(
    model: LanguageModel[Any], tokens: TokenIds, record: np.dtype[Any], precision: torch.dtype
) -> Iterator[npt.NDArray[Any]]:
    """Yield the records [T, R] of segments of tokens [C + L, R], T = `_SEGMENT_STEPS` at most."""
    size = record["ids"].shape[0]

    def record_of(probabilities: Tensor) -> npt.NDArray[Any]:
        if probabilities.is_cuda:
            values, ids = (part.cpu().numpy() for part in probabilities.topk(size))
        else:
            ids, values = top_tokens_of_rows(probabilities.numpy(), size)
        records = np.empty(len(ids), record)
        records["ids"], records["probabilities"] = ids, values / values.sum(axis=1, keepdims=True)
        return records

    steps = map(record_of, _distributions(model, tokens, precision))
    while segment := list(itertools.islice(steps, _SEGMENT_STEPS)):
        yield np.stack(segment)


def _distributions(model: LanguageModel[Any], tokens: TokenIds, precision: torch.dtype) -> Iterator[Tensor]:
    """Yield the probabilities [R, V] before each token of tokens [C + L, R] after the first C = `_CONTEXT` tokens."""
    if isinstance(model, NeuralModel):
        yield from _network_distributions(model.network, tokens, precision)
    elif isinstance(model, MixtureModel) and not model.weights_by_context:
        for parts in zip(*(_distributions(part, tokens, precision) for part in model.parts), strict=True):
            device = parts[0].device
            yield sum(
                (part.to(device) * weight for part, weight in zip(parts, model.weights, strict=True)),
                start=torch.zeros((), device=device),
            )
    else:
        rows = tokens.shape[1]
        context = np.ascontiguousarray(tokens[:_CONTEXT].T)
        state = prefill_sequences(model, model.empty_state(rows), context, np.full(rows, _CONTEXT))
        for ids in tokens[_CONTEXT:]:
            log_probs: Any = model.next_log_probs(state)
            yield torch.as_tensor(log_probs).exp()
            state = model.advance(state, ids)


def _network_distributions(network: Network, tokens: TokenIds, precision: torch.dtype) -> Iterator[Tensor]:
    """Yield the probabilities as `_distributions`; the body reads many tokens at once."""
    hidden = network.initial_hidden(tokens.shape[1])
    device = hidden[0].device
    ids = torch.as_tensor(tokens, device=device)

    def cast() -> torch.autocast:
        return torch.autocast(device.type, precision, enabled=precision != torch.float32)

    with cast():
        _, hidden = advance_many(network, ids[:_CONTEXT], hidden)
    for segment in torch.split(ids[_CONTEXT:], _SEGMENT_STEPS):
        with cast():
            outputs, after = advance_many(network, segment, hidden)
        for before in torch.cat([hidden[0], outputs[:-1]]):  # [R, W]
            with cast():
                log_probs = network.output.log_probs(network.features(before))
            yield log_probs.float().exp_()
        hidden = after

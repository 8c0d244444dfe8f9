"""Training data of a network: a corpus as parallel token streams, and soft targets for distillation.

Streams are cut into segments, one an update.

Source: Hinton, Vinyals and Dean 2015. Before the training, the teachers read the text once. The most
probable tokens of their mean distribution, and some drawn from the rest, are stored in a file that the
trainer maps into memory. Without the latter, the network would learn that all others are improbable.
"""

import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.arrays import AnyArray, Int64s, TokenIds
from models.cache.model import CacheModel
from models.decoding.top_k import top_of_rows
from models.errors import InputError
from models.files import atomic_writer
from models.kernels.threads import run_parts
from models.language_model import BOS, UNK, LanguageModel, prefill_sequences
from models.mixture import MixtureModel
from models.neural.model import NeuralModel, advance_many
from training.corpus import EncodedCorpus
from training.neural.settings import TrainSettings
from training.progress import Progress

_LENGTH_DEVIATION = 5.0  # standard deviation of lengths, in tokens
_HALF_LENGTH_SHARE = 0.05
_MEAN = 1 - _HALF_LENGTH_SHARE / 2
_SHORTEST_VARIABLE = 10  # shorter segments do not vary

TARGET_TOKENS = 32
"""Stored most probable tokens of each distribution."""

DRAWN_TOKENS = 16
"""Tokens drawn from each distribution's rest; each stands for an equal part of it."""

_CONTEXT = 200  # tokens that a row reads before its own part of the text
# per thread; a cache stores a vector for each token of its rows
_ROWS, _ROWS_OF_CACHE = 64, 16
_SEGMENT_STEPS = 32


class StreamSegment(NamedTuple):
    """Tokens of one update.

    Attributes:
        epoch: index of the pass over the text, from 0.
        first: True for an epoch's first segment, which starts without carried state.
        inputs: input ids [T, B].
        targets: next ids [T, B]; `<s>` is not predicted.
        positions: the targets' positions in the text with boundaries [T, B].
    """

    epoch: int
    first: bool
    inputs: TokenIds
    targets: TokenIds
    positions: TokenIds


class Streams:
    """Text cut into parallel streams.

    The text is cyclic; each epoch cuts it at other tokens. An epoch depends only
    on seed and index, so a resumed run needs only the number of updates.

    Args:
        corpus: the text.
        settings: streams, B, fewer if the text cannot fill them;
            tokens per segment, T; order of the text and share of unknown words.
        seed: random seed of offsets, lengths and order.

    Raises:
        InputError: the text has no tokens.
    """

    def __init__(self, corpus: EncodedCorpus, settings: TrainSettings, *, seed: int) -> None:
        self._text = corpus.with_boundaries().astype(np.int64)
        if len(self._text) < 2:
            raise InputError("the training text has no sentences", param="corpus")
        self.batch_size = max(1, min(settings.batch_size, len(self._text) // (settings.bptt_length + 1)))
        self._length = (len(self._text) - 1) // self.batch_size  # of each stream
        self.bptt_length = min(settings.bptt_length, self._length)
        self._variable = settings.variable_bptt and self.bptt_length >= _SHORTEST_VARIABLE
        learns_unknown = settings.unknown_share > 0 and UNK not in self._text
        self._once = np.flatnonzero(np.bincount(self._text)[self._text] == 1) if learns_unknown else None
        self._settings = settings
        self._seed = seed

    @property
    def steps_per_epoch(self) -> int:
        """Updates per pass; the remainder of the streams is omitted."""
        if self._variable:
            return max(1, int(self._length / (_MEAN * self.bptt_length)))
        return self._length // self.bptt_length

    def segments(self, epochs: int, *, skip: int = 0) -> Iterator[StreamSegment]:
        """Yield the segments of `epochs` passes in order, without the first `skip`."""
        first_epoch, first_step = divmod(skip, self.steps_per_epoch)
        for epoch in range(first_epoch, epochs):
            generator = np.random.default_rng([self._seed, epoch])
            starts = generator.integers(len(self._text)) + self._length * np.arange(self.batch_size)  # [B]
            ends = np.cumsum(self._lengths(generator))  # [steps_per_epoch]
            order = self._order(generator)
            text = self._text
            if self._once is not None:  # some words of one occurrence are unknown
                text = text.copy()
                text[self._once[generator.random(len(self._once)) < self._settings.unknown_share]] = UNK
            for step in range(first_step if epoch == first_epoch else 0, len(ends)):
                steps = np.arange(ends[step - 1] if step else 0, ends[step] + 1)
                positions = order[(starts + steps[:, None]) % len(self._text)]  # [T + 1, B]
                tokens = text[positions]
                yield StreamSegment(epoch, step == 0, tokens[:-1], tokens[1:], positions[1:])

    def _order(self, generator: np.random.Generator) -> Int64s:
        """Return text positions in an epoch's order; blocks begin with a sentence (Press 2019)."""
        order = np.arange(len(self._text))
        block = self._settings.shuffle_block
        if not block:
            return order
        sentences = np.flatnonzero(self._text == BOS)
        cuts = sentences[np.searchsorted(sentences, order[::block]) % len(sentences)]
        blocks = np.split(order, np.unique(cuts))
        return np.concatenate([blocks[number] for number in generator.permutation(len(blocks))])

    def _lengths(self, generator: np.random.Generator) -> Int64s:
        """Sample an epoch's segment lengths [steps_per_epoch], at most a stream in total."""
        count, mean = self.steps_per_epoch, self.bptt_length
        if not self._variable:
            return np.full(count, mean)
        halved = generator.random(count) < _HALF_LENGTH_SHARE
        spread = min(_LENGTH_DEVIATION, mean / 7)
        lengths = generator.normal(np.where(halved, mean / 2, mean), spread)
        lengths = lengths.clip(mean / 2 - 2 * spread, mean + 2 * spread)
        return np.asarray(lengths * min(1.0, self._length / lengths.sum()), np.int64)


class SoftTargets(NamedTuple):
    """Distributions q of teachers at every position of a text, in a file.

    Attributes:
        path: file of records [L, R]: the text is cut into R rows of L positions. A record has `ids` of the most
            probable and drawn tokens, `probabilities` of the former, and `of_drawn`, of each drawn token. The
            name is a hash of the teachers and the text.
        teachers: titles or addresses of the teachers.
    """

    path: Path
    teachers: tuple[str, ...]

    def changes(
        self, segment: StreamSegment, *, weight: float, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return a segment's changes of target distributions, from y, the text's token, to (1 − α) y + α q.

        Args:
            segment: segment with N predicted tokens.
            weight: α.
            device: device of the results.

        Returns:
            Ids with changed probabilities, two may be equal [N, K], and amounts to add [N, K].
        """
        tokens, positions = (part[segment.targets != BOS] for part in (segment.targets, segment.positions))
        records = np.load(self.path, mmap_mode="r", allow_pickle=False)
        found = records[positions % len(records), positions // len(records)]
        ids = np.column_stack([tokens, found["ids"]])
        drawn = np.repeat(found["of_drawn"][:, None], DRAWN_TOKENS, axis=1)
        amounts = weight * np.column_stack([np.full(len(tokens), -1), found["probabilities"], drawn])
        return torch.as_tensor(ids).to(device), torch.as_tensor(amounts).float().to(device)


def write_soft_targets(
    path: Path,
    teachers: Sequence[LanguageModel[Any]],
    corpus: EncodedCorpus,
    *,
    device: torch.device,
    precision: torch.dtype,
    progress: Progress,
) -> None:
    """Write teachers' mean distribution at every position of a text, for `SoftTargets`.

    The text is one cyclic stream, as in `Streams`. It is read in parallel rows,
    on a CPU in threads, which wait for each other less often than torch's.

    Raises:
        FormatError: the file cannot be written.
    """
    teacher = MixtureModel(teachers, [1 / len(teachers)] * len(teachers))
    text, size, threads = corpus.with_boundaries(), len(teacher.vocabulary), torch.get_num_threads()
    kept, id_type = min(TARGET_TOKENS, size), np.uint16 if size < 1 << 16 else np.int32
    fields = [("ids", id_type, (kept + DRAWN_TOKENS,)), ("probabilities", np.float16, (kept,))]
    record = np.dtype([*fields, ("of_drawn", np.float16)])
    rows = max(1, min(_most_rows(teacher) * threads, len(text) // (4 * _CONTEXT)))
    length = -(-len(text) // rows)
    header, shape = io.BytesIO(), np.broadcast_to(np.empty((), record), (length, rows))
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(shape))
    positions = np.arange(-_CONTEXT, length)[:, None] + length * np.arange(rows)  # [C + L, R]
    tokens = text[positions % len(text)].astype(np.int64)
    num_parts = 1 if device.type == "cuda" else min(threads, rows)
    parts = np.array_split(tokens, num_parts, axis=1)
    readers = [
        (_distributions(teacher, part, precision), torch.Generator(device).manual_seed(number))
        for number, part in enumerate(parts)
    ]

    def read_segment(reader: tuple[Iterator[Tensor], torch.Generator]) -> AnyArray:
        torch.set_num_threads(1)  # of this thread
        with torch.no_grad():
            segment = itertools.islice(reader[0], _SEGMENT_STEPS)
            return np.stack([_record(found, record, reader[1]) for found in segment])

    with progress.stage("reading the text with the teachers", len(text)):
        try:
            with atomic_writer(path) as write:
                write(header.getvalue())
                for start in range(0, length, _SEGMENT_STEPS):
                    # the first call of a kernel compiles it: one thread
                    run = run_parts if start else map
                    records = np.concatenate(list(run(read_segment, readers)), axis=1)
                    write(records.tobytes())
                    progress.advance(records.size)
        finally:
            torch.set_num_threads(threads)


def _most_rows(model: LanguageModel[Any]) -> int:
    if isinstance(model, MixtureModel):
        return min(map(_most_rows, model.parts))
    return _ROWS_OF_CACHE if isinstance(model, CacheModel) else _ROWS


def _record(probabilities: Tensor, record: np.dtype[Any], generator: torch.Generator) -> AnyArray:
    """Return the records [R] of distributions [R, V]; the distributions are overwritten."""
    probabilities = probabilities.to(generator.device)  # a cache computes on the host
    records = np.empty(len(probabilities), record)
    kept = records["probabilities"].shape[1]
    if probabilities.is_cuda:
        values, ids = probabilities.topk(kept)
    else:
        best, highest = top_of_rows(probabilities.numpy(), kept)
        values, ids = torch.from_numpy(highest), torch.from_numpy(best)
    scale = probabilities.sum(1, keepdim=True)  # 1 but for rounding [R, 1]
    sums = probabilities.scatter_(1, ids, 0).cumsum(1)
    # systematic sampling: equally spaced points from a random start
    starts = torch.rand(len(sums), 1, generator=generator, device=sums.device)
    points = (torch.arange(DRAWN_TOKENS, device=sums.device) + starts) / DRAWN_TOKENS * sums[:, -1:]
    drawn = torch.searchsorted(sums, points).clamp_(max=sums.shape[1] - 1)
    records["ids"] = torch.cat([ids, drawn], 1).cpu().numpy()
    records["probabilities"] = (values / scale).cpu().numpy()
    records["of_drawn"] = (sums[:, -1:] / scale / DRAWN_TOKENS)[:, 0].cpu().numpy()
    return records


def _distributions(model: LanguageModel[Any], tokens: TokenIds, precision: torch.dtype) -> Iterator[Tensor]:
    """Yield probabilities [R, V] before each of tokens [C + L, R] but the first C = `_CONTEXT`."""
    if isinstance(model, MixtureModel) and not model.weights_by_context:
        for parts in zip(*(_distributions(part, tokens, precision) for part in model.parts), strict=True):
            weighted = [part.to(parts[-1].device) * w for part, w in zip(parts, model.weights, strict=True)]
            yield torch.stack(weighted).sum(0)
    elif isinstance(model, NeuralModel):
        network, hidden = model.network, model.network.initial_hidden(tokens.shape[1])
        ids = torch.as_tensor(tokens, device=hidden[0].device)
        cast = torch.autocast(ids.device.type, precision, enabled=precision != torch.float32)
        with cast:
            _, hidden = advance_many(network, ids[:_CONTEXT], hidden)
        for segment in torch.split(ids[_CONTEXT:], _SEGMENT_STEPS):
            with cast:
                outputs, after = advance_many(network, segment, hidden)
            for before in torch.cat([hidden[0], outputs[:-1]]):  # [R, W]
                with cast:
                    log_probs = network.output.log_probs(network.features(before))
                yield log_probs.float().exp_()
            hidden = after
    else:
        context, lengths = np.ascontiguousarray(tokens[:_CONTEXT].T), np.full(tokens.shape[1], _CONTEXT)
        state = prefill_sequences(model, model.empty_state(tokens.shape[1]), context, lengths)
        for now in tokens[_CONTEXT:]:
            given: Any = model.next_log_probs(state)
            yield torch.as_tensor(given).exp()
            state = model.advance(state, now)

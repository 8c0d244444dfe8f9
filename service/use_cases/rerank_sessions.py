"""Lists of one session: the candidates of each follow what the client committed before.

A session is a handle to what each model remembers, so it costs the same however much was committed. Nothing is changed
by using it: the same list may be sent again, with the same commit or another.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from models.arrays import TokenIds
from models.errors import InvalidInputError
from models.scoring import pad_sequences
from models.vocabulary import EOS
from service.engine.calls import consume
from service.engine.hosted import LoadedModel
from service.engine.job import Work
from service.engine.rows import concatenate_states, materialize
from service.engine.states import StoredState
from service.use_cases.candidate_features import StartStates
from service.use_cases.limits import Limits
from service.use_cases.prefill import chunks_by_length
from service.use_cases.reading_order import check_reads_forward
from service.use_cases.scoring_models import ScoringModels
from service.use_cases.states import OwnedStateStore, ids_after

_HANDLE_SEPARATOR = ","


class Turn(NamedTuple):
    """What a list says of the session it belongs to.

    Attributes:
        session: what the reply to the list before it gave; None begins a session.
        commit: the text that the client chose of the list before, which is read first; None if nothing is to be read.
    """

    session: str | None
    commit: str | None


class SessionStates(NamedTuple):
    """Where the lists of a request start.

    Attributes:
        starts: the states that they follow.
        turns: what each list says, by the number of its state; None for a list without a session.
        place: where states are kept.
    """

    starts: StartStates
    turns: Sequence[Turn | None]
    place: OwnedStateStore

    def sessions(self) -> list[str | None]:
        """What each list's reply gives, for the list after it: the same as before where nothing was committed.

        Raises:
            StatesFullError: there is no room for the states; none is kept.
        """
        numbers = self.starts.of_lists
        news = sorted(
            {
                n
                for n, turn in zip(numbers, self.turns, strict=True)
                if turn and turn.commit is not None and n is not None
            }
        )
        kept = [states[n] for n in news for states in self.starts.of_models]
        handles = iter(self.place.store.keep(self.place.owner, kept))
        made = {n: _HANDLE_SEPARATOR.join(next(handles) for _ in self.starts.of_models) for n in news}
        return [
            None if turn is None or n is None else made.get(n, turn.session)
            for n, turn in zip(numbers, self.turns, strict=True)
        ]


def resume_sessions(
    models: ScoringModels,
    turns: Sequence[Turn | None],
    place: OwnedStateStore,
    limits: Limits,
    *,
    bos: bool,
    eos: bool,
    name: Callable[[int], str],
) -> Work[Any, SessionStates]:
    """Find the states of sessions and read what is committed; a use case.

    Args:
        models: who scores.
        turns: of each list; None for a list without a session.
        place: where states are kept.
        limits: of what a state has read.
        bos: whether a session begins with `<s>`.
        eos: whether `</s>` is read after what is committed.
        name: what stands before `session` in a message about list i.

    Raises:
        UnknownStateError: a session was freed or has expired.
        StateElsewhereError: another process keeps it.
        InvalidInputError: a session is of other models than the request's.
        ContextLengthError: what was committed has become too long.
        UnsupportedParameterError: a model reads from right to left.
        StatesFullError: there is no room for what would be kept.
    """
    numbers: dict[Turn, int] = {}
    of_lists = [None if turn is None else numbers.setdefault(turn, len(numbers)) for turn in turns]
    names = {of_lists[i]: name(i) for i in reversed(range(len(turns)))}
    place.store.check_capacity(len(models.all) * sum(turn.commit is not None for turn in numbers))
    found = [_session_states(models, turn, place, names[n], bos=bos) for turn, n in numbers.items()]
    of_models = []
    for number, loaded in enumerate(models.all):
        check_reads_forward(loaded)
        befores = [states[number] for states in found]
        texts = [_commit_ids(befores[n], turn, names[n], limits, eos=eos) for turn, n in numbers.items()]
        of_models.append((yield from _read_commits(loaded, befores, texts)))
    return SessionStates(StartStates(of_lists, of_models), turns, place)


def _session_states(
    models: ScoringModels, turn: Turn, place: OwnedStateStore, name: str, *, bos: bool
) -> list[StoredState]:
    """What each model remembers of a session."""
    if turn.session is None:
        return [
            StoredState(loaded, loaded.model.initial_state(1) if bos else loaded.model.empty_state(1))
            for loaded in models.all
        ]
    states = place.store.find(place.owner, turn.session.split(_HANDLE_SEPARATOR), parameter=f"{name}session")
    told = [kept.loaded for kept in states]
    if len(told) != len(models.all) or any(a is not b for a, b in zip(told, models.all, strict=True)):
        raise InvalidInputError(
            f"{name}session is of {', '.join(one.address for one in told)} as loaded then, and this request asks "
            f"{', '.join(one.address for one in models.all)}: begin another session, with what was committed as its "
            "first commit",
            parameter=f"{name}session",
        )
    return states


def _commit_ids(before: StoredState, turn: Turn, name: str, limits: Limits, *, eos: bool) -> TokenIds:
    if turn.commit is None:
        return np.zeros(0, dtype=np.int64)
    limits.check_characters(turn.commit, parameter=f"{name}commit")
    if eos:
        ids = np.append(ids_after(before, turn.commit), EOS)
    else:
        ids = ids_after(before, _with_trailing_space(before.loaded, turn.commit))
    limits.check_length(before.num_tokens + len(ids), parameter=f"{name}commit")
    return ids


def _with_trailing_space(loaded: LoadedModel, text: str) -> str:
    """A text with the space that stands before the next candidate: as after a context, it is read and not scored."""
    own = loaded.tokenizer.leading_space  # of the next word's first token
    return text if own or not text or text[-1].isspace() else text + " "


def _read_commits(
    loaded: LoadedModel, befores: Sequence[StoredState], texts: Sequence[TokenIds]
) -> Work[Any, list[StoredState]]:
    """The states after texts, each read after its own."""
    states = [kept.state for kept in befores]
    for rows in chunks_by_length(np.array([len(text) for text in texts], dtype=np.int64)):
        tokens, lengths = pad_sequences([texts[row] for row in rows])
        if tokens.size:
            state = concatenate_states([befores[row].state for row in rows])
            after = yield from consume(loaded.model, state, tokens, lengths)
            for place, row in enumerate(rows):
                states[row] = materialize(after.select(np.array([place])))  # as what is kept must be
            yield None
    return [
        StoredState(loaded, state, kept.num_tokens + len(ids), int(ids[-1]) if len(ids) else kept.last_token)
        for state, kept, ids in zip(states, befores, texts, strict=True)
    ]

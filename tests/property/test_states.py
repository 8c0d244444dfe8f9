"""The state store against a simple model for any order of events; words appended to a state one by one."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from models.errors import StatesFullError, UnknownStateError
from models.language_model import Vocabulary
from models.phrases import PhraseAutomaton
from models.text_model import ids_after
from models.tokenizers import CharacterTokenizer, WordTokenizer
from service.hosting.loaded_model import LoadedModel
from service.hosting.state_store import OVERHEAD_BYTES, StateStore, StoredState
from training.progress import Progress
from training.tokenizer import TokenizerSettings, learn_tokenizer

MAX_STATES, TTL_S = 6, 10.0
MAX_BYTES = 5 * OVERHEAD_BYTES
OWNERS, VERSIONS = st.sampled_from(["one", "other"]), st.sampled_from([0, 1])


class StoreMachine(RuleBasedStateMachine):
    """Keeps, finds, frees and unloads states and advances time; models their expiry."""

    handles = Bundle("handles")

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.store = StateStore(
            process="here", max_states=MAX_STATES, max_bytes=MAX_BYTES, ttl_s=TTL_S, clock=lambda: self.now
        )
        self.phrases = [PhraseAutomaton(), *(PhraseAutomaton([(3,)], [1.0]) for _ in range(2))]
        self.versions = [
            LoadedModel("lm@1", None, None, checkpoint=None),
            LoadedModel("lm@2", None, None, checkpoint=None),
        ]
        self.there = {}  # handle → owner, state, time of last use

    @rule(
        target=handles,
        owner=OWNERS,
        version=VERSIONS,
        width=st.integers(0, 500),
        count=st.integers(1, 3),
        which=st.integers(0, 2),
    )
    def keep(self, owner, version, width, count, which):
        self.drop_late()
        loaded, phrases = self.versions[version], self.phrases[which]
        states = [StoredState(loaded, np.zeros(width, np.int8), phrases=phrases) for _ in range(count)]
        added = self.size({owner: states}) - self.size()
        num_owners = len({owner, *(other for other, _, _ in self.there.values())})
        of_owner = [state for other, state, _ in self.there.values() if other == owner]
        own = self.size({owner: of_owner}, there={})
        if (len(self.there) + count > MAX_STATES and len(of_owner) + count > MAX_STATES // num_owners) or (
            self.size() + added > MAX_BYTES and own + added > MAX_BYTES // num_owners
        ):
            with pytest.raises(StatesFullError):
                self.store.keep(owner, states)
            return multiple()
        made = self.store.keep(owner, states)
        self.evict(owner, count, added)
        self.there.update({h: (owner, state, self.now) for h, state in zip(made, states, strict=True)})
        return multiple(*made)

    def evict(self, owner, count, added):
        """Drop the least recently used states of the other owner until those of `owner` fit."""
        while len(self.there) + count > MAX_STATES or self.size() + added > MAX_BYTES:
            others = [h for h, (other, _, _) in self.there.items() if other != owner]
            del self.there[others[0]]

    @rule(owner=OWNERS, some=st.lists(handles, min_size=1, max_size=3))
    def find(self, owner, some):
        self.drop_late()
        if all(handle in self.there and self.there[handle][0] == owner for handle in some):
            found = self.store.find(owner, some, param="states[]")
            assert all(state is self.there[handle][1] for state, handle in zip(found, some, strict=True))
            for handle in some:  # the last becomes the most recently used
                self.there[handle] = (owner, self.there.pop(handle)[1], self.now)
        else:
            with pytest.raises(UnknownStateError):
                self.store.find(owner, some, param="states[]")

    @rule(owner=OWNERS, some=st.lists(handles, min_size=1, max_size=3))
    def free(self, owner, some):
        self.drop_late()
        own = {handle for handle in some if self.there.get(handle, ("nobody",))[0] == owner}
        assert self.store.free(owner, some) == len(own)
        for handle in own:
            del self.there[handle]

    @rule(version=VERSIONS)
    def unload(self, version):
        self.store.free_version(self.versions[version])
        gone = self.versions[version]
        self.there = {h: kept for h, kept in self.there.items() if kept[1].loaded is not gone}
        self.versions[version] = LoadedModel(gone.address, None, None, checkpoint=None)

    @rule(seconds=st.sampled_from([1.0, 6.0, 20.0]))
    def pass_time(self, seconds):
        self.now += seconds

    @rule()
    def expire(self):
        self.store.expire()
        self.drop_late()

    @invariant()
    def what_is_counted_is_what_is_there(self):
        self.store.expire()
        self.drop_late()
        assert len(self.store) == len(self.there)
        assert self.store.num_bytes == self.size()

    def size(self, more=None, there=None):
        """Return the bytes of the stored states and of more, the phrases of each owner counted once."""
        there = self.there if there is None else there
        states = [(owner, state) for owner, state, _ in there.values()]
        states += [(owner, state) for owner, some in (more or {}).items() for state in some]
        phrases = {(owner, state.phrases) for owner, state in states}
        return sum(one.num_bytes for _, one in (*states, *phrases))

    def drop_late(self):
        self.there = {h: kept for h, kept in self.there.items() if self.now - kept[2] <= TTL_S}

    def teardown(self):
        """Check that nothing is held after all states are freed."""
        for owner in ("one", "other"):
            self.store.free(owner, list(self.there))
        assert (len(self.store), self.store.num_bytes) == (0, 0)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


WORDS = st.lists(
    st.one_of(
        st.sampled_from(["the", "cat", "naïve", "漢字", "0x41", "sat"]),
        st.text(
            st.characters(exclude_categories=["C", "Z"], exclude_characters="\u2581"), min_size=1, max_size=8
        ),
    ),
    min_size=1,
    max_size=6,
)
KINDS = ["word", "pattern", "char", "bpe", "unigram"]


@functools.cache
def loaded(kind):
    words = ["the", "cat", "sat", "0x41"]
    if kind == "word":
        tokenizer = WordTokenizer(Vocabulary(words))
    elif kind == "pattern":
        tokenizer = WordTokenizer(Vocabulary(words), pattern=r"\w+|[^\w\s]", lowercase=True)
    elif kind == "char":
        tokenizer = CharacterTokenizer(Vocabulary("abcdehnst 漢"))
    else:
        text = ["the cat sat on the mat", "naïve café <s> </s>", "0x41 <0x41> 漢字"] * 40
        tokenizer = learn_tokenizer(TokenizerSettings(kind=kind, vocab_size=280), text, progress=Progress())
    return LoadedModel("lm@1", None, tokenizer, checkpoint=None)


@pytest.mark.parametrize("kind", KINDS)
@given(words=WORDS, spaced=st.booleans())
def test_words_one_by_one_have_the_tokens_of_the_whole(kind, words, spaced):
    """With and without a leading space."""
    model, ids = loaded(kind), np.zeros(0, dtype=np.int64)
    for place, word in enumerate(words):
        before = StoredState(model, None, len(ids), int(ids[-1]) if len(ids) else None)
        ids = np.concatenate(
            [ids, ids_after(before.loaded.tokenizer, before, " " + word if spaced and place else word)]
        )
    assert ids.tolist() == model.tokenizer.encode(" ".join(words))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_no_token(kind):
    model = loaded(kind)
    for last in (None, 4):
        assert ids_after(model.tokenizer, StoredState(model, None, 1, last), "").tolist() == []

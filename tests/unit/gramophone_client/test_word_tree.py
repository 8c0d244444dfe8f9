"""Word trees of decoders: requests to the service and freed states."""

import math
import unicodedata
from functools import partial
from itertools import count
from types import SimpleNamespace

import pytest

from gramophone_client.calls import StateElsewhereError
from gramophone_client.fusion import PyCTCDecodeLM, TorchaudioLM
from gramophone_client.fusion.word_tree import TokenTree, WordTree
from gramophone_client.types import AdvancedState, AdvanceReply, ErrorBody, OpenedState, OpenStatesReply


class FakeService:
    """Service with word log-probabilities of −(length of the word and of the text before it)."""

    def __init__(self, *, known=None, change=str):
        self.kept, self.calls, self.numbers, self.address = {}, [], count(), "lm@1"
        self.known, self.change, self.max_freed, self.process = known, change, 4096, "one"
        self.states = self

    def model(self, address):  # noqa: ARG002 - the client's signature
        return SimpleNamespace(vocab_size=1_000_000 if self.known is None else 3 + len(self.known))

    def open(self, context="", *, model=None, bos=True):  # noqa: ARG002 - the client's signature
        return OpenStatesReply(
            model=self.address, states=[OpenedState(state=self._keep(context), num_tokens=0)]
        )

    def advance(self, continuations, *, next_token_ids=(), free=()):
        self.calls.append([(self.kept[one["state"]], one.get("text", "")) for one in continuations])
        results = []
        for one in continuations:
            before = self.kept[one["state"]]
            added = one.get("text", "".join(chr(64 + i) for i in one.get("token_ids", ())))
            text = f"{before} {added}".strip()
            logprob = -float(len(before) + len(added)) if added else 0.0
            eos = -0.5 if one.get("eos") else None
            row = [-float(i) for i in next_token_ids]
            state = self._keep(text) if one.get("keep", True) else None
            results.append(
                AdvancedState(
                    state=state,
                    logprob=logprob,
                    num_tokens=1,
                    num_oov=int(self._is_oov(added)),
                    token_ids=[],
                    logprobs=[],
                    eos_logprob=eos,
                    next_logprobs=row,
                )
            )
        self.free(free)
        return AdvanceReply(model=self.address, results=results)

    def free(self, handles):
        assert len(handles) <= self.max_freed
        if any(not handle.startswith(self.process) for handle in handles):
            raise StateElsewhereError(ErrorBody(message="", type="", param=None, code=None), status=409)
        for handle in list(handles):
            del self.kept[handle]

    def _keep(self, text):
        handle = f"{self.process}.h{next(self.numbers)}"
        self.kept[handle] = text
        return handle

    def _is_oov(self, word):
        return self.known is not None and self.change(word) not in self.known


@pytest.fixture
def client():
    return FakeService()


def test_a_word_is_asked_for_once(client):
    tree = WordTree(client)
    start = tree.start()
    first, again = tree.extend(start, "cat"), tree.extend(start, "cat")
    assert first is again
    assert (first.said.logprob, first.said.is_oov) == (-3.0, False)
    assert client.calls == [[("", "cat")]]


def test_words_that_came_up_lately_are_asked_along_and_need_no_call_of_their_own(client):
    tree = WordTree(client)
    start = tree.start()
    cat, cap = tree.extend(start, "cat"), tree.extend(start, "cap")
    tree.add_recent("sat")
    assert [tree.extend(cat, word).said.logprob for word in ("on", "sat", "cap")] == [-5.0, -6.0, -6.0]
    assert client.calls[2] == [("cat", "on"), ("cat", "cat"), ("cat", "cap"), ("cat", "sat")]
    tree.extend(cap, "sat")
    assert [len(call) for call in client.calls] == [1, 1, 4, 4]
    assert len(client.kept) == 1 + 4  # no states are kept for companion queries


def test_a_text_that_was_asked_along_is_kept_once_it_is_continued(client):
    tree = WordTree(client)
    start = tree.start()
    tree.add_recent("cat")
    tree.extend(start, "the")
    cat = tree.extend(start, "cat")
    assert (len(client.calls), cat.held) == (1, None)
    assert tree.extend(cat, "sat").said.logprob == -6.0
    assert client.kept[cat.held.handle] == "cat"


@pytest.mark.parametrize(("companions", "sizes"), [(0, [1, 1, 1, 1]), (2, [1, 2, 3, 3])])
def test_no_more_companions_than_allowed(client, companions, sizes):
    tree = WordTree(client, companions=companions)
    text = tree.start()
    for word in "abcd":
        text = tree.extend(text, word)
    assert [len(call) for call in client.calls] == sizes


def test_unknown_words_are_one_where_the_whole_vocabulary_is_known():
    client = FakeService(known={"the", "cat"})
    tree = WordTree(client, words=["cat", "the", "zzz"], companions=0)
    start = tree.start()
    assert tree.known_words() == {"the", "cat"}
    calls = len(client.calls)
    texts = [tree.extend(start, word) for word in ("xq", "yq", "zq", "zzz")]
    assert (len(set(map(id, texts))), len(client.calls)) == (1, calls + 1)
    assert texts[0].said.is_oov


@pytest.mark.parametrize(
    ("known", "change"),
    [
        ({"the", "cat", "dog"}, str),
        ({"the", "cat"}, str.lower),
        ({"the", "cat"}, partial(unicodedata.normalize, "NFKC")),
        ({"the", "cat", *map(str, range(99)), "caf\u00e9"}, partial(unicodedata.normalize, "NFC")),
    ],
)
def test_unknown_words_differ_where_others_may_be_known(known, change):
    """The vocabulary has further words, or the tokenizer normalises words to known ones."""
    words = sorted(known - {"dog"})
    tree = WordTree(FakeService(known=known, change=change), words=words, companions=0)
    start = tree.start()
    assert tree.extend(start, "Cat") is not tree.extend(start, "dog")


def test_words_at_the_start_are_asked_for_all_at_once_and_once(client):
    words = [f"w{i}" for i in range(1500)]
    tree = WordTree(client, words=words)
    for _ in range(2):
        start = tree.start()
        assert [tree.extend(start, word).said.logprob for word in words] == [-float(len(w)) for w in words]
    assert [len(call) for call in client.calls] == [1000, 500]
    assert tree.extend(tree.extend(start, "w7"), "on").said.logprob == -4.0
    client.address = "lm@2"
    tree.start()
    assert [len(call) for call in client.calls[4:]] == [1000, 500]


def test_the_end_is_asked_for_with_the_last_word_or_alone(client):
    tree = WordTree(client)
    start = tree.start()
    assert tree.end(tree.extend(start, "cat", eos=True)) == -0.5
    assert len(client.calls) == 1
    dog = tree.extend(start, "dog")
    assert [tree.end(dog), tree.end(dog)] == [-0.5, -0.5]
    assert client.calls[2:] == [[("dog", "")]]


def test_dropped_state_is_freed_with_the_next_request(client):
    tree = WordTree(client, companions=0)
    text = tree.start()
    for word in ("the", "cat", "sat"):
        text = tree.extend(text, word)
    assert len(client.kept) == 3 + 1 - 2  # two earlier states were freed
    text = None
    tree.close()
    assert client.kept == {}


def test_more_is_dropped_than_one_request_may_free(client):
    tree = TokenTree(client, [4, 5, 6])
    texts = [tree.start() for _ in range(2500)]
    client.max_freed = 1000
    texts = None
    tree.extend(tree.start(), 0)
    tree.close()
    assert texts is None
    assert client.kept == {}


def test_state_is_dropped_after_a_failed_free(client):
    tree = WordTree(client, companions=0)
    text = tree.start()
    first = tree.extend(text, "the")
    text, client.max_freed = None, 0
    with pytest.raises(AssertionError):
        tree.extend(first, "cat")
    first, client.max_freed = None, 10
    tree.close()
    assert set(client.kept.values()) == {"the cat"}  # stored before the refusal


def test_after_the_service_was_started_again_a_decoder_begins_anew(client):
    lm = ServedLM(client, StateStandIn, words=["the", "cat"])
    lm.score(lm.score(lm.start(start_with_nothing=False), 0)[0], 1)
    client.process, client.kept = "two", {}
    state, _ = lm.score(lm.start(start_with_nothing=False), 0)
    assert lm.score(state, 1)[1] == -6.0
    lm.close()
    assert client.kept == {}


def test_tokens_are_asked_for_by_the_row_and_kept_when_they_are_continued(client):
    tree = TokenTree(client, [4, 5, 6])
    start = tree.start()
    texts = [tree.extend(start, index) for index in range(3)]
    assert [text.logprob for text in texts] == [-4.0, -5.0, -6.0]
    assert len(client.kept) == len(client.calls) == 1
    after = tree.extend(texts[1], 2)
    assert (after.logprob, tree.end(texts[1]), tree.end(start)) == (-6.0, -2.0, -2.0)
    assert sorted(client.kept.values()) == ["", "E"]
    assert len(client.calls) == 2
    start = texts = after = None
    tree.close()
    assert client.kept == {}


class StateStandIn:
    """Node of a decoder's tree, like flashlight's `LMState`."""

    def __init__(self):
        self.children = {}

    def child(self, index):
        return self.children.setdefault(index, StateStandIn())


class DecoderLM:
    """Decoder's base class of language models, whose `__init__` must run."""

    def __init__(self):
        self.ready = True


class ServedLM(TorchaudioLM, DecoderLM):
    """Subclass as written by a user."""


def test_torchaudios_tree_leads_to_what_the_service_says(client):
    lm = ServedLM(client, StateStandIn, words=["the", "cat"])
    assert lm.ready
    root = lm.start(start_with_nothing=False)
    the, score = lm.score(root, 0)
    assert (the, score) == (root.child(0), -3.0)
    assert lm.score(root, 0) == (the, score)
    cat, score = lm.score(the, 1)
    assert (cat, score) == (the.child(1), -6.0)
    assert lm.finish(cat) == (cat.child(-1), -0.5)


def test_torchaudios_scores_may_be_in_base_10(client):
    lm = ServedLM(client, StateStandIn, token_ids=[7, 8], log10=True)
    root = lm.start(start_with_nothing=False)
    assert lm.score(root, 1)[1] == pytest.approx(-8 / math.log(10))
    assert lm.finish(root)[1] == pytest.approx(-2 / math.log(10))


def test_a_new_start_forgets_and_frees(client):
    lm = ServedLM(client, StateStandIn, words=["the", "cat"])
    for _ in range(3):
        state, _ = lm.score(lm.start(start_with_nothing=False), 0)
        lm.score(state, 1)
        assert len(client.kept) <= 4
    lm.close()
    assert client.kept == {}


@pytest.mark.parametrize("options", [{}, {"words": ["a"], "token_ids": [3]}])
def test_torchaudio_has_words_or_tokens(client, options):
    with pytest.raises(ValueError, match="either words or token_ids"):
        ServedLM(client, StateStandIn, **options)


def test_pyctcdecodes_rule():
    client = FakeService(known={"the", "cat", "dog"})
    lm = PyCTCDecodeLM(client, unigrams=["the", "cat", "CAT"], alpha=0.5, beta=2.0, unk_score_offset=-10.0)
    start = lm.get_start_state()
    offset = 10 * math.log(10)
    assert lm.score(start, "cat")[0] == pytest.approx(2 - 0.5 * 3)
    assert lm.score(start, "dog")[0] == pytest.approx(2 - 0.5 * (3 + offset))
    assert lm.score(start, "CAT")[0] == pytest.approx(2 - 0.5 * (3 + offset))  # unknown to the model
    assert lm.score(start, "cat", is_last_word=True)[0] == pytest.approx(2 - 0.5 * 3.5)
    assert lm.score(start, "", is_last_word=True)[0] == pytest.approx(-0.25)
    partial = {piece: lm.score_partial_token(piece) for piece in ("t", "cat", "cats", "CA", "x", "xxxxxxxxx")}
    assert partial == {"t": 0, "cat": 0, "cats": -10, "CA": -10, "x": -10, "xxxxxxxxx": -15}

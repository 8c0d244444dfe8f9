"""Calls in any order that depend on one another: states, users' words, models that are unloaded and reloaded."""

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    multiple,
    rule,
    run_state_machine_as_test,
)

from tests.fuzz.conftest import unharmed
from tests.fuzz.served import MODELS, fuzzed, settings

TOKENS = st.lists(st.integers(3, 39), min_size=1, max_size=4)
USERS = st.sampled_from(["ann", "bob"])
UNLOADED = "lstm"
"""Model that is unloaded; the default cannot be."""


class Kept:
    """A state from the client's side: its text, and whether it is lost."""

    def __init__(self, handle, model, read):
        self.handle, self.model, self.read, self.lost = handle, model, read, False


class Sessions(RuleBasedStateMachine):
    """A client's actions, and the replies that earlier actions imply."""

    states = Bundle("states")

    def __init__(self, client):
        super().__init__()
        self.client, self.kept, self.accepted = client, [], {}

    def ask(self, path, status=200, method="POST", **body):
        """Return the reply, which must have the status."""
        answer = self.client.request(method, path, json=body or None)
        assert answer.status_code == status, (path, body, answer.text)
        return answer.json()

    def keep(self, handle, model, read):
        """Record a state."""
        self.kept.append(Kept(handle, model, read))
        return self.kept[-1]

    def logprob(self, state, tokens):
        """Return the expected log-probability of tokens after a state's text."""
        scored = self.ask("/v1/score", model=state.model, context=state.read, token_ids=[tokens], eos=False)
        return pytest.approx(scored["results"][0]["logprob"], abs=1e-4)

    @rule(target=states, model=st.sampled_from(MODELS), contexts=st.lists(TOKENS, min_size=1, max_size=3))
    def open(self, model, contexts):
        told = self.ask("/v1/states", model=model, context=contexts)["states"]
        pairs = zip(told, contexts, strict=True)
        return multiple(*[self.keep(state["state"], model, read) for state, read in pairs])

    @rule(target=states, state=states, tokens=TOKENS)
    def advance(self, state, tokens):
        body = {"continuations": [{"state": state.handle, "token_ids": tokens}]}
        if state.lost:
            assert self.ask("/v1/states/advance", 404, **body)["error"]["code"] == "unknown_state"
            return multiple()
        told = self.ask("/v1/states/advance", **body)["results"][0]
        assert told["logprob"] == self.logprob(state, tokens)
        return self.keep(told["state"], state.model, state.read + tokens)

    @rule(state=states, token=st.integers(3, 39))
    def look(self, state, token):
        body = {"states": [state.handle], "token_ids": [token]}
        if state.lost:
            self.ask("/v1/states/next", 404, **body)
        else:
            told = self.ask("/v1/states/next", **body)["logprobs"][0][0]
            assert told == self.logprob(state, [token])

    @rule(state=consumes(states))
    def free(self, state):
        assert self.ask("/v1/states/free", states=[state.handle])["freed"] == (not state.lost)
        state.lost = True
        self.look(state, 3)

    @rule()
    def unload(self):
        self.ask("/admin/models/unload", model=UNLOADED)
        self.ask("/v1/states", 404, model=UNLOADED)
        self.ask("/admin/models/load", model=UNLOADED, wait=True)
        for state in self.kept:
            state.lost = state.lost or state.model == UNLOADED

    @rule(user=USERS, word=st.sampled_from(["cat", "hats", "Paris"]))
    def accept(self, user, word):
        self.ask(f"/v1/autocomplete/users/{user}/accepted", text=word)
        self.accepted.setdefault(user, set()).add(word)
        words = self.ask(f"/v1/autocomplete/users/{user}", method="GET")["words"]
        assert {one["text"] for one in words} == self.accepted[user]

    @rule(user=USERS, word=st.sampled_from(["cat", "hats", "never"]))
    def forget_word(self, user, word):
        known = word in self.accepted.get(user, ())
        path = f"/v1/autocomplete/users/{user}/words/{word}"
        reply = self.ask(path, 200 if known else 404, method="DELETE")
        if known:
            self.accepted[user].remove(word)
            assert reply["num_words"] == len(self.accepted[user])

    @rule(user=USERS)
    def forget(self, user):
        known = self.accepted.pop(user, None) is not None
        assert self.ask(f"/v1/autocomplete/users/{user}", method="DELETE")["forgotten"] == known
        self.ask(f"/v1/autocomplete/users/{user}", 404, method="GET")

    def teardown(self):
        """Free all states and delete all users."""
        if self.kept:
            handles = [state.handle for state in self.kept]
            for first in range(0, len(handles), 50):
                self.ask("/v1/states/free", states=handles[first : first + 50])
        for user in self.accepted:
            self.ask(f"/v1/autocomplete/users/{user}", method="DELETE")


@pytest.fixture
def client(keys, tmp_path):
    """A client of a service whose states do not expire."""
    options = {"GRAMOPHONE_API_KEYS": keys["all"].key.line, "GRAMOPHONE_STATE_TTL_S": "600"}
    headers = {"authorization": f"Bearer {keys['all'].secret}"}
    with (
        fuzzed(tmp_path, headers=headers, **options) as service,
        unharmed(service),
        service.client() as client,
    ):
        yield client


def test_user_words_follow_any_sequence_of_requests(client):
    steps = hypothesis.settings(settings, stateful_step_count=25)
    run_state_machine_as_test(lambda: Sessions(client), settings=steps)

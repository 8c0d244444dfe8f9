"""With bad keys every request is refused; without keys everything but administration is open."""

from http import HTTPStatus

from hypothesis import strategies as st

from service.api_keys import KeyScope
from service.app import access_table
from tests.fuzz.asking import DOCUMENT
from tests.fuzz.served import drawn, fuzz_schema, settings

LOCKED, OPEN = fuzz_schema(DOCUMENT), fuzz_schema(DOCUMENT)
ASKS_A_KEY = LOCKED.exclude(path_regex="^/health")
GUESSES = st.one_of(
    st.just("gm_" + "A" * 43),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=300),
    st.sampled_from(["", "Bearer", "gm_", "null", "for-all", "for-all:infer,metrics,admin"]),
)
SCHEMES = st.sampled_from(["Bearer ", "bearer ", "Basic ", "Token ", "Bearer", ""])
DEMANDS = access_table()
REFUSED = {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}
"""404, since a parameter with a slash gives an unknown path."""


@ASKS_A_KEY.given(scheme=SCHEMES, guess=GUESSES)
@ASKS_A_KEY.parametrize()
@drawn
def test_invalid_key_is_unauthorized(case, scheme, guess, guarded_asker):
    answer = guarded_asker.ask(case, {"authorization": (scheme + guess).strip()})
    assert answer.status_code == HTTPStatus.UNAUTHORIZED
    assert answer.json()["error"]["code"] == "invalid_api_key"


@ASKS_A_KEY.parametrize()
@drawn
def test_a_key_of_another_scope_opens_nothing(case, keys, guarded_asker):
    for scope in set(KeyScope) - {DEMANDS.scopes[DEMANDS.route(case.path)]}:
        answer = guarded_asker.ask(case, {"authorization": f"Bearer {keys[scope].secret}"})
        assert answer.status_code in REFUSED


@OPEN.parametrize()
@settings
def test_without_keys_all_is_open_but_administration(case, unguarded_asker):
    answer = unguarded_asker.ask(case)
    if case.path.startswith("/admin"):
        assert answer.status_code in REFUSED
    else:
        assert answer.status_code not in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}

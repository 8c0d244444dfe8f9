"""The built-in requests."""

import json
from itertools import pairwise

import pytest

from models.errors import FormatError, InputError
from service.bench.workloads import WORKLOADS, default_texts, load_texts, typed_keys, workload_requests

TEXTS = ["one two three four", "five six seven eight"]


def bodies(name, **shape):
    requests = workload_requests(name, **{"texts": TEXTS, **shape})
    return [json.loads(request.body) for request in requests]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_makes_the_same_requests_again(name):
    first, again, other = (workload_requests(name, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len(set(first)) >= 100


def test_keystrokes_are_a_word_more_each_time():
    contexts = [body["context"] for body in bodies("next-token")[:4]]
    assert {"one ", "one two ", "one two three ", "five "} == set(contexts) or contexts[0] == "five "
    assert contexts[1].startswith(contexts[0])


def test_typists_press_every_key_of_texts_of_their_own_in_turn():
    typed = list(typed_keys(["ab c", "xyz w", "no", "one"], 2))
    assert typed[:8] == [
        (0, "a"),
        (1, "x"),
        (0, "ab"),
        (1, "xy"),
        (0, "ab "),
        (1, "xyz"),
        (0, "ab c"),
        (1, "xyz "),
    ]
    assert typed[8:] == [(0, "n"), (1, "xyz w"), (0, "no"), (1, "o")]  # until one has no text left


def test_each_typist_is_a_session_that_types_new_texts():
    texts = [f"{number:02} text" for number in range(60)]
    found = bodies("autocomplete", texts=texts, typists=3, count=150)
    assert [body["session"] for body in found[:4]] == ["typist-0", "typist-1", "typist-2", "typist-0"]
    typed = [body["text"] for body in found if len(body["text"]) > 1]
    assert len(set(typed)) == len(typed) > 100
    for session in ("typist-0", "typist-1", "typist-2"):
        own = [body["text"] for body in found if body["session"] == session]
        assert all(len(after) == 1 or after[:-1] == before for before, after in pairwise(own))
    assert not any("session" in body for body in bodies("autocomplete", texts=texts))


def test_items_are_texts_candidates_and_contexts():
    assert len(bodies("score", num_items=3)[0]["texts"]) == 3
    assert len(bodies("next-token", num_items=3)[0]["context"]) == 3
    lists = bodies("rerank", num_items=250)[0]["lists"]
    assert [len(one["candidates"]) for one in lists] == [100, 100, 50]
    assert workload_requests("rerank", texts=TEXTS)[0].num_items == 100


def test_a_prompt_is_one_to_a_request():
    with pytest.raises(InputError, match="items is 2"):
        bodies("generate", num_items=2)


def test_fields_go_over_what_is_there():
    body = bodies("completions", model="m", max_tokens=5, fields={"temperature": 0, "stream": False})[0]
    assert (body["model"], body["max_tokens"], body["temperature"], body["stream"]) == ("m", 5, 0, False)


def test_an_unknown_workload_is_refused():
    with pytest.raises(InputError, match="next-token, score, rerank, autocomplete, generate, completions"):
        workload_requests("typing")


def test_there_are_texts_without_any_file():
    assert len(set(default_texts())) > 1000


def test_texts_are_the_lines_of_a_file(tmp_path):
    (tmp_path / "texts").write_text("a b\n\n c d \n")
    assert load_texts(tmp_path / "texts") == ["a b", "c d"]


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe"])
def test_a_file_without_text_is_refused(tmp_path, content):
    (tmp_path / "texts").write_bytes(content)
    with pytest.raises(FormatError, match="one sentence per line"):
        load_texts(tmp_path / "texts")

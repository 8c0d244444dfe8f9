"""Requests with small bodies that ask for much give way to others: the routes count what they ask for."""

import pytest

from service.engine.scheduler import Scheduler

DRAWN = {"prompt": "a", "max_tokens": 16, "model": "chars"}
HEAVY = {
    "beams": ("generate", {**DRAWN, "strategy": "beam", "num_beams": 64}),
    "samples": ("generate", {**DRAWN, "n": 64}),
    "best of": ("completions", {**DRAWN, "best_of": 64}),
    "prompts": ("completions", {**DRAWN, "prompt": ["a"] * 64}),
    "contexts": ("next-token", {"context": ["a"] * 100}),
    "echoed": (
        "completions",
        {**DRAWN, "prompt": ["a b"] * 40, "echo": True, "logprobs": 2, "max_tokens": 0},
    ),
    "candidates": (
        "rerank",
        {"lists": [{"context": "a " * 400, "candidates": [{"text": "a"}, {"text": "b"}] * 25}]},
    ),
    "compared": ("rerank", {"lists": [{"candidates": [{"text": str(i)} for i in range(100)]}], "mbr": "wer"}),
    "texts": ("score", {"texts": ["a"] * 100, "context": "a " * 400}),
}
LIGHT = {
    "beams": ("generate", {**DRAWN, "strategy": "beam", "num_beams": 2}),
    "sample": ("completions", {**DRAWN, "max_tokens": 200}),
    "contexts": ("next-token", {"context": ["a"] * 8}),
    "compared": ("rerank", {"lists": [{"candidates": [{"text": "a"}, {"text": "b"}]}], "mbr": "wer"}),
    "texts": ("score", {"texts": ["a"] * 8, "context": "a b", "model": "chars"}),
}


@pytest.fixture
def submitted(monkeypatch):
    """The jobs that the engine was given."""
    jobs, submit = [], Scheduler.submit
    monkeypatch.setattr(Scheduler, "submit", lambda self, job: (jobs.append(job), submit(self, job))[1])
    monkeypatch.setattr("service.routes.request.BULK_TOKENS", 600)  # small limits for small models
    return jobs


@pytest.mark.parametrize(("path", "body"), HEAVY.values(), ids=HEAVY)
def test_what_asks_for_much_gives_way(http, submitted, path, body):
    assert http.post(f"/v1/{path}", json=body).status_code == 200
    assert [job.bulk for job in submitted] == [True]


@pytest.mark.parametrize(("path", "body"), LIGHT.values(), ids=LIGHT)
def test_what_asks_for_little_does_not(http, submitted, path, body):
    assert http.post(f"/v1/{path}", json=body).status_code == 200
    assert [job.bulk for job in submitted] == [False]

"""Requests to every stored checkpoint: every endpoint, and for some checkpoints every option."""

import json
from collections.abc import Iterator
from typing import NamedTuple

from tests.compatibility.checkpoints import CALIBRATED, CELLS, CHECKPOINTS, PROFILE, Checkpoint

JSON, LINES, BINARY = "application/json", "application/x-ndjson", "application/octet-stream"

PARTNER = "ngram-word"
"""Checkpoint that others are compared and mixed with; also the default model."""

THOROUGH = {
    "int8": (
        "ngram-word",
        "ngram-char",
        "ngram-bpe",
        "ngram-folded",
        "lstm-word",
        "gru-bpe",
        "mixture-word",
        "mixture-char",
        "cache-word",
        "self-normalised-word",
    ),
    "float32": ("lstm-word", "self-normalised-word", "adaptive-word"),
}
"""Checkpoints that are tested with every option, by precision of the service."""

FEW_TOPICS = tuple(
    f"ngram-{name}-word"
    for name in (
        "mle",
        "laplace",
        "add-k",
        "good-turing",
        "jelinek-mercer",
        "witten-bell",
        "absolute",
        "kneser-ney",
        "unigram-order",
        "pruned",
        "static",
    )
)
"""N-gram models that differ from `ngram-word` only in their probabilities."""

WORD_NGRAMS = ("ngram-word", "ngram-folded", "ngram-pattern", "ngram-quantised-word", *FEW_TOPICS)
"""N-gram models of words, whose completions sum probabilities by intervals, so the last digits differ."""

TOPICS_OF_FEW = ("score", "next-token", "generate", "autocomplete", "check", "rerank", "states", "models")
"""Topics of these models."""

_SUBWORDS = ("char", "bpe", "unigram")
_IN_INT8_ONLY = {f"{cell}-{tokens}" for cell in CELLS for tokens in _SUBWORDS} - {
    "lstm-char",
    "gru-bpe",
    "mingru-unigram",
}

TEXTS = ["The cat sat on the mat.", "A naïve painter saw the old café at 3:15!", "zzz 漢字 <s>  Guest16"]

_CANDIDATES = [
    {"text": "The cat sad on the mat.", "features": {"am": -2.5}},
    {"text": "The cat sat on the mat.", "features": {"am": -3.0}},
    {"text": "A naïve painter", "features": {"am": -3.5}},
    {"text": "The cat sat on the mat.", "features": {"am": -3.75}},
]
_OTHERS = [
    {"text": "A dock ran to the river!", "features": {"am": -3.8}},
    {"text": "A dog ran to the river!", "features": {"am": -4.0}},
]
_WEIGHTS = {"lm": 0.7, "am": 1.0, "words": 0.3, "tokens": -0.1, "unk": -2.0, "rank": -0.1}


class Question(NamedTuple):
    """A request.

    Attributes:
        body: an object sent as JSON, a text sent unchanged, or nothing.
        content_type: media type of the body.
        accept: media types that the client accepts.

    In body and path, `<handle 0>` stands for the first handle of a state or session in the replies before.
    """

    method: str
    path: str
    body: dict[str, object] | str | None = None
    content_type: str = JSON
    accept: str = "*/*"


def topics_of(checkpoint: Checkpoint, precision: str) -> dict[str, list[Question]]:
    """Return a checkpoint's requests by topic; the requests of a topic depend on earlier ones."""
    topics = {
        "score": _score,
        "next-token": _next_token,
        "generate": _generate,
        "completions": _completions,
        "autocomplete": _autocomplete,
        "check": _check,
        "quality": _quality,
        "rerank": _rerank,
        "rerank-formats": _rerank_formats,
        "rerank-sessions": _rerank_sessions,
        "tune": _tune,
        "states": _states,
        "tokenize": _tokenize,
        "models": _models,
    }
    thorough = checkpoint.name in THOROUGH[precision]
    wanted = TOPICS_OF_FEW if checkpoint.name in FEW_TOPICS else topics
    asked = {topic: list(topics[topic](checkpoint, thorough=thorough)) for topic in wanted}
    return {topic: questions for topic, questions in asked.items() if questions}


def _post(path: str, **body: object) -> Question:
    return Question("POST", path, body)


def _lines(path: str, *lines: dict[str, object]) -> Question:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    return Question("POST", path, text, LINES)


def _score(checkpoint: Checkpoint, *, thorough: bool) -> Iterator[Question]:
    model, path = checkpoint.name, "/v1/score"
    yield _post(path, model=model, texts=TEXTS[2:], detail="token")
    yield _lines(f"{path}?model={model}&eos=false", *({"text": text} for text in TEXTS))
    if thorough:
        yield _post(path, model=model, texts=TEXTS, detail="token")
        yield _lines(f"{path}?model={model}&detail=word", {"text": TEXTS[0]}, {"text": TEXTS[2]})
        yield _post(path, model=model, texts=[" sat on the mat.", " ran"], context="The cat", eos=False)
        yield _post(path, model=model, texts=TEXTS, detail="word", bos=False)
        yield _post(path, model=model, token_ids=[[3, 4, 5], [6]], context=[7, 8], detail="token")
        yield _lines(f"{path}?model={model}", {"context": "A dog", "text": " ran"}, {"token_ids": [4, 9]})


def _next_token(checkpoint: Checkpoint, *, thorough: bool) -> Iterator[Question]:
    model, path = checkpoint.name, "/v1/next-token"
    if checkpoint.backward:
        return
    yield _post(path, model=model, context=["The cat", "", TEXTS[2]], top_k=4)
    yield _post(path, model=model, context="A naïve painter", top_k=4, unit="word")
    if thorough:
        yield _post(path, model=model, context=[[3, 4], [5]], top_k=12, entropy=False)
        binary = _post(path, model=model, context=["The cat", "A dog ran to the"])
        yield binary._replace(accept=BINARY)


def _generate(checkpoint: Checkpoint, *, thorough: bool) -> Iterator[Question]:
    model, path = checkpoint.name, "/v1/generate"
    if checkpoint.backward:
        return
    sampled = {"prompt": "The cat", "max_tokens": 8, "seed": 11, "temperature": 1.3}
    yield _post(path, model=model, **sampled, n=2, top_p=0.9, logprobs=True)
    yield _post(path, model=model, prompt="The", strategy="beam", num_beams=3, n=2, max_tokens=6)
    yield _post(path, model=model, **sampled, stream=True)
    if not thorough:
        return
    yield _post(path, model=model, prompt="A dog", strategy="greedy", max_tokens=8, logprobs=2)
    for options in (
        {"top_k": 5, "min_p": 0.05},
        {"typical_p": 0.7, "min_tokens": 6},
        {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.25, "ignore_eos": True},
        {"logit_bias": {"5": 4.0, "7": -100}, "bad_words": ["cat", "the"]},
        {"n": 2, "best_of": 5, "logprobs": True, "stop": ["the", "."]},
        {"prompt": [3, 4, 5], "stop": "on", "stream": True, "n": 2, "logprobs": 1},
    ):
        yield _post(path, model=model, **{**sampled, **options})
    beams = {"prompt": "A", "strategy": "beam", "num_beams": 4, "n": 4, "max_tokens": 7}
    yield _post(path, model=model, **beams, num_beam_groups=2, diversity_penalty=0.8, length_penalty=0.5)
    yield _post(path, model=model, **beams, early_stopping=True, logprobs=True)


def _completions(checkpoint: Checkpoint, *, thorough: bool) -> Iterator[Question]:
    model, path = checkpoint.name, "/v1/completions"
    if checkpoint.backward:
        return
    yield _post(path, model=model, prompt="The cat", max_tokens=6, temperature=0, logprobs=2)
    yield _post(path, model=model, prompt="A dog ran", echo=True, max_tokens=0, logprobs=1)
    if not thorough:
        return
    yield _post(path, model=model, prompt="A dog", max_tokens=6, seed=5, stream=True)
    yield _post(path, model=model, prompt=[TEXTS[0], "A dog"], echo=True, max_tokens=0, logprobs=1)
    yield _post(path, model=model, prompt=["The", "A"], n=2, best_of=3, seed=7, max_tokens=5, stop=["."])
    yield _post(
        path,
        model=model,
        prompt="The owl",
        echo=True,
        max_tokens=5,
        seed=2,
        top_p=0.8,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        logit_bias={"4": -100},
        logprobs=1,
        return_tokens_as_token_ids=True,
    )
    options = {"include_usage": True}
    yield _post(
        path,
        model=model,
        prompt=[[3, 4, 5]],
        seed=3,
        max_tokens=6,
        stream=True,
        stream_options=options,
        logprobs=1,
    )


def _autocomplete(checkpoint: Checkpoint, *, thorough: bool) -> Iterator[Question]:
    model, path = checkpoint.name, "/v1/autocomplete"
    if checkpoint.backward:
        return
    yield _post(path, model=model, text="The ca", limit=4)
    yield _post(path, model=model, text="A naïve painter saw the ", limit=4, max_words=2, rank="savings")
    if not thorough:
        return
    dictionary = ["catamaran", {"text": "cathedral", "weight": 3}]
    yield _post(path, model=model, text="The cta", limit=5, fuzzy=1, dictionary=dictionary)
    yield _post(path, model=model, text="a DO", limit=5, casing="ignore", blocklist=["Dogs"], max_steps=40)
    yield _post(path, model=model, text="", limit=3, min_probability=0.05, session="typing")
    user = f"/v1/autocomplete/users/{model}"
    yield _post(f"{user}/accepted", text="The catalogue slept.", context="The cat")
    yield _post(f"{user}/accepted", text="a catalogue")
    yield Question("GET", user)
    yield _post(path, model=model, text="The ca", limit=6, user=model, user_weight=0.5, session="typing")
    words = {
        "words": [{"text": "doge", "count": 3.0}],
        "pairs": [{"previous": "a", "text": "doge", "count": 2.0}],
    }
    yield Question("PUT", user, words)
    yield _post(path, model=model, text="The cat saw a do", limit=5, user=model)
    yield Question("DELETE", user)
    yield Question("DELETE", user)


def _check(checkpoint: Checkpoint, *, thorough: bool) -> Iterator[Question]:
    model, path = checkpoint.name, "/v1/check"
    if checkpoint.backward:
        return
    yield _post(path, model=model, text="The cet sat on teh mat.", threshold=0.2, max_suggestions=2)
    if thorough:
        text = "A dog  ran two the house.\nThe owl sa w the rof."
        yield _post(path, model=model, text=text, threshold=0.05, error_rate=0.05, max_edits=1)
        spans = [{"start": 4, "end": 7, "suggestions": ["cat", {"text": "hen", "logprob": -2.0}]}]
        yield _post(
            path, model=model, text="The cot slept near teh bed.", candidates=spans, dictionary=["teh"]
        )
    if checkpoint.name in CALIBRATED:
        yield _post(path, model=model, text="The cet sat on teh mat.", precision=0.5)


def _quality(checkpoint: Checkpoint, *, thorough: bool) -> Iterator[Question]:
    model, path = checkpoint.name, "/v1/quality"
    yield _post(path, model=model, texts=[TEXTS[0], {"id": "b", "text": TEXTS[1]}], against=PARTNER)
    if thorough:
        yield _lines(f"{path}?model={model}", {"text": TEXTS[0], "id": "a"}, {"text": TEXTS[2]})


def _rerank(checkpoint: Checkpoint, *, thorough: bool) -> Iterator[Question]:
    model, path = checkpoint.name, "/v1/rerank"
    lists = [{"id": "one", "candidates": _CANDIDATES[:2]}]
    further = [{"model": PARTNER, "name": "old", "weight": -0.2}]
    yield _post(path, model=model, lists=lists, weights=_WEIGHTS, models=further, mbr="wer", confidences=True)
    if not checkpoint.backward:
        after = {"candidates": _OTHERS, "context": "The cat sat on the mat."}
        yield _post(path, model=model, lists=[after])
    if not thorough:
        return
    likelihood = {"candidates": _CANDIDATES[:2], "continuation": "and a dog slept."}
    yield _post(path, model=model, lists=[after, likelihood])
    yield _post(path, model=model, lists=[{"candidates": _OTHERS}], detail="word", length_exponent=1.0)
    both = [{"id": "one", "candidates": _CANDIDATES}, {"candidates": _OTHERS}]
    for metric in ("chrf", "bleu"):
        yield _post(path, model=model, lists=both, mbr=metric, posterior_scale=0.3, top=2)
    yield _post(path, model=model, lists=both, drop_duplicates=True, bos=False, eos=False, detail="token")
    if checkpoint.tokenizer == "word":
        mixture = [{"model": model, "weight": 0.6}, {"model": PARTNER, "weight": 0.4}]
        yield _post(path, mixture=mixture, lists=both, weights={"lm": 1.0, "am": 0.5})
    derived = {"lm": 1.0, "rank": -0.05, "am*words": 0.01, "am*tokens": 0.02, "consensus:wer": 0.2}
    yield _post(path, model=model, lists=both, weights=derived)
    yield _post(path, model=model, lists=both, profile=PROFILE)
    if model.startswith("self-normalised"):
        yield _post(path, model=model, lists=both, score_mode="unnormalised")


def _rerank_formats(checkpoint: Checkpoint, *, thorough: bool) -> Iterator[Question]:
    lists = {"utt-1": _CANDIDATES[:2], "utt-2": _OTHERS}
    path = f"/v1/rerank?model={checkpoint.name}"
    yield _lines(path, *({"id": name, "candidates": some} for name, some in lists.items()))
    if not thorough:
        return
    yield _lines(f"{path}&mbr=wer&confidences=true", *({"candidates": some} for some in lists.values()))

    def each(form: str) -> str:
        return "".join(
            form.format(name=name, number=number, text=one["text"], am=one["features"]["am"])
            for name, some in lists.items()
            for number, one in enumerate(some, start=1)
        )

    yield Question(
        "POST", f"{path}&weights=lm=0.5,am=1", each("{name} ||| {text} ||| am= {am}\n"), "text/x-moses-nbest"
    )
    srilm = "-5.25 -7.5 6 The cat sad on the mat.\n-6.5 -6.25 6 The cat sat on the mat.\n"
    yield Question("POST", path, srilm, "text/x-srilm-nbest")
    yield Question("POST", path, each("{name}-{number} {text}\n"), "text/x-kaldi-nbest")
    scored = {
        name: {
            f"hyp_{number}": {"score": one["features"]["am"], "text": one["text"]}
            for number, one in enumerate(some, start=1)
        }
        for name, some in lists.items()
    }
    yield Question("POST", path, json.dumps(scored), "application/x-mlm-scoring+json")
    heard = [
        {
            "id": name,
            "input": [one["text"] for one in some],
            "am_score": [one["features"]["am"] for one in some],
        }
        for name, some in lists.items()
    ]
    yield Question("POST", path, json.dumps(heard), "application/x-hyporadise+json")


def _rerank_sessions(checkpoint: Checkpoint, *, thorough: bool) -> Iterator[Question]:
    model, path = checkpoint.name, "/v1/rerank"
    if checkpoint.backward:
        return
    yield _post(path, model=model, lists=[{"candidates": _CANDIDATES[:2], "commit": "A dog ran."}])
    again = {"candidates": _OTHERS, "session": "<handle 0>", "commit": "The cat sat on the mat."}
    yield _post(path, model=model, lists=[again], commit_eos=True)
    if thorough:
        yield _post(path, model=model, lists=[{"candidates": _OTHERS, "session": "<handle 1>"}])


def _tune(checkpoint: Checkpoint, *, thorough: bool) -> Iterator[Question]:
    path = "/v1/rerank/tune"
    lists = [
        {"candidates": _CANDIDATES[:3], "reference": "The cat sat on the mat."},
        {"candidates": _OTHERS, "reference": "A dog ran to the river!"},
    ]
    for right, wrong in (
        ("The owl saw the house.", "The owl saw the horse."),
        ("A hen slept.", "A pen slept."),
    ):
        lists.append(
            {
                "candidates": [
                    {"text": wrong, "features": {"am": -2.0}},
                    {"text": right, "features": {"am": -2.5}},
                ],
                "reference": right,
            }
        )
    quick = {"restarts": 1, "resamples": 1, "bootstrap_samples": 100, "max_p_value": 1.0}
    common = {"model": checkpoint.name, "lists": lists, **quick}
    yield _post(path, **common, features=["am", "lm"], length_exponents=[0])
    if thorough:
        # with few features no two weightings tie, so no last digit of a score decides
        for metric in ("cer", "bleu", "chrf"):
            normaliser = "lower" if metric == "cer" else "none"
            yield _post(path, **common, features=["lm"], metric=metric, normaliser=normaliser, seed=3)


def _states(checkpoint: Checkpoint, *, thorough: bool) -> Iterator[Question]:
    model, path = checkpoint.name, "/v1/states"
    if checkpoint.backward:
        return
    yield _post(path, model=model, context=["The cat", ""])
    follow = [
        {"state": "<handle 0>", "text": "sat on", "eos": True},
        {"state": "<handle 1>", "token_ids": [3, 4]},
        {"state": "<handle 0>"},
    ]
    yield _post(f"{path}/advance", continuations=follow, next_token_ids=[2, 3])
    yield _post(f"{path}/next", states=["<handle 2>", "<handle 3>"], token_ids=[2, 3, 4, 5])
    if thorough:
        yield _post(f"{path}/next", states=["<handle 4>"])._replace(accept=BINARY)
        last = [{"state": "<handle 3>", "text": "the mat.", "eos": True, "keep": False}]
        yield _post(f"{path}/advance", continuations=last, free=["<handle 3>"])
        yield _post(f"{path}/advance", continuations=last)
    yield _post(f"{path}/free", states=["<handle 0>", "<handle 1>", "<handle 2>", "<handle 3>", "<handle 4>"])


def _tokenize(checkpoint: Checkpoint, *, thorough: bool) -> Iterator[Question]:
    model = checkpoint.name
    yield _post("/tokenize", model=model, prompt=TEXTS[2])
    yield _post("/tokenize", model=model, prompt=TEXTS[1].upper(), add_special_tokens=False)
    yield _post("/detokenize", model=model, tokens=[1, 3, 4, 0, 5, 30, 31, 2])
    yield Question("GET", f"/tokenizer_info?model={model}")


def _models(checkpoint: Checkpoint, *, thorough: bool) -> Iterator[Question]:
    address = f"/v1/models/{checkpoint.name}@1"
    yield Question("GET", address)
    yield Question("GET", f"{address}/files")
    yield Question("GET", f"{address}/card")
    if checkpoint.name == "ngram-word":
        yield Question("GET", f"{address}/files/ngrams.png")
    if checkpoint.name == "lstm-word":
        yield Question("GET", f"{address}/files/report.html")


def service_topics() -> dict[str, list[Question]]:
    """Return requests that concern no single model; each topic leaves the service unchanged."""
    spare, alias = "ngram-mle-word", "/admin/models/ngram-word/aliases/trial"
    profile = {"weights": {"lm": 0.5, "am": 1.0}, "models": [{"address": PARTNER}], "created": "2026-01-01"}
    lists = [{"candidates": _CANDIDATES}]
    return {
        "health": [Question("GET", "/health/live"), Question("GET", "/health/ready")],
        "models": [Question("GET", "/v1/models"), Question("GET", "/v1/models/ngram-word@champion")],
        "default-model": [_post("/v1/score", texts=TEXTS), _post("/tokenize", prompt=TEXTS[0])],
        "profiles": [
            Question("GET", "/admin/profiles"),
            Question("GET", f"/admin/profiles/{PROFILE}"),
            Question("PUT", "/admin/profiles/mine", profile),
            Question("GET", "/admin/profiles/mine"),
            _post("/v1/rerank", lists=lists, profile="mine"),
            Question("DELETE", "/admin/profiles/mine"),
            Question("GET", "/admin/profiles"),
        ],
        "loading": [
            Question("GET", "/admin/models"),
            _post("/admin/models/unload", model=spare),
            _post("/admin/models/load", model=spare, wait=True),
            _post("/admin/models/load", model=spare),
            _post("/v1/score", model=spare, texts=TEXTS[:1]),
        ],
        "aliases": [
            Question("PUT", alias, {"version": 1, "wait": True}),
            Question("GET", "/v1/models/ngram-word@1"),
            Question("DELETE", alias),
        ],
    }


def exact() -> list[Checkpoint]:
    """Return the checkpoints with bit-identical replies: n-gram models, and networks in int8."""
    return [checkpoint for checkpoint in CHECKPOINTS if checkpoint.int8 or not checkpoint.networks]


def in_float32() -> list[Checkpoint]:
    """Return the checkpoints with networks that run in float32 too, without some that differ only in the tokenizer."""
    return [
        checkpoint
        for checkpoint in CHECKPOINTS
        if checkpoint.networks and checkpoint.name not in _IN_INT8_ONLY
    ]

"""Token healing: the first tokens of a continuation spell the end of the prompt, against all tokenisations."""

import itertools
import math

import numpy as np
import pytest

from models.calls import iter_outputs, run_to_completion
from models.completion.prefix import take_back
from models.decoding import strategies as decode
from models.decoding.parameters import DecodingParameters
from models.errors import UnsupportedError
from models.language_model import EOS, UNK
from models.text_model import Limits
from service.operations.completions import CompletionRequest, complete_prompts
from service.operations.generate import Generate, GenerateRequest
from tests.matrix.zoo import tokenizer
from tests.unit.conftest import operation

LIMITS = Limits(max_texts=100, max_tokens_per_sequence=1000, max_new_tokens=100)
PROMPTS = ["The ca", "The cat", "The cat ", "Th", "The cat sat,", "the naïve caf", "The cat:", "x", "zqzq zq"]


def spellings(token_bytes, text):
    """Yield every sequence of tokens whose bytes begin with a text, but not without its last token."""
    for token, spelled in enumerate(token_bytes):
        if token > EOS and spelled:
            if spelled.startswith(text):
                yield (token,)
            elif text.startswith(spelled):
                for rest in spellings(token_bytes, text[len(spelled) :]):
                    yield (token, *rest)


@pytest.mark.parametrize("name", ["bpe", "unigram", "char", "word"])
@pytest.mark.parametrize("text", [b" cat", b" t", b" s", b" ", b"at"])
def test_scores_are_those_of_all_tokenisations(load, monkeypatch, name, text):
    monkeypatch.setattr(decode, "_NEGLIGIBLE", -math.inf)
    loaded = load(tokenizer(name))
    model, before = loaded.model, 5
    state = model.advance(model.initial_state(1), np.array([before]))
    masses = {}
    for sequence in spellings(loaded.tokenizer.token_bytes, text):
        pairs = itertools.pairwise((before, *sequence))
        masses[sequence] = math.exp(sum(float(model.table[pair]) for pair in pairs))
    root = run_to_completion(decode.spell(loaded, state, text))
    for sequence, mass in masses.items():
        node, score = root, 0.0
        for token in sequence:
            score += float(node.scores(loaded.token_trie.exact)[token]) - node.total
            node = node.longer.get(token)
        assert node is None
        assert math.exp(score) == pytest.approx(mass / sum(masses.values()), rel=1e-4)
    possible = {sequence[0] for sequence in masses}
    assert set(np.flatnonzero(root.scores(loaded.token_trie.exact) > -np.inf).tolist()) == possible


def test_excessive_tokenisations_are_omitted(load, monkeypatch):
    loaded, text = load(tokenizer("bpe")), b" cat sat"
    state = loaded.model.initial_state(1)
    monkeypatch.setattr(decode, "MAX_SEARCH_STEPS", 3)
    monkeypatch.setattr(decode, "_NEGLIGIBLE", -math.inf)
    rests, nodes = [], [run_to_completion(decode.spell(loaded, state, text))]
    while nodes:
        rests += [node.rest for node in nodes]
        nodes = [longer for node in nodes for longer in node.longer.values()]
    assert sorted(rests) == sorted(text[first:] for first in range(len(text)))  # one for each byte


LONG = ["www.example.org/path/to/some-file_name.html", "a" * 100, "漢" * 30, "see zqxj" * 9]


@pytest.mark.parametrize("name", ["bpe", "unigram", "char"])
@pytest.mark.parametrize("prompt", LONG)
def test_long_words_are_spelled(load, name, prompt):
    loaded = load(tokenizer(name), endless=True)
    kept, taken = take_back(loaded.tokenizer, loaded.token_trie, prompt)
    for choice in continued(loaded, prompt, max_tokens=60, seed=1, n=3):
        spelled = b"".join(loaded.tokenizer.token_bytes[token] for token in choice.token_ids)
        assert len(choice.token_ids) == 60
        assert spelled.startswith(taken)
        assert loaded.tokenizer.decode([*kept, *choice.token_ids]).endswith(choice.text)


@pytest.mark.parametrize("space", ["\u00a0", "\u3000", "\n"])
@pytest.mark.parametrize("name", ["bpe", "unigram"])
def test_white_space_that_the_tokenizer_keeps_needs_no_other_space(load, name, space):
    loaded = load(tokenizer(name), endless=True)
    kept, taken = take_back(loaded.tokenizer, loaded.token_trie, f"The cat{space}")
    known = loaded.tokenizer.encode("The cat")[: len(kept)]
    assert kept[: len(known)] == known
    assert taken == b"" or taken.decode().endswith(space)


def continued(loaded, prompt, **options):
    request = GenerateRequest(prompt=prompt, token_healing=True, **options)
    return run_to_completion(operation(Generate, loaded, request, LIMITS).run()).choices


@pytest.mark.parametrize("name", ["bpe", "unigram", "char", "word", "pattern", "folded"])
@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"seed": 3, "n": 3}, {"seed": 4, "top_p": 0.9, "n": 2}]
)
def test_the_prompt_and_the_text_are_what_the_tokens_spell(load, name, options):
    loaded = load(tokenizer(name), endless=True)
    for prompt in PROMPTS:
        for choice in continued(loaded, prompt, max_tokens=8, logprobs=True, **options):
            assert len(choice.token_ids) == len(choice.logprobs) == 8
            spelled = b"".join(loaded.tokenizer.token_bytes[token] for token in choice.token_ids)
            end = spelled.decode(errors="replace")
            assert end.endswith(choice.text) or spelled.endswith(choice.text.encode())
            taken = end.removesuffix(choice.text)
            read = loaded.tokenizer.decode(loaded.tokenizer.encode(prompt))
            if UNK in loaded.tokenizer.encode(prompt) and name in {"word", "pattern"}:
                read = prompt.strip() if name == "word" else prompt.strip().lower()
            assert f" {read} ".removesuffix("" if prompt.endswith(" ") else " ").endswith(taken)


def test_a_word_is_completed_by_the_tokens_that_begin_with_it(load):
    loaded = load(tokenizer("word"), endless=True)
    for choice in continued(loaded, "The ca", max_tokens=1, seed=1, n=20):
        assert ("ca" + choice.text) in {"cat", "cat,", "cat.", "café"} or choice.text.startswith("t")


def test_a_space_at_the_end_is_the_space_of_the_next_piece(load):
    loaded = load(tokenizer("bpe"), endless=True)
    for choice in continued(loaded, "The cat ", max_tokens=1, seed=1, n=20):
        assert loaded.tokenizer.token_bytes[choice.token_ids[0]].decode(errors="replace") == f" {choice.text}"


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_stream_gives_the_same_text(load, prompt):
    loaded, options = (
        load(tokenizer("bpe")),
        {"max_tokens": 9, "seed": 5, "n": 3, "stop": ["e"], "logprobs": 2},
    )
    whole = continued(loaded, prompt, **options)
    request = GenerateRequest(prompt=prompt, token_healing=True, stream=True, **options)
    work = operation(Generate, loaded, request, LIMITS).run()
    parts = {choice.index: ["", [], []] for choice in whole}
    for item in iter_outputs(work):
        for choice in item.value.choices if item.last else [item.value[0]]:
            parts[choice.index][0] += choice.text
            parts[choice.index][1] += choice.token_ids
            parts[choice.index][2] += choice.top_logprobs
    assert [[c.text, c.token_ids, c.top_logprobs] for c in whole] == [parts[c.index] for c in whole]


@pytest.mark.parametrize("name", ["bpe", "word"])
def test_names_of_tokens_and_offsets_continue_the_prompt(load, name):
    loaded = load(tokenizer(name), endless=True)
    request = CompletionRequest(
        prompt=[*PROMPTS, ""], token_healing=True, max_tokens=5, seed=1, logprobs=1, echo=True, n=2
    )
    work = complete_prompts(loaded, request, request.parameters(LIMITS), LIMITS)
    for choice in run_to_completion(work).choices:
        prompt = [*PROMPTS, ""][choice.index // 2]
        assert choice.text.startswith(prompt)
        names, offsets = choice.logprobs.tokens, choice.logprobs.text_offset
        assert len(names) == len(offsets)
        for text, offset in zip(names, offsets, strict=True):
            if "�" not in choice.text and not text.startswith("<"):
                assert offset < 0 or choice.text[max(offset, 0) :].startswith(
                    text.removeprefix(" " if not offset else "")
                )


def test_one_prompt_is_continued_alike_alone_and_beside_others(load):
    loaded = load(tokenizer("unigram"))
    parameters = DecodingParameters(max_tokens=6, temperature=0.0)
    for prompt in PROMPTS:
        texts = []
        for prompts in ([prompt], [prompt, "", "The dog"]):
            request = CompletionRequest(prompt=prompts, token_healing=True)
            done = run_to_completion(complete_prompts(loaded, request, parameters, LIMITS))
            texts.append(done.choices[0].text)
        assert texts[0] == texts[1]


def test_other_requests_run_between_the_choices(load, finish):
    loaded = load(tokenizer("bpe"), endless=True)
    steps = []
    for n in (1, 8):
        request = GenerateRequest(prompt="The ca", token_healing=True, n=n, max_tokens=4, seed=1)
        steps.append(finish(operation(Generate, loaded, request, LIMITS).run())[1])
    assert steps[1] >= steps[0] + 7


def test_beams_and_token_ids_are_refused(load):
    loaded = load(tokenizer("bpe"))
    with pytest.raises(UnsupportedError, match="strategy is 'beam'"):
        continued(loaded, "The ca", strategy="beam")
    with pytest.raises(UnsupportedError, match="prompt is a list of token ids"):
        continued(loaded, [3, 4])

"""A pretrained transformer beside the library that computes it: re-ranking, next tokens, memory, loading.

    python tests/benchmarks/bench_pretrained.py [--pairs 10] [--layers 12] [--device cuda]

The model has the shape of GPT-2 (124 million weights, random) and 8,000 byte-level tokens. Re-ranking scores 100
candidates of 15 to 25 tokens; the library alone reads them as one padded batch and computes the same sums. A next token
follows a context of 20 tokens. Pairs alternate; figures are medians, and the ratio's median with its quartiles. On a
CUDA device, both compute in bfloat16.
"""

import argparse
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers
from preparation import default_texts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from models.language_model import BOS, prefill_sequences, score_sequences
from models.pretrained.model import PretrainedModel
from models.pretrained.tokenizer import PretrainedTokenizer

NUM_CANDIDATES, CONTEXT_TOKENS = 100, 20


def write_tokenizer(folder, lines):
    """Write a tokenizer of 8,000 byte-level tokens; the token 0 begins and ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=8000,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_model(folder, layers):
    """Write a GPT-2 of random weights, and a tokenizer."""
    config = transformers.GPT2Config(n_layer=layers, bos_token_id=0, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    write_tokenizer(folder, default_texts())


def timed_s(function):
    """Return the seconds of a call, which a device has finished."""
    begun = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def compare(title, ours, theirs, pairs):
    """Print the medians of alternating calls, and the ratio with its quartiles."""
    for function in (ours, theirs):
        function()
    times = [(timed_s(ours), timed_s(theirs)) for _ in range(pairs)]
    low, ratio, high = statistics.quantiles([one / other for one, other in times], n=4)
    own_s, their_s = (statistics.median(column) for column in zip(*times, strict=True))
    print(
        f"{title:30} {1000 * own_s:9.1f} ms   transformers {1000 * their_s:9.1f} ms   "
        f"{ratio:5.2f} x ({low:.2f} to {high:.2f})",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder, given.layers)
        begun = time.perf_counter()
        tokenizer = PretrainedTokenizer(folder)
        on_device = given.device == "cuda"
        model = PretrainedModel(folder, tokenizer.vocabulary, device=given.device, bfloat16=on_device)
        load_s = time.perf_counter() - begun
        dtype = torch.bfloat16 if on_device else torch.float32
        original = (
            transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval().to(given.device)
        )
        random = np.random.default_rng(0)
        lengths = random.integers(15, 26, NUM_CANDIDATES)
        tokens = random.integers(3, len(tokenizer.vocabulary), (NUM_CANDIDATES, int(lengths.max())))
        start, numbers = model.initial_state(1), tokenizer.numbers
        rows = np.zeros(NUM_CANDIDATES, dtype=np.int64)
        starts = np.full((NUM_CANDIDATES, 1), numbers[BOS])
        padded = torch.as_tensor(np.concatenate([starts, numbers[tokens]], axis=1), device=given.device)
        mask = torch.as_tensor(np.arange(padded.shape[1]) <= lengths[:, None], device=given.device).long()

        @torch.inference_mode()
        def their_scores(outputs=None):
            logits = original(padded, attention_mask=mask).logits[:, :-1, :outputs]
            return torch.log_softmax(logits.float(), dim=-1).gather(2, padded[:, 1:, None])[:, :, 0].cpu()

        def our_scores():
            return score_sequences(model, start.select(rows), tokens, lengths)

        first = np.arange(tokens.shape[1]) < lengths[:, None]
        outputs = int(numbers.max()) + 1  # the model has more outputs than the tokenizer has tokens
        worst = np.abs(our_scores() - their_scores(outputs).numpy())[first].max()
        context = prefill_sequences(model, start, tokens[:1, :CONTEXT_TOKENS], np.array([CONTEXT_TOKENS]))
        with torch.inference_mode():
            read = original(padded[:1, : CONTEXT_TOKENS + 1], use_cache=True)
        cache = getattr(read, "cache", None) or read.past_key_values
        token, number = np.array([7]), torch.as_tensor([[int(numbers[7])]], device=given.device)

        @torch.inference_mode()
        def their_next():
            log_probs = torch.log_softmax(original(number, past_key_values=cache).logits, dim=-1)
            cache.crop(-1)
            return log_probs

        size = sum(model.memory())
        print(f"{model.num_parameters:,} weights, {size / 2**20:,.0f} MiB, loaded in {load_s:.1f} s")
        print(f"context of {CONTEXT_TOKENS} tokens: {context.nbytes / 2**20:.1f} MiB of keys and values")
        print(f"largest difference of a log-probability: {worst:.1e}")
        compare("100 candidates", our_scores, their_scores, given.pairs)
        compare(
            "next token",
            lambda: model.next_log_probs(model.advance(context, token)),
            their_next,
            5 * given.pairs,
        )
        if on_device:
            return
        others = {
            "bfloat16": PretrainedModel(folder, tokenizer.vocabulary, bfloat16=True),
            "int8": model.in_int8(),
        }
        for precision, other in others.items():
            starts = other.initial_state(1).select(rows)
            compare_precision(
                precision,
                other,
                score=lambda other=other, starts=starts: score_sequences(other, starts, tokens, lengths),
                difference=(score_sequences(other, starts, tokens, lengths) - our_scores())[first],
                context=tokens[:1, :CONTEXT_TOKENS],
                theirs=(their_scores, their_next),
                pairs=given.pairs,
            )


def compare_precision(precision, model, *, score, difference, context, theirs, pairs):
    """Print the figures of a model in another precision, beside the library in float32."""
    print(
        f"ours in {precision}: {model.memory().own / 2**20:,.0f} MiB; root mean square of the difference of a "
        f"log-probability {np.sqrt(np.square(difference).mean()):.1e}"
    )
    compare(f"100 candidates, ours in {precision}", score, theirs[0], pairs)
    after = prefill_sequences(model, model.initial_state(1), context, np.array([CONTEXT_TOKENS]))
    token = np.array([7])
    compare(
        f"next token, ours in {precision}",
        lambda: model.next_log_probs(model.advance(after, token)),
        theirs[1],
        5 * pairs,
    )


if __name__ == "__main__":
    main()

"""Lists with references as requests hold them."""

import numpy as np


def made_lists(count=40, seed=0):
    """Three candidates each, of which `good` tells errors, with the reference in any place."""
    rng = np.random.default_rng(seed)
    lists = []
    for number in range(count):
        right = [f"w{i}" for i in rng.integers(0, 37, 6)]
        texts, wrong = [], rng.permutation([0, 1, 3])
        for errors in wrong:
            words = list(right)
            for place in rng.permutation(6)[:errors]:
                words[place] = f"w{rng.integers(0, 37)}"
            texts.append(" ".join(words))
        candidates = [
            {"text": text, "features": {"good": float(-errors + 0.2 * rng.standard_normal())}}
            for text, errors in zip(texts, wrong, strict=True)
        ]
        lists.append({"id": f"u{number}", "candidates": candidates, "reference": " ".join(right)})
    return lists


def without_references(lists):
    return [{key: value for key, value in one.items() if key != "reference"} for one in lists]

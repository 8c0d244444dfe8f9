"""Small lattices for tests, and brute-force scores of all their paths."""

import numpy as np

from models.language_model import EOS, pad_sequences, score_sequences
from models.lattices.lattice import Arc, Scales, build_lattice
from models.phrases import NO_PHRASES


def random_lattice(rng, *, words, num_nodes=6, num_arcs=12, name="utt", silence=0.2):
    """Make a lattice with paths that share nodes, parallel arcs, and arcs without a word.

    Args:
        rng: random generator.
        words: words to draw from.
        num_nodes: maximum number of nodes.
        num_arcs: number of arcs in addition to the chain that connects all nodes.
        name: utterance id.
        silence: share of arcs without a word.
    """
    chain = [(node, node + 1) for node in range(num_nodes - 1)]
    pairs = chain + [tuple(sorted(rng.choice(num_nodes, 2, replace=False).tolist())) for _ in range(num_arcs)]
    count = len(pairs)
    labels = ["" if rng.random() < silence else str(rng.choice(words)) for _ in pairs]
    am, old_lm = rng.normal(-20, 3, count).round(3), rng.normal(-4, 1, count).round(3)
    arcs = [
        Arc(*pair, *rest) for pair, *rest in zip(pairs, labels, am.tolist(), old_lm.tolist(), strict=True)
    ]
    times = np.sort(rng.random(num_nodes)).round(2)
    return build_lattice(
        arcs, name=name, start=0, end=num_nodes - 1, times=times, scales=Scales(1.0, 2.0, -0.5)
    )


def all_paths(lattice):
    """Every path from the start to the end, as a tuple of arcs."""
    going = {0: [()]}
    for arc in range(lattice.num_arcs):
        source, target = int(lattice.sources[arc]), int(lattice.targets[arc])
        going.setdefault(target, []).extend((*path, arc) for path in going.get(source, ()))
    return going[lattice.num_nodes - 1]


def sentence_log_probs(model, sentences):
    """Log-probabilities of sentences from `<s>` to `</s>`, each a list of ids."""
    tokens, lengths = pad_sequences([[*ids, EOS] for ids in sentences])
    scores = score_sequences(model, model.initial_state(len(sentences)), tokens, lengths)
    return scores.sum(axis=1, dtype=np.float64).tolist()


def text_of(lattice, path):
    """Text of a path."""
    return " ".join(filter(None, (lattice.words[lattice.labels[arc]] for arc in path)))


def brute_force(lattice, model, tokenizer, weights, phrases=NO_PHRASES):
    """Total and features of each distinct string's best path, {text: (total, features)}."""
    paths, best = {path: text_of(lattice, path) for path in all_paths(lattice)}, {}
    encoded = {text: tokenizer.encode(text) for text in paths.values()}
    log_probs = dict(zip(encoded, sentence_log_probs(model, list(encoded.values())), strict=True))
    for path, text in paths.items():
        arcs, ids = list(path), encoded[text]
        features = {
            "am": float(lattice.am[arcs].sum()),
            "old_lm": float(lattice.old_lm[arcs].sum()),
            "lm": log_probs[text],
            "words": float(len(text.split())),
            "unk": float(ids.count(0)),
        }
        for index in phrases.find(text):
            log_share, num_unknown = phrases.unknown(index, tokenizer)
            features["lm"] += log_share
            features["unk"] -= num_unknown
        values = phrases.values(phrases.find(text)).sum(axis=0).tolist()
        features |= dict(zip(phrases.features, values, strict=True))
        total = sum(weight * features[name] for name, weight in weights.by_feature().items())
        if text not in best or total > best[text][0]:
            best[text] = (total, features)
    return best


def edit_distance(left, right):
    """Fewest substitutions, insertions and deletions between two lists."""
    rows = [list(range(len(right) + 1))]
    for i, a in enumerate(left, start=1):
        row = [i]
        for j, b in enumerate(right, start=1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (a != b)))
        rows.append(row)
    return rows[-1][-1]

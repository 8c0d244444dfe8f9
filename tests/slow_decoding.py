"""Decoding as it is defined, one row at a time, in double precision and with sorted lists."""

import math

import numpy as np

from models.vocabulary import BOS, EOS, UNK

ROUNDING = 1e-6


def scores(log_probs, parameters, *, prompt=(), generated=(), banned=()):
    """Mask, bias and penalties: scores [V] of one row."""
    out = np.array(log_probs, dtype=np.float64)
    forbidden = {UNK, BOS, *banned}
    if parameters.ignore_eos or len(generated) < parameters.min_tokens:
        forbidden.add(EOS)
    out[list(forbidden)] = -np.inf
    for token, bias in parameters.logit_bias:
        out[token] += bias
    for token in {*prompt, *generated}:
        penalty = parameters.repetition_penalty
        out[token] = out[token] / penalty if out[token] > 0 else out[token] * penalty
    for token in set(generated):
        count = list(generated).count(token)
        out[token] -= parameters.presence_penalty + parameters.frequency_penalty * count
    return out


def distribution(scored, parameters):
    """Temperature and all truncations: probabilities [V] of a row of scores."""
    left = [i for i in range(len(scored)) if scored[i] > -math.inf]
    peak = max(scored[i] for i in left)
    x = {i: (scored[i] - peak) / max(parameters.temperature, 1e-30) for i in left}
    left = [i for i in left if x[i] > -87]
    if parameters.top_k is not None:
        left = sorted(sorted(left, key=lambda i: (-x[i], i))[: parameters.top_k])
    if parameters.typical_p < 1:
        p = _normalised(left, x)
        entropy = -sum(p[i] * math.log(p[i]) for i in left)
        # rounded, so that what is equal by definition is equal here
        left = _least(left, p, parameters.typical_p, key=lambda i: round(abs(-math.log(p[i]) - entropy), 9))
    if parameters.top_p < 1:
        left = _least(left, _normalised(left, x), parameters.top_p, key=lambda i: -x[i])
    if parameters.min_p > 0:
        p = _normalised(left, x)
        left = [i for i in left if p[i] >= parameters.min_p * (1 - ROUNDING) * max(p.values())]
    out = np.zeros(len(scored))
    for i, share in _normalised(left, x).items():
        out[i] = share
    return out


def _normalised(left, x):
    total = math.fsum(math.exp(x[i]) for i in left)
    return {i: math.exp(x[i]) / total for i in left}


def _least(left, p, share, *, key):
    """The tokens with the least keys, as few as have the share; of equal ones the smaller ids."""
    kept, mass = [], 0.0
    for i in sorted(left, key=lambda i: (key(i), i)):
        if mass >= share * (1 - ROUNDING):
            break
        kept.append(i)
        mass += p[i]
    return sorted(kept)

"""The page about a tuning run: what the weights are worth, and which lists they change."""

from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from typing import NamedTuple

import numpy as np

from models.reranking.tuning.lines import LOSS_TOLERANCE
from models.reranking.tuning.problem import Floats
from service.reports.charts import Chart
from service.reports.tuning_charts import tuning_charts
from service.reports.word_changes import mark_errors
from service.schemas.tune_replies import TuneReply
from service.use_cases.tune import TuneResult

_EXAMPLES = 12


class ChangedList(NamedTuple):
    """A list for which another candidate is chosen than the first.

    Attributes:
        name: the list's.
        reference: what is right.
        before: the first candidate.
        after: the one chosen.
        gain: what that is worth to the corpus score, in percent points; below 0 it is worse.
    """

    name: str
    reference: str
    before: str
    after: str
    gain: float


def tuning_page(title: str, tuned: TuneResult, reply: TuneReply) -> bytes:
    """The page, HTML in UTF-8; it needs no other file."""
    changes = _changed_lists(tuned)
    better = sorted((one for one in changes if one.gain > LOSS_TOLERANCE), key=lambda one: -one.gain)
    worse = sorted((one for one in changes if one.gain < -LOSS_TOLERANCE), key=lambda one: one.gain)
    same = len(changes) - len(better) - len(worse)
    verb = "changed" if reply.decision == "tuned" else "would have changed"
    style = (resources.files("service.reports") / "page.css").read_text(encoding="utf-8")
    sections = [
        _tiles(reply, len(changes)),
        _section("Charts", _figures(tuning_charts(tuned))),
        _section("Weights", _weights(reply)),
        _section("Folds", _folds(reply)),
        _section("Changed for better", _examples(better, "better")),
        _section("Changed for worse", _examples(worse, "worse")),
    ]
    changed = f"{len(changes):,} lists {verb}: {len(better):,} for better, {len(worse):,} for worse, {same:,} as good."
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}: tuning report</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<header class="{reply.decision}">\n<h1>{escape(title)}</h1>\n<p class="verdict">{escape(reply.reason)}</p>\n'
        f"<p>{escape(changed)} {escape(_models(reply))} <code>{escape(reply.signature)}</code></p>\n</header>\n"
        f"<main>\n{''.join(sections)}</main>\n</body>\n</html>\n"
    ).encode()


def _models(reply: TuneReply) -> str:
    further = [f"{name}: {address}" for name, address in reply.models.items()]
    named = [*([reply.model] if reply.model else []), *further]
    return f"Models: {', '.join(named)}." if named else "No model scored."


def _changed_lists(tuned: TuneResult) -> list[ChangedList]:
    data, outcome = tuned.data, tuned.outcome
    problem = data.problem
    costs: Floats = problem.costs(problem.statistics[outcome.held_out].sum(axis=0))
    gains = costs[outcome.first] - costs[outcome.held_out]
    before, after = data.texts(outcome.first), data.texts(outcome.held_out)
    return [
        ChangedList(
            data.lists[i].name or f"list {i + 1}",
            data.lists[i].references[0],
            before[i],
            after[i],
            float(gains[i]),
        )
        for i in np.flatnonzero(outcome.first != outcome.held_out).tolist()
    ]


def _tiles(reply: TuneReply, num_changed: int) -> str:
    test, room = reply.significance, reply.oracle - reply.baseline
    closed = f"{round(100 * test.difference / room)} %" if room else "none"
    values = [
        (f"{reply.baseline:.2f}", f"{reply.metric.upper()} of the first pass"),
        (f"{reply.tried:.2f}", "tuned weights, on lists held out"),
        (f"{reply.oracle:.2f}", "oracle: the best candidates"),
        (f"{test.difference:+.2f}", f"difference; 95 % from {test.low:+.2f} to {test.high:+.2f}"),
        (f"{test.p_value:.3f}", "p-value, paired bootstrap"),
        (closed, "of the way to the oracle"),
        (f"{num_changed:,} of {reply.counts.lists:,}", "lists changed"),
    ]
    tiles = "".join(
        f'<div class="tile"><b>{value}</b><span>{label}</span></div>\n' for value, label in values
    )
    return f'<div class="tiles">\n{tiles}</div>\n'


def _figures(charts: Sequence[Chart]) -> str:
    figures = "".join(
        f"<figure>\n{one.svg}\n<figcaption>{escape(one.caption)}</figcaption>\n</figure>\n" for one in charts
    )
    return f'<div class="figures">\n{figures}</div>\n'


def _weights(reply: TuneReply) -> str:
    columns = [reply.weights, *(fold.weights for fold in reply.folds)]
    exponents = [reply.length_exponent, *(fold.length_exponent for fold in reply.folds)]
    heads = ["all lists", *(f"without fold {i + 1}" for i in range(len(reply.folds)))]
    rows = [
        [escape(name), *(f"{weights[name]:.4g}" if name in weights else "0" for weights in columns)]
        for name in reply.features
    ]
    rows.append(["length exponent", *(f"{exponent:g}" for exponent in exponents)])
    rows.append(["posterior scale", f"{reply.posterior_scale:.4g}", *("" for _ in reply.folds)])
    return _table(["feature", *heads], rows)


def _folds(reply: TuneReply) -> str:
    rows = [
        [
            f"fold {i + 1}",
            f"{fold.num_lists:,}",
            *(f"{score:.2f}" for score in (fold.baseline, fold.tuned, fold.oracle, fold.in_sample)),
        ]
        for i, fold in enumerate(reply.folds)
    ]
    return _table(["", "lists", "first pass", "tuned", "oracle", "same weights where found"], rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{text}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows)
    return f'<div class="scroll"><table>\n<tr>{head}</tr>\n{body}</table></div>\n'


def _examples(changes: Sequence[ChangedList], kind: str) -> str:
    if not changes:
        return ""
    shown = changes[:_EXAMPLES]
    note = (
        f"<p>The {len(shown)} of {len(changes):,} that count most. Marked are words that the reference does not have "
        "there; struck through, words of it that are missing.</p>\n"
    )
    return note + f'<div class="examples {kind}">\n{"".join(map(_example, shown))}</div>\n'


def _example(change: ChangedList) -> str:
    rows: Iterator[tuple[str, str]] = iter(
        (
            ("reference", escape(change.reference)),
            ("first pass", mark_errors(change.before, change.reference)),
            ("tuned", mark_errors(change.after, change.reference)),
        )
    )
    items = "".join(f"<dt>{label}</dt><dd>{text}</dd>\n" for label, text in rows)
    return f'<dl>\n<dt class="name">list</dt><dd class="name">{escape(change.name)}</dd>\n{items}</dl>\n'


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{title}</h2>\n{content}</section>\n" if content else ""

"""N-best lists in the formats of other programs, read and written.

Scores become natural logarithms, larger is better: costs are negated, other bases converted. `am`
is an acoustic score, `old_lm` that of the first pass's language model, `score` the first pass's
total.

White space around a text is dropped in all formats but `jsonl`; in those without JSON, every run of
ASCII white space is written as one space. What a format cannot hold is dropped
(`Format.dropped_fields`); what it would change is refused.
"""

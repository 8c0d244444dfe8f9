"""N-best lists in the formats of other programs, read and written.

Scores become natural logarithms, larger is better: costs are negated, other bases converted. `am`
is an acoustic score, `old_lm` the score of the first pass's language model, `score` the total of the
first pass.

All formats except `jsonl` strip white space around a text; formats without JSON also write every run
of ASCII white space as one space. Replies of recognisers, NeMo's manifest and the output of neural
translators are only read. Writing drops the fields that a format does not have
(`Format.dropped_fields`) and refuses values that it would change.
"""

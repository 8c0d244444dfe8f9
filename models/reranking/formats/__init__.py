"""N-best lists in the formats of other programs, read and written.

Scores become natural logarithms, larger is better: costs are negated, other bases converted. `am`
is an acoustic score, `old_lm` that of the first pass's language model, `score` the total of the
first pass.

All formats except `jsonl` strip white space around a text; those without JSON also write every run
of ASCII white space as one space. Replies of recognisers, NeMo's manifest and neural translators'
output are only read. Writing drops fields that a format does not have
(`Format.dropped_fields`) and refuses values that it would change.
"""

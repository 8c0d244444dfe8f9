"""The tokenisation of BLEU by default: that of NIST's mteval-v13a.pl, on which WMT's figures rest."""

import re

_ENTITIES_13A = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
_RULES_13A = (
    (
        re.compile(r"""([!-&(-+/:-@\[-`{-~])"""),
        r" \1 ",
    ),  # ASCII punctuation but for apostrophe, comma, full stop and hyphen
    (re.compile(r"([^0-9])([.,])"), r"\1 \2 "),  # a point or comma after anything but a digit
    (re.compile(r"([.,])([^0-9])"), r" \1 \2"),  # or before anything but one
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),  # a hyphen after a digit
)
"""One after the other: where a rule has used a character up, such as in an ellipsis, the order shows."""


def tokenize_13a(text: str) -> list[str]:
    """Words and punctuation of a text."""
    text = text.rstrip().replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    if "&" in text:
        for entity, character in _ENTITIES_13A:
            text = text.replace(entity, character)
    text = f" {text} "
    for pattern, spaced in _RULES_13A:
        text = pattern.sub(spaced, text)
    return text.split()

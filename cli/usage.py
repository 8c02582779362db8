"""What is wrong with an option's value, in plain words? For what the parser of the command line says of them."""

from __future__ import annotations

import re
from typing import Final

_PLAIN: Final = (
    (re.compile(r"Input should be a valid integer\b.*"), "expected a whole number"),
    (re.compile(r"Input should be a valid number\b.*"), "expected a number"),
    (re.compile(r"Input should be greater than or equal to (\S+)"), r"expected \1 or more"),
    (re.compile(r"Input should be less than or equal to (\S+)"), r"expected \1 or less"),
    (re.compile(r"Value error, "), ""),
)


def plain(message: str) -> str:
    """A parser's message without its jargon.

    >>> plain("Invalid value for '--chunks': Input should be a valid integer, unable to parse string as an integer")
    "Invalid value for '--chunks': expected a whole number"
    >>> plain("Invalid value for '--chunks': Input should be greater than or equal to 1")
    "Invalid value for '--chunks': expected 1 or more"
    """
    for pattern, words in _PLAIN:
        message = pattern.sub(words, message)
    return message

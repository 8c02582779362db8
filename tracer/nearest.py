"""What did somebody mean who mistyped a name?"""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known name that is most like a mistyped one; empty where none is like it.

    Args:
        name: as it was typed.
        known: names that there are.
        cutoff: from 0, where any will do, to 1, where only the same will.

    >>> nearest("rign", ["ring", "tree"]), nearest("x", ["ring", "tree"])
    ('ring', '')
    """
    from difflib import get_close_matches

    found = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return found[0] if found else ""

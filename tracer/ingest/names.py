"""What do the names of profiles say: their order, a rank, what they are called without the endings of compression?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Final

from trnprof.tracer.units import printable

_DIGITS: Final = re.compile(r"([0-9]+)")
_COMPRESSED: Final = (".gz", ".zst", ".zstd", ".xz", ".bz2")
_RANK: Final = (
    re.compile(r"(?<!local)(?<!local[_.-])rank[-_.= ]?([0-9]{1,7})", re.IGNORECASE),
    re.compile(r"worker[-_.= ]?([0-9]{1,7})", re.IGNORECASE),
    re.compile(r"(?:^|[_.-])r([0-9]{1,7})(?=[_.-]|$)", re.IGNORECASE),
)


def natural_key(text: str) -> tuple[tuple[str | int, ...], str]:
    """A key that sorts numbers in a text by their value.

    >>> sorted(["rank10.json", "rank9.json", "Rank1.json"], key=natural_key)
    ['Rank1.json', 'rank9.json', 'rank10.json']
    """
    parts = _DIGITS.split(text)
    # the text itself last: 01 and 1 have an order too
    return tuple(int(p) if i % 2 else p.casefold() for i, p in enumerate(parts)), text


def in_order(paths: Sequence[Path]) -> list[Path]:
    """Paths by number where a shell has put them in the order of their letters; else as somebody has put them on purpose.

    >>> [str(p) for p in in_order([Path("rank1"), Path("rank10"), Path("rank2")])]
    ['rank1', 'rank2', 'rank10']
    >>> [str(p) for p in in_order([Path("second"), Path("first")])]
    ['second', 'first']
    """
    by_letter = sorted(paths, key=str)
    return sorted(paths, key=lambda p: natural_key(str(p))) if by_letter == [*paths] else [*paths]


def plain_name(name: str) -> str:
    """A file's name without its folders and endings of compression, in lower case.

    >>> plain_name("runs/Rank0.json.GZ")
    'rank0.json'
    """
    plain = PurePath(name).name.lower()
    while plain.endswith(_COMPRESSED):
        plain = plain.rpartition(".")[0]
    return plain


def rank_in_name(name: str) -> int | None:
    """The rank that a file's name has in it, or else the nearest of its folders; None if there is none.

    >>> rank_in_name("dlrm_8rank_worker3.pt.trace.json.gz"), rank_in_name("run/rank_12/trace.json")
    (3, 12)
    >>> rank_in_name("trace.json") is None, rank_in_name("node1/local_rank0.json") is None
    (True, True)
    """
    for part in reversed(PurePath(name.replace("!", "/")).parts):
        for pattern in _RANK:
            found = pattern.findall(part)
            if found:
                return int(found[-1])
    return None


def shown(path: Path | str) -> str:
    """A path for people: no control characters, whatever a file is called."""
    return printable(str(path))

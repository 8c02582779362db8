"""Which rank is each source of, and what is its writer called?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from trnprof.tracer.ingest.audit import Finding
from trnprof.tracer.ingest.names import rank_in_name

_UNFIT: Final = re.compile(r"[^A-Za-z0-9_.-]+")


def assign_ranks(
    labels: Sequence[str], stated: Sequence[int | None], has_device: Sequence[bool]
) -> tuple[list[int | None], list[Finding]]:
    """The rank of each source, no two alike, and what a person should know of the choice.

    What the profile states comes first, then a number in the file name (``rank3``, ``worker_12``), then the order of the
    sources. A source without device activity that states no rank has none.

    Args:
        labels: what people know the sources by.
        stated: rank each profile says it is of.
        has_device: whether it has device activity.
    """
    if len(labels) == 1:
        return [stated[0] if stated[0] is not None else 0], []
    found: list[Finding] = []
    ranks: list[int | None] = [None] * len(labels)
    taken: set[int] = set()
    repeated = {rank for rank, n in Counter(r for r in stated if r is not None).items() if n > 1}
    for index, rank in enumerate(stated):
        if rank is not None and rank not in taken:
            ranks[index] = rank
            taken.add(rank)
    for index, label in enumerate(labels):
        if ranks[index] is not None or not (has_device[index] or stated[index] is not None):
            continue
        named = rank_in_name(label)
        by_name = named is not None and named not in taken
        chosen = named if named is not None and by_name else _lowest_free(taken)
        ranks[index] = chosen
        taken.add(chosen)
        source = "its file name" if by_name else "the order of the sources"
        if stated[index] in repeated:
            found.append(
                Finding(
                    "duplicate_rank",
                    "warning",
                    label,
                    f"says it is rank {stated[index]}, as another source does: both are kept, this one as rank {chosen}, from {source}",
                    unreliable="which rank is which",
                )
            )
        else:
            message = f"states no rank: it is rank {chosen}, from {source}"
            found.append(Finding("assumed_rank", "note", label, message, "which rank is which"))
    return ranks, found


def writer_names(labels: Sequence[str], ranks: Sequence[int | None]) -> list[str]:
    """A name for the writer of each source: ``rank3``, or its file's name; distinct and fit for file names."""
    names: list[str] = []
    for label, rank in zip(labels, ranks, strict=True):
        stem = PurePath(label.replace("!", "/")).name.split(".")[0]
        name = f"rank{rank}" if rank is not None else _UNFIT.sub("_", stem)[:80].strip("-._")
        name, base, count = name or "source", name or "source", 2
        while name in names:
            name, count = f"{base}_{count}", count + 1
        names.append(name)
    return names


def _lowest_free(taken: set[int]) -> int:
    rank = 0
    while rank in taken:
        rank += 1
    return rank

"""Which ranks does a group of an execution trace have? From a JSON file, as ASTRA-sim takes it, or from PyTorch's own record in the trace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from trnprof.emulator.capture.chakra import schema
from trnprof.emulator.capture.chakra.trace import ExecutionTrace
from trnprof.tracer.errors import ProfileError
from trnprof.tracer.whole_files import read_json_object

ALL_RANKS: Final = ("", "0")
"""What the group of all ranks is called where no group of that name is described, as in ASTRA-sim."""

Groups = Mapping[str, tuple[int, ...]]


def read_groups(path: Path) -> dict[str, tuple[int, ...]]:
    """The groups of a JSON file such as {"1": [0, 1], "2": [2, 3]}.

    Raises:
        ProfileError: it cannot be read, or holds something else.
    """
    expected = 'groups of ranks are expected, such as {"1": [0, 1, 2, 3]}'
    document = read_json_object(path, ProfileError, expected)
    return {name: _ranks(f"{path}: group {name!r}", ranks) for name, ranks in document.items()}


def recorded_groups(trace: ExecutionTrace) -> dict[str, tuple[int, ...]]:
    """The groups that PyTorch has written into the trace, as a list of objects in the inputs of metadata nodes; without ranks it is all.

    Raises:
        ProfileError: such a list that cannot be read.
    """
    groups: dict[str, tuple[int, ...]] = {}
    for node in np.flatnonzero(trace.columns.type == schema.METADATA).tolist():
        text = trace.input_values(node)
        begin, end = text.find("[{"), text.rfind("}]")
        if '"pg_name"' not in text or begin < 0 or end < begin:
            continue
        try:
            found = json.loads(text[begin : end + 2])
            pairs = [(str(group["pg_name"]), group.get("ranks") or []) for group in found]
        except (ValueError, TypeError, KeyError):
            raise trace.fail(node, "has groups of ranks that cannot be read") from None
        for name, ranks in pairs:
            if ranks:
                groups[name] = _ranks(f"{trace.label}: group {name!r}", ranks)
    return groups


def members(
    trace: ExecutionTrace, node: int, groups: Groups, rank: int, world: int
) -> tuple[int, ...]:
    """The ranks of the group of a collective.

    Raises:
        ProfileError: the group is not described, has ranks beyond the world, or not the one whose trace this is.
    """
    name = trace.group_name(node)
    found = groups.get(name)
    if found is None and name in ALL_RANKS:
        return tuple(range(world))
    if found is None:
        raise trace.fail(
            node, f"is of group {name!r}, which nothing describes; name the JSON file of groups too"
        )
    if rank not in found:
        raise trace.fail(node, f"is of group {name!r}, in which rank {rank} is not: {list(found)}")
    if max(found) >= world:
        raise trace.fail(
            node, f"is of group {name!r} with rank {max(found)}, there are 0 to {world - 1}"
        )
    return found


def _ranks(where: str, ranks: Any) -> tuple[int, ...]:
    is_list = isinstance(ranks, list) and bool(ranks)
    if not is_list or not all(type(rank) is int and rank >= 0 for rank in ranks):
        raise ProfileError(f"{where} is no list of ranks")
    if len(set(ranks)) < len(ranks):
        raise ProfileError(f"{where} has a rank twice")
    return tuple(ranks)

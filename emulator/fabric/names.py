"""What are links called, and which links does a name mean?

A chip is called by its number, a switch by its tier and number ("x-switch 0"), a link by its two ends: ``3>7``, or ``3-7`` for both directions.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from trnprof.emulator.fabric.fabric import I64, Fabric
from trnprof.emulator.fabric.layout import first_switches
from trnprof.tracer.errors import FabricError

MAX_NAMED: Final = 6
_NODE: Final = r"(\d{1,9}|\S.*?-switch \d{1,9})"
_LINK: Final = re.compile(rf"\s*{_NODE}\s*([->])\s*{_NODE}\s*", re.ASCII)
_EXPECTED: Final = "expected 3-7 (both directions) or 3>7 (one)"


def node_name(fabric: Fabric, node: int) -> str:
    """A chip's number, or a switch's tier and number in it."""
    if node < fabric.chips:
        return str(node)
    first = first_switches(fabric.topology)
    tier = int(np.searchsorted(first, node, side="right")) - 1
    return f"{fabric.topology.tiers[tier].name}-switch {node - first[tier]}"


def link_name(fabric: Fabric, link: int) -> str:
    """The two ends of a directed link, such as ``3>7`` or ``3>x-switch 0``."""
    source, target = int(fabric.source[link]), int(fabric.target[link])
    return f"{node_name(fabric, source)}>{node_name(fabric, target)}"


def find_links(fabric: Fabric, text: str) -> I64:
    """The directed links that a text names: all that join the two, of whichever tier.

    Returns:
        int64[...], ids, at least one.

    Raises:
        FabricError: not the name of a link, or the fabric has no such link (those near it are named).
    """
    match = _LINK.fullmatch(text)
    if match is None:
        raise FabricError(f"link {text!r}: {_EXPECTED}")
    one, other = _node(fabric, text, match[1]), _node(fabric, text, match[3])
    is_meant = (fabric.source == one) & (fabric.target == other)
    if match[2] == "-":
        is_meant |= (fabric.source == other) & (fabric.target == one)
    links = np.flatnonzero(is_meant)
    if not len(links):
        raise FabricError(f"link {text!r}: nothing joins the two; {_joined(fabric, one)}")
    return links


def _node(fabric: Fabric, text: str, name: str) -> int:
    if name.isdigit():
        if int(name) >= fabric.chips:
            raise FabricError(f"link {text!r}: chips are 0..{fabric.chips - 1}")
        return int(name)
    tier_name, _, number = name.rpartition("-switch ")
    first = first_switches(fabric.topology)
    for index, tier in enumerate(fabric.topology.tiers):
        if tier.name == tier_name and first[index] + int(number) < first[index + 1]:
            return first[index] + int(number)
    known = [
        f"{tier.name}-switch 0..{first[index + 1] - first[index] - 1}"
        for index, tier in enumerate(fabric.topology.tiers)
        if first[index + 1] > first[index]
    ]
    raise FabricError(
        f"link {text!r}: no {name!r}; switches are {', '.join(known) if known else 'none'}"
    )


def _joined(fabric: Fabric, node: int) -> str:
    """What a node has links to, in words."""
    near = np.unique(fabric.target[fabric.source == node])
    names = ", ".join(node_name(fabric, int(other)) for other in near[:MAX_NAMED])
    more = f" and {len(near) - MAX_NAMED} more" if len(near) > MAX_NAMED else ""
    return f"{node_name(fabric, node)} has links to {names or 'nothing'}{more}"

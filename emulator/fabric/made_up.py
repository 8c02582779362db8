"""What topology does a text such as ``torus:4x4x4`` or ``switch:16,ring:4`` mean? For fabrics that no machine has."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from trnprof.emulator.fabric.topology import KINDS, RING, Tier, Topology
from trnprof.emulator.fabric.topology_check import MAX_COORDINATES, check_topology
from trnprof.tracer.errors import FabricError

TORUS: Final = "torus"
NAMES: Final = "xyzwvuts"
"""Of the dimensions, at most MAX_COORDINATES."""
_EXPECTED: Final = (
    "expected ring:16, torus:4x4x4, switch:64, mesh:16, or several with commas, the fastest first"
)
_PART: Final = re.compile(r"\s*([a-z]+)\s*:\s*(\d{1,9}(?:x\d{1,9})*)\s*", re.ASCII)


def made_up_topology(
    spec: str, bandwidths: Sequence[float], latencies: Sequence[float]
) -> Topology:
    """One coordinate a dimension, each with a tier of its own (``x``, ``y``, …); ``torus:4x4`` is ``ring:4,ring:4``.

    Args:
        spec: kinds and sizes, the fastest dimension first.
        bandwidths: bytes/s of a link in one direction, one for all or one a dimension.
        latencies: ps of a link, likewise; a way through a switch has two links.

    Raises:
        FabricError: not such a text, lists of another length, zero bandwidth, negative latency, or too many chips.
    """
    dimensions = _dimensions(spec)
    rates = _one_a_dimension("bandwidth", spec, bandwidths, len(dimensions))
    waits = _one_a_dimension("latency", spec, latencies, len(dimensions))
    for rate in rates:
        if not (math.isfinite(rate) and rate > 0):
            raise FabricError(f"bandwidth of {rate:g} B/s: expected more than 0")
    for wait in waits:
        if not wait >= 0:
            raise FabricError(f"latency of {wait / 1000:g} ns: expected 0 or more")
    tiers = tuple(
        Tier(name, kind, (name,), float(rate), wait / 1000)
        for name, (kind, _), rate, wait in zip(NAMES, dimensions, rates, waits, strict=False)
    )
    topology = Topology(
        tuple(NAMES[: len(dimensions)]), tuple(size for _, size in dimensions), tiers
    )
    check_topology(topology)
    return topology


def _dimensions(spec: str) -> list[tuple[str, int]]:
    """Kind and size of each dimension."""
    dimensions: list[tuple[str, int]] = []
    for part in spec.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise FabricError(f"topology {spec!r}: {part.strip()!r} is none; {_EXPECTED}")
        kind, sizes = match[1], [int(size) for size in match[2].split("x")]
        if kind not in (*KINDS, TORUS):
            raise FabricError(f"topology {spec!r}: unknown kind {kind!r}; {_EXPECTED}")
        if kind != TORUS and len(sizes) > 1:
            raise FabricError(
                f"topology {spec!r}: a {kind} has one size; for more write "
                + ",".join(f"{kind}:{size}" for size in sizes)
            )
        for size in sizes:
            if size < 2:
                raise FabricError(f"topology {spec!r}: size {size}, expected 2 or more chips")
        dimensions += [(RING if kind == TORUS else kind, size) for size in sizes]
    if len(dimensions) > MAX_COORDINATES:
        raise FabricError(
            f"topology {spec!r}: {len(dimensions)} dimensions, at most {MAX_COORDINATES}"
        )
    return dimensions


def _one_a_dimension(
    what: str, spec: str, values: Sequence[float], dimensions: int
) -> Sequence[float]:
    if len(values) == 1:
        return list(values) * dimensions
    if len(values) != dimensions:
        raise FabricError(
            f"topology {spec!r} has {dimensions} dimension{'s' * (dimensions != 1)}, but {what} has "
            f"{len(values)} values: give one for all, or one each"
        )
    return values

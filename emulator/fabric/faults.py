"""What is left of a fabric when links fail or slow down, or a chip does?"""

from __future__ import annotations

from dataclasses import replace

from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.names import find_links
from trnprof.tracer.errors import FabricError


def degrade_link(fabric: Fabric, link: str, factor: float) -> Fabric:
    """A fabric with a link (``3-7`` both directions, ``3>7`` one) of this fraction of its bandwidth.

    Raises:
        FabricError: no such link, or a factor that is not in 0 < factor <= 1.
    """
    _check_factor(f"link {link!r}", factor)
    bytes_per_s = fabric.bytes_per_s.copy()
    bytes_per_s[find_links(fabric, link)] *= factor
    return replace(fabric, bytes_per_s=bytes_per_s)


def fail_link(fabric: Fabric, link: str) -> Fabric:
    """A fabric without a link (``3-7`` both directions, ``3>7`` one): routes go round it.

    Raises:
        FabricError: no such link.
    """
    is_failed = fabric.is_failed.copy()
    is_failed[find_links(fabric, link)] = True
    return replace(fabric, is_failed=is_failed)


def slow_chip(fabric: Fabric, chip: int, factor: float) -> Fabric:
    """A fabric in which all links from and to a chip have this fraction of their bandwidth.

    Raises:
        FabricError: no such chip, or a factor that is not in 0 < factor <= 1.
    """
    if not 0 <= chip < fabric.chips:
        raise FabricError(f"chip {chip} is out of range; chips are 0..{fabric.chips - 1}")
    _check_factor(f"chip {chip}", factor)
    is_its = (fabric.source == chip) | (fabric.target == chip)
    bytes_per_s = fabric.bytes_per_s.copy()
    bytes_per_s[is_its] *= factor
    return replace(fabric, bytes_per_s=bytes_per_s)


def _check_factor(what: str, factor: float) -> None:
    if not 0 < factor <= 1:
        raise FabricError(
            f"{what}: factor {factor:g}, expected more than 0 and at most 1 (1 leaves it as it is)"
        )

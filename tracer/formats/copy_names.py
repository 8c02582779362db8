"""From which memory to which does a copy go, by the name that a profiler gives it?"""

from __future__ import annotations

import re
from typing import Final

from trnprof.tracer.schema import MEMORIES

Memories = tuple[str | None, str | None]
"""Source and target memory, None where unknown."""

_PLACES: Final = {
    "pageable": "host",
    "pinned": "host",
    "host": "host",
    "h": "host",
    "device": "hbm",
    "device static": "hbm",
    "array": "hbm",
    "d": "hbm",
    "a": "hbm",
    "peer": "remote",
    "p": "remote",
}
_DIRECTION: Final = re.compile(
    r"(?<![A-Z])([HDAP])to([HDAP])(?![a-z])"  # Memcpy HtoD
    r"|(?i:(host|device|peer)_?to_?(host|device|peer))"  # CopyHostToDevice, MEMORY_COPY_HOST_TO_DEVICE
    r"|\((.+?) ?-> ?(.+?)\)"  # Memcpy (Pageable -> Device)
)


def memories_of_copy(name: str) -> Memories:
    """Source and target memory of a copy of this name, as seen by the device that it is shown on.

    >>> memories_of_copy("Memcpy HtoD (Pageable -> Device)"), memories_of_copy("Memcpy PtoP (Device -> Device)")
    (('host', 'hbm'), ('hbm', 'remote'))
    >>> memories_of_copy("MEMORY_COPY_DEVICE_TO_HOST"), memories_of_copy("Memcpy (Unknown -> Device)")
    (('hbm', 'host'), (None, 'hbm'))
    >>> memories_of_copy("hipMemcpyDefault")
    (None, None)
    """
    found = _DIRECTION.search(name)
    if found is None:
        return None, None
    source, target = (_PLACES.get(word.lower()) for word in found.groups() if word is not None)
    return ("hbm" if source == target == "remote" else source), target


def memory_codes_of_copy(name: str) -> tuple[int, int]:
    """The same as places in ``schema.MEMORIES``, -1 where unknown.

    >>> memory_codes_of_copy("CopyDeviceToHost") == (MEMORIES.index("hbm"), MEMORIES.index("host"))
    True
    """
    source, target = memories_of_copy(name)
    return _code(source), _code(target)


def _code(memory: str | None) -> int:
    return -1 if memory is None else MEMORIES.index(memory)

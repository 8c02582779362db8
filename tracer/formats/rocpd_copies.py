"""Between which memories did a copy move data, by the names that AMD's tools give it?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from trnprof.tracer.formats.rocpd_state import Gpu

Memories = tuple[str | None, str | None]
"""Source and target memory, None where unknown."""
_DIRECTION: Final = re.compile(
    r"(host|device|peer|[HDP])_?to_?(host|device|peer|[HDP])\b", re.IGNORECASE
)
_PLACES: Final = {"h": "host", "d": "hbm", "p": "remote"}


def named_memories(name: str) -> Memories:
    """Memories of a copy by its name.

    >>> named_memories("MEMORY_COPY_HOST_TO_DEVICE"), named_memories("CopyDeviceToDevice"), named_memories("DtoH")
    (('host', 'hbm'), ('hbm', 'hbm'), ('hbm', 'host'))
    >>> named_memories("hipMemcpyDefault")
    (None, None)
    """
    found = _DIRECTION.search(name)
    if found is None:
        return None, None
    return _PLACES[found[1][0].lower()], _PLACES[found[2][0].lower()]


def agent_memories(
    agents: Mapping[int, Gpu | None], source: int, target: int, name: str
) -> Memories:
    """Memories of a copy by its agents, as the GPU sees it that it is shown on; by its name where an agent is not known."""
    by_name = named_memories(name)
    if source not in agents or target not in agents:
        return by_name
    ends = tuple("host" if agents[a] is None else "hbm" for a in (source, target))
    return ("hbm", "remote") if ends == ("hbm", "hbm") and source != target else (ends[0], ends[1])

"""Between which memories did a copy move data, by the agents that an AMD database says of it?"""

from __future__ import annotations

from collections.abc import Mapping

from trnprof.tracer.formats.copy_names import Memories, memories_of_copy
from trnprof.tracer.formats.rocpd.state import Gpu


def agent_memories(
    agents: Mapping[int, Gpu | None], source: int, target: int, name: str
) -> Memories:
    """Memories of a copy by its agents, as the GPU sees it that it is shown on; by its name where an agent is not known."""
    by_name = memories_of_copy(name)
    if source not in agents or target not in agents:
        return by_name
    ends = tuple("host" if agents[a] is None else "hbm" for a in (source, target))
    return ("hbm", "remote") if ends == ("hbm", "hbm") and source != target else (ends[0], ends[1])

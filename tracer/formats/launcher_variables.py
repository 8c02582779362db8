"""Which rank of how many is a process, and on which node, by the environment variables that launchers set?

Those of torchrun, Open MPI, PMI, PMIx and Slurm; where several are set, the first one of a list counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_RANK: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_WORLD_SIZE: Final = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_NODE: Final = ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID")
_NUMBER: Final = re.compile(r"[0-9]{1,7}")


def stated_rank(variables: Mapping[str, Any]) -> int | None:
    """The rank of a process in its job, None if no variable says it.

    >>> stated_rank({"SLURM_PROCID": "12", "RANK": "3"}), stated_rank({"RANK": "first"})
    (3, None)
    """
    return _first_number(variables, _RANK)


def stated_world_size(variables: Mapping[str, Any]) -> int | None:
    """How many ranks the job has, None if no variable says it."""
    return _first_number(variables, _WORLD_SIZE)


def stated_node(variables: Mapping[str, Any]) -> int | None:
    """The ordinal of the node in the job, None if no variable says it."""
    return _first_number(variables, _NODE)


def _first_number(variables: Mapping[str, Any], names: Sequence[str]) -> int | None:
    values = (str(variables.get(name, "")) for name in names)
    return next((int(value) for value in values if _NUMBER.fullmatch(value)), None)

"""By which names are kernels of collectives known, where the profile itself does not say what they are?

Further names are taken from the environment: ``TRNPROF_COLLECTIVE_KERNELS='my_allgather|fused_moe_dispatch'``, a regular expression.
"""

from __future__ import annotations

import os
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from trnprof.tracer.errors import ProfileError

COLLECTIVE_KERNELS: Final = (
    r"(?i)\b(nccl|rccl|hccl|msccl|oneccl)\w*Kernel|ncclDevKernel|ncclKernel|mscclKernel|ncclSymk"
    r"|deep_ep|\b(inter|intra)node(_ll)?::|cross_device_reduce|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|nvshmem|rocshmem"
)
GENERATED_KERNELS: Final = r"^triton_(poi|per|red|tem|for)_fused_"
"""Kernels that a compiler made and named after the operators around: no collectives, whatever their names hold."""
VARIABLE: Final = "TRNPROF_COLLECTIVE_KERNELS"


def collective_kernels() -> str:
    """Regular expression of kernels of collectives, with the names that the user adds.

    Raises:
        ProfileError: what the user adds is no regular expression.
    """
    added = os.environ.get(VARIABLE, "").strip()
    if not added:
        return COLLECTIVE_KERNELS
    try:
        pc.match_substring_regex(pa.array([""]), added)
    except pa.ArrowInvalid as error:
        raise ProfileError(f"{VARIABLE}={added!r} is no regular expression: {error}") from error
    return f"{COLLECTIVE_KERNELS}|{added}"


def is_collective_kernel(names: pa.StringArray, pattern: str) -> pa.BooleanArray:
    """Which names are of kernels of collectives; null where there is no name.

    Args:
        names: of kernels.
        pattern: what ``collective_kernels`` gave.
    """
    generated = pc.match_substring_regex(names, GENERATED_KERNELS)
    return pc.and_not(pc.match_substring_regex(names, pattern), generated)

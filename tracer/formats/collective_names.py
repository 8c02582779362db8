"""By which names are kernels of collectives known, where the profile itself does not say what they are?"""

from __future__ import annotations

from typing import Final

COLLECTIVE_KERNELS: Final = (
    r"(?i)\b(nccl|rccl|hccl|msccl|oneccl)\w*Kernel|ncclDevKernel|ncclKernel|mscclKernel|ncclSymk"
    r"|deep_ep|cross_device_reduce|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|nvshmem|rocshmem"
)

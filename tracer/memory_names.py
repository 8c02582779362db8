"""What are an emulated rank's counters of memory called, and what is HBM used for?"""

from __future__ import annotations

from typing import Final

HBM_BYTES: Final = "HBM bytes"
"""What lies in the HBM of a rank, all together."""
SBUF_BYTES: Final = "SBUF bytes"
"""What a core keeps in SBUF from one kernel to the next."""

PARAMETERS: Final = "parameters"
GRADIENTS: Final = "gradients"
OPTIMIZER_STATE: Final = "optimizer state"
ACTIVATIONS: Final = "activations"
COLLECTIVES: Final = "collectives' buffers"
WORKSPACE: Final = "workspace"
BUFFERS: Final = "buffers"
INPUTS: Final = "inputs"

HBM_USES: Final = (
    PARAMETERS,
    GRADIENTS,
    OPTIMIZER_STATE,
    ACTIVATIONS,
    COLLECTIVES,
    WORKSPACE,
    BUFFERS,
    INPUTS,
)
"""What storages in HBM are for: each lies in one, so that their bytes sum to HBM_BYTES."""


def hbm_counter(use: str) -> str:
    """Name of the counter of one of HBM_USES."""
    return f"HBM {use}"

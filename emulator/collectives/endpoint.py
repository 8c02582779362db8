"""What does a message cost at the chips that send and receive it, beyond the links between them?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Endpoint:
    """Costs at a chip; rates of 0 mean that nothing is charged and no event is made.

    A message is posted by a CC-core of its sender (``post_ps`` of it, one message at a time, however it is cut), starts ``dma_start_ps`` later, is read from the
    sender's HBM, crosses the links, is written to the receiver's HBM (and reduced there: ``reduce_touches`` bytes of HBM traffic a byte instead of
    1), and is seen by the receiver ``dma_done_ps`` later.

    Attributes:
        start_ps: from the call of a collective to its first message.
        post_ps: a CC-core's time a message.
        dma_start_ps: from its end to the first byte.
        dma_done_ps: from the last byte to the semaphore's being seen.
        dma_bytes_per_s: all DMA engines that collectives use on a chip.
        hbm_bytes_per_s: of a chip.
        reduce_touches: HBM bytes a reduced byte: what arrives is added to what is there, so it is read and written (2), or more where the
            sum is a pass of its own.
    """

    start_ps: int = 0
    post_ps: int = 0
    dma_start_ps: int = 0
    dma_done_ps: int = 0
    dma_bytes_per_s: float = 0.0
    hbm_bytes_per_s: float = 0.0
    reduce_touches: float = 0.0

    @property
    def is_free(self) -> bool:
        """Whether chips pay nothing but latencies."""
        return not (self.post_ps or self.dma_bytes_per_s or self.hbm_bytes_per_s)


NO_COST: Final = Endpoint()
"""Of a made-up fabric: links are all there is."""

"""Which messages make up a collective? What every algorithm is lowered to, before routes and chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trnprof.emulator.fabric.fabric import I32, I64

ALL_REDUCE: Final = "all_reduce"
ALL_GATHER: Final = "all_gather"
REDUCE_SCATTER: Final = "reduce_scatter"
ALL_TO_ALL: Final = "all_to_all"
BROADCAST: Final = "broadcast"
PERMUTE: Final = "permute"
SEND_RECV: Final = "send_recv"
BARRIER: Final = "barrier"
COLLECTIVES: Final = (
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    BROADCAST,
    PERMUTE,
    SEND_RECV,
    BARRIER,
)

UNLIKE_RANKS: Final = (BROADCAST, SEND_RECV)
"""In which one rank has what the others get."""


@dataclass(frozen=True)
class Blocks:
    """What each message carries: segments ``first``, ``first + stride``, … (``count`` of them, modulo their number) of a part of the buffer.

    A part is cut into one segment a rank, or into a single one where whole buffers move (trees, broadcasts). Of an all_to_all, a message
    carries what its sender has for the owners of these segments.

    Attributes:
        part: int32[m], index into the parts.
        first: int32[m].
        stride: int32[m].
        count: int32[m].
        owners: by part, int32[segments], the position that a segment belongs to (whose it is after a reduce_scatter, and before
            an all_gather); empty where the part is one segment.
    """

    part: I32
    first: I32
    stride: I32
    count: I32
    owners: tuple[I32, ...]


@dataclass(frozen=True)
class Messages:
    """Structure of arrays over m messages, in the order in which their senders post them, and e dependencies.

    Attributes:
        source: int32[m], position of the sender in the group (not its chip).
        target: int32[m], position of the receiver.
        bytes: int64[m].
        step: int32[m], the algorithm's step, from 0.
        is_reduced: bool[m], whether the receiver adds what arrives to what it has.
        dependency_offsets: int64[m + 1], CSR offsets.
        dependencies: int64[e], earlier messages that must have arrived (and been reduced) before this one leaves.
        blocks: what each carries; None where each message is an end in itself (permute, send_recv, barrier, ragged ones).
        reads_hbm: bool[m], False for the second copy that a DMA engine writes of one read. None: all do.
        writes_hbm: bool[m], False for an operand that the receiver adds as it streams by, without storing it. None: all do.
        whole_target: of a folded group (see ``Group``) alone: int64[m], the receiver's number among the ranks of all instances, the sender being of
            the first one; ``target`` is then the rank of that one which does the same.
    """

    source: I32
    target: I32
    bytes: I64
    step: I32
    is_reduced: NDArray[np.bool_]
    dependency_offsets: I64
    dependencies: I64
    blocks: Blocks | None = None
    reads_hbm: NDArray[np.bool_] | None = None
    writes_hbm: NDArray[np.bool_] | None = None
    whole_target: I64 | None = None

    def __len__(self) -> int:
        return len(self.source)

    @property
    def steps(self) -> int:
        """How many steps the algorithm has."""
        return int(self.step.max(initial=-1)) + 1

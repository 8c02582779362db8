"""On which row of an AIU does an event lie, by the name that its runtime gives it?

The device works through a request in four phases: data in (TS1–TS2), preparation (TS2–TS3), computation (TS3–TS4), data out (TS4–TS5);
each is an event of its own, on a thread of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.formats.chrome.phases import Row


class AiuRow(IntEnum):
    """Rows beside those of threads."""

    COMPUTE = Row.FIRST_OF_DIALECT
    PREPARE = 9
    DMA_IN = 10
    DMA_OUT = 11
    RDMA_IN = 12
    RDMA_OUT = 13
    PROTOCOL = 14


@dataclass(frozen=True)
class RowKind:
    """What a row is.

    Attributes:
        name: of its track.
        kind: of its track; ``thread`` where the device is not occupied.
        category: of its events.
        source, target: memories that its events copy from and to; empty where they copy nothing.
    """

    name: str
    kind: str
    category: str
    source: str = ""
    target: str = ""


KINDS: Final = {
    AiuRow.COMPUTE: RowKind("compute", "engine", "compute"),
    AiuRow.PREPARE: RowKind("prepare", "thread", "sync"),
    AiuRow.DMA_IN: RowKind("DMA in", "dma_queue", "dma", "host", "hbm"),
    AiuRow.DMA_OUT: RowKind("DMA out", "dma_queue", "dma", "hbm", "host"),
    AiuRow.RDMA_IN: RowKind("RDMA in", "collective_stream", "collective", "remote", "hbm"),
    AiuRow.RDMA_OUT: RowKind("RDMA out", "collective_stream", "collective", "hbm", "remote"),
    AiuRow.PROTOCOL: RowKind("RDMA protocol", "thread", "sync"),
}
_PROTOCOL: Final = re.compile(
    r"Set BcList|Xseg to rank|Wait for|R5 (Wait|Send)|DLM Wait|Send (ACK )?Instruction|HCOLL Signal"
)
_REMOTE: Final = re.compile(r"\[sync=|Rdma|RDMA|HCOLL|Host DMA")


def row_of(names: Sequence[str]) -> NDArray[np.int8]:
    """Rows of names.

    >>> row_of(["add Cmpt Exec", "add Cmpt Prep", "x DmaI", "SenRdmaSend_1 [sync=a] DmaO", "Compute of add"]).tolist()
    [8, 9, 10, 13, 0]
    """
    return np.array([_row(name) for name in names], np.int8)


def _row(name: str) -> int:
    if name.endswith("Cmpt Exec"):
        return AiuRow.COMPUTE
    if name.endswith("Cmpt Prep"):
        return AiuRow.PREPARE
    if not name.endswith((" DmaI", " DmaO")):
        return Row.THREAD
    if _REMOTE.search(name):
        if _PROTOCOL.search(name):
            return AiuRow.PROTOCOL
        return AiuRow.RDMA_IN if name.endswith("I") else AiuRow.RDMA_OUT
    return AiuRow.DMA_IN if name.endswith("I") else AiuRow.DMA_OUT

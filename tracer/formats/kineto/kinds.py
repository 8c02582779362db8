"""What is each event of a PyTorch profile: by its category first, then by what its process is called, never by one argument?"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final


class Kind(IntEnum):
    """What an event is. Those up to LAST_RANGE have a duration, those up to LAST_EVENT become events."""

    CPU_OP = 0
    CALL = 1
    """A call of the runtime or driver, made on the host."""
    ANNOTATION = 2
    PYTHON = 3
    OVERHEAD = 4
    SPAN = 5
    """The profiler's own: what it recorded when."""
    OTHER = 6
    KERNEL = 7
    MEMCPY = 8
    MEMSET = 9
    SYNC = 10
    GPU_RANGE = 11
    """Drawn over the work of a GPU: no work of its own."""
    MEMORY = 12
    """An allocation."""
    INSTANT = 13
    UNTIMED = 14
    """Nobody knows when it was."""
    COUNTER = 15
    METADATA = 16
    FLOW_START = 17
    FLOW_END = 18
    BEGIN = 19
    END = 20
    NOTHING = 21
    """An event without content."""
    UNKNOWN = 22
    """A phase that PyTorch does not write."""


LAST_RANGE: Final = Kind.GPU_RANGE
LAST_EVENT: Final = Kind.UNTIMED
DEVICE_WORK: Final = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
CATEGORY: Final = {
    Kind.CPU_OP: "host",
    Kind.CALL: "host",
    Kind.ANNOTATION: "host",
    Kind.PYTHON: "host",
    Kind.OVERHEAD: "host",
    Kind.SPAN: "host",
    Kind.OTHER: "host",
    Kind.KERNEL: "compute",
    Kind.MEMCPY: "dma",
    Kind.MEMSET: "dma",
    Kind.SYNC: "sync",
    Kind.GPU_RANGE: "host",
    Kind.MEMORY: "memory",
    Kind.INSTANT: "marker",
    Kind.UNTIMED: "host",
}


class Row(IntEnum):
    """On which row of its process and thread (of its device and stream) an event lies."""

    THREAD = 0
    PYTHON = 1
    OVERHEAD = 2
    SPAN = 3
    STREAM = 4
    SYNC = 5
    GPU_RANGE = 6
    UNTIMED = 7


ROW: Final = {
    Kind.CPU_OP: Row.THREAD,
    Kind.CALL: Row.THREAD,
    Kind.ANNOTATION: Row.THREAD,
    Kind.OTHER: Row.THREAD,
    Kind.MEMORY: Row.THREAD,
    Kind.INSTANT: Row.THREAD,
    Kind.PYTHON: Row.PYTHON,
    Kind.OVERHEAD: Row.OVERHEAD,
    Kind.SPAN: Row.SPAN,
    Kind.KERNEL: Row.STREAM,
    Kind.MEMCPY: Row.STREAM,
    Kind.MEMSET: Row.STREAM,
    Kind.SYNC: Row.SYNC,
    Kind.GPU_RANGE: Row.GPU_RANGE,
    Kind.UNTIMED: Row.UNTIMED,
}

_CATEGORIES: Final = {
    "cpu_op": Kind.CPU_OP,
    "operator": Kind.CPU_OP,
    "cuda_runtime": Kind.CALL,
    "cuda_driver": Kind.CALL,
    "runtime": Kind.CALL,
    "hip_runtime": Kind.CALL,
    "hip_driver": Kind.CALL,
    "mtia_runtime": Kind.CALL,
    "xpu_runtime": Kind.CALL,
    "xpu_driver": Kind.CALL,
    "hpu_op": Kind.CALL,
    "glow_runtime": Kind.CALL,
    "privateuse1_runtime": Kind.CALL,
    "privateuse1_driver": Kind.CALL,
    "user_annotation": Kind.ANNOTATION,
    "python_function": Kind.PYTHON,
    "overhead": Kind.OVERHEAD,
    "trace": Kind.SPAN,
    "kernel": Kind.KERNEL,
    "mtia_ccp_events": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET,
    "cuda_sync": Kind.SYNC,
    "xpu_sync": Kind.SYNC,
    "cuda_event": Kind.SYNC,
    "gpu_user_annotation": Kind.GPU_RANGE,
    "cuda_profiler_range": Kind.GPU_RANGE,
    "collective_comm": Kind.GPU_RANGE,
    "mtia_insight": Kind.GPU_RANGE,
}
"""Category → kind of a range. Of Kineto (ActivityType), and of the first releases of the PyTorch profiler."""
_PHASES: Final = {
    "X": Kind.OTHER,
    "B": Kind.BEGIN,
    "E": Kind.END,
    "i": Kind.INSTANT,
    "I": Kind.INSTANT,
    "C": Kind.COUNTER,
    "M": Kind.METADATA,
    "s": Kind.FLOW_START,
    "t": Kind.FLOW_END,
    "f": Kind.FLOW_END,
}
MTIA_CATEGORY: Final = "mtia_ccp_events"
MTIA_NAMES: Final = {
    "dma_request": Kind.MEMCPY,
    "event_wait": Kind.SYNC,
    "event_wait_host": Kind.SYNC,
    "event_record": Kind.SYNC,
}
"""What the control processors of an MTIA do that is no kernel."""
_DEVICE: Final = re.compile(r"(?i)^\s*((GPU|NPU|HPU|XPU|MTIA|MUSA|MLU)\b|Ascend Hardware)")


def kind_of(phase: str | None, category: str | None) -> Kind:
    """What events of this phase and category are; of a beginning, see ``range_kind``."""
    if not phase:
        return Kind.NOTHING
    kind = _PHASES.get(phase, Kind.UNKNOWN)
    return range_kind(category) if kind == Kind.OTHER else kind


def range_kind(category: str | None) -> Kind:
    """What ranges of this category are.

    >>> range_kind("Kernel").name, range_kind("cuda_sync").name, range_kind(None).name
    ('KERNEL', 'SYNC', 'OTHER')
    """
    return _CATEGORIES.get((category or "").lower(), Kind.OTHER)


def is_device(process: str) -> bool:
    """Whether a process of this name or label is a device.

    >>> is_device("GPU 0"), is_device("python3 GPU"), is_device("Ascend Hardware")
    (True, False, True)
    """
    return _DEVICE.match(process) is not None

"""On which timeline of the trace does each line of an XSpace belong?

::

    host ▸ TPU 0 (chip) ▸ XLA Ops (engine), Async copies (dma_queue), Async collectives (collective_stream), XLA Modules … (module)
         ▸ GPU 0 (chip) ▸ Stream #7 (stream), what was derived from them (module)
         ▸ threads

Only what occupies a device lies on an engine, stream or queue: modules, name scopes and source lines are drawn over the
operations that they contain.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from trnprof.tracer.formats.xplane_file import Line, Plane, Value
from trnprof.tracer.formats.xplane_names import number_of
from trnprof.tracer.formats.xplane_proto import CORE_DETAILS
from trnprof.tracer.ingest.stage import Stage, Timeline

_DEVICE: Final = re.compile(r"/device:(?!CUSTOM:)([A-Za-z0-9_]+):(\d{1,6})(?: (.+))?")
_STREAM: Final = re.compile(r"^(?:GPU )?Stream\b", re.IGNORECASE)
_ENGINES: Final = ("XLA Ops", "Sparse Core Ops")
_STEPS: Final = ("Steps", "Sparse Core Steps")
_ASYNC: Final = "Async XLA Ops"
COUNTERS: Final = "_counters_"

ENGINE, STREAM, ASYNC, MODULE, THREAD, STEPS, COUNTER = range(7)
"""What a line is."""


@dataclass(frozen=True)
class Device:
    """A plane of a device.

    Attributes:
        type: such as ``TPU`` or ``GPU``.
        ordinal: its number on the host.
        part: further text of the plane's name, such as ``SparseCore 0``.
        rank: which of all devices of the job it is; None if it is the only one of its source.
    """

    type: str
    ordinal: int
    part: str
    rank: int | None


def devices(planes: Sequence[Plane]) -> list[Device | None]:
    """The device of each plane; None where it is none."""
    found = [_DEVICE.fullmatch(plane.name) for plane in planes]
    used = {(m[1], m[2]) for p, m in zip(planes, found, strict=True) if m and has_events(p)}
    return [
        None if m is None else Device(m[1], int(m[2]), m[3] or "", _rank(plane, m, len(used) > 1))
        for plane, m in zip(planes, found, strict=True)
    ]


def has_events(plane: Plane) -> bool:
    """Whether any of its lines has events."""
    return any(line.events for line in plane.lines)


def _rank(plane: Plane, match: re.Match[str], is_one_of_several: bool) -> int | None:
    if not is_one_of_several:
        return None
    details = plane.stats.get("core_details")
    if isinstance(details, bytes):
        try:
            core = CORE_DETAILS.FromString(details)
        except DecodeError:
            return int(match[2])
        if core.HasField("global_core_id") and 0 <= core.global_core_id < 2**31:
            return int(core.global_core_id)
    return int(match[2])


def line_role(line: Line, device: Device | None, plane: Plane) -> int:
    """What a line is."""
    if line.name == COUNTERS:
        return COUNTER
    if device is None:
        return THREAD if plane.name.startswith("/host:") or plane.name == "Host CPUs" else MODULE
    if line.name in _STEPS:
        return STEPS
    if line.name == _ASYNC:
        return ASYNC
    if _STREAM.match(line.name):
        return STREAM
    has_streams = any(_STREAM.match(each.name) for each in plane.lines)
    return ENGINE if line.name in _ENGINES and not has_streams else MODULE


def device_timeline(stage: Stage, device: Device, plane: Plane) -> int:
    """The timeline of a device, or of the part of it that a plane is of."""
    flops = number_of(plane.stats, "peak_teraflops_per_second")
    bandwidth = _bytes_per_s(plane.stats)
    chip = stage.timeline(
        ("chip", device.type, device.ordinal),
        Timeline(
            "chip",
            f"{device.type} {device.ordinal}",
            sort_order=device.ordinal,
            rank=device.rank,
            chip=device.ordinal,
            peak_flops=float(flops) * 1e12 if flops else None,
            peak_bytes_per_s=bandwidth,
        ),
    )
    if not device.part:
        return chip
    core = Timeline("core", device.part, chip, rank=device.rank, chip=device.ordinal)
    return stage.timeline(("part", device.type, device.ordinal, device.part), core)


def _bytes_per_s(stats: dict[str, Value]) -> float | None:
    gigabytes = number_of(stats, "peak_hbm_bw_gigabytes_per_second", "peak_bw_gigabytes_per_second")
    if gigabytes:
        return float(gigabytes) * 1e9
    plain = number_of(stats, "memory_bandwidth")
    return float(plain) if plain else None


def line_timeline(
    stage: Stage, plane: Plane, line: Line, role: int, device: Device | None, order: int
) -> int:
    """The timeline of a line; lines of one id and name in planes of one name share it."""
    kind, exclusive = {
        ENGINE: ("engine", False),
        STREAM: ("stream", True),
        ASYNC: ("dma_queue", False),
        THREAD: ("thread", False),
    }.get(role, ("module", False))
    name = line.display_name or line.name or f"line {line.id}"
    if role == ASYNC:
        name = "Async copies"
    parent = None if device is None else device_timeline(stage, device, plane)
    if device is None and role != THREAD:
        name = f"{plane.name} {name}"
    return stage.timeline(
        ("line", plane.name, line.id, line.name, role),
        Timeline(
            kind,
            name,
            parent,
            order,
            exclusive,
            rank=None if device is None else device.rank,
            chip=None if device is None else device.ordinal,
        ),
    )


def collective_timeline(stage: Stage, plane: Plane, line: Line, device: Device, order: int) -> int:
    """The timeline of asynchronous collectives of a device: they occupy links, not the copy engines."""
    return stage.timeline(
        ("collectives", plane.name, line.id),
        Timeline(
            "collective_stream",
            "Async collectives",
            device_timeline(stage, device, plane),
            order,
            rank=device.rank,
            chip=device.ordinal,
        ),
    )


def aggregate_timeline(stage: Stage, plane: Plane) -> int:
    """The timeline of events of a plane that only count occurrences: they occupy nothing."""
    return stage.timeline(
        ("aggregated", plane.name), Timeline("module", f"{plane.name} aggregated")
    )


def counter_timeline(
    stage: Stage, plane: Plane, device: Device | None, name: str, unit: str
) -> int:
    """The timeline of a counter of a plane."""
    parent = None if device is None else device_timeline(stage, device, plane)
    return stage.timeline(
        ("counter", plane.name, name),
        Timeline(
            "counter",
            name,
            parent,
            rank=None if device is None else device.rank,
            chip=None if device is None else device.ordinal,
            unit=unit,
        ),
    )

"""On which timeline of the trace does each line of an XSpace belong?

::

    host ▸ TPU 0 (chip) ▸ XLA Ops (engine), Async operations (dma_queue), Async collectives (collective_stream), XLA Modules, Control flow … (module)
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

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from trnprof.tracer.formats.xplane.file import Line, Plane, Value
from trnprof.tracer.formats.xplane.names import number_of
from trnprof.tracer.formats.xplane.proto import CORE_DETAILS
from trnprof.tracer.ingest.stage import Stage, Timeline

_DEVICE: Final = re.compile(r"/device:(?!CUSTOM:)([A-Za-z0-9_]+):(\d{1,6})(?: (.+))?")
_STREAM: Final = re.compile(r"^(?:GPU )?Stream\b", re.IGNORECASE)
_ENGINES: Final = ("XLA Ops", "Sparse Core Ops")
_STEPS: Final = ("Steps", "Sparse Core Steps")
MODULE_LINES: Final = ("XLA Modules", "Sparse Core Modules")
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
        None if m is None else Device(m[1], int(m[2]), _part(m[3]), _rank(plane, m, len(used) > 1))
        for plane, m in zip(planes, found, strict=True)
    ]


def _part(text: str | None) -> str:
    """What of a device a plane is of; its model in parentheses is no part."""
    return "" if text is None or text.startswith("(") else text


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
        name = "Async operations"
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


@dataclass(frozen=True)
class Spot:
    """Where the events of a line lie.

    Attributes:
        plane, line: in the file.
        device: None for the host.
        role: what the line is.
        order: of the line among its siblings.
    """

    plane: Plane
    line: Line
    device: Device | None
    role: int
    order: int

    @property
    def owner(self) -> int:
        """Set of steps that the line's events belong to."""
        return -1 if self.device is None else self.device.ordinal

    def timelines(
        self, stage: Stage, is_collective: NDArray[np.bool_], encloses: NDArray[np.bool_]
    ) -> NDArray[np.int32]:
        """The timeline of each of n events of the line.

        Args:
            stage: has the timelines.
            is_collective: asynchronous ones occupy links, not the copy engines.
            encloses: loops, branches and calls: what occupies the engine are the operations in them.
        """
        own = line_timeline(stage, self.plane, self.line, self.role, self.device, self.order)
        found = np.full(len(encloses), own, np.int32)
        if self.role == ENGINE and encloses.any():
            found[encloses] = self._beside(stage, "module", "Control flow")
        if self.role == ASYNC and is_collective.any():
            found[is_collective] = self._beside(stage, "collective_stream", "Async collectives")
        return found

    def _beside(self, stage: Stage, kind: str, name: str) -> int:
        if self.device is None:
            raise ValueError("a line of the host has nothing beside it")
        parent = device_timeline(stage, self.device, self.plane)
        rank, chip = self.device.rank, self.device.ordinal
        return stage.timeline(
            (name, self.plane.name, self.line.id),
            Timeline(kind, name, parent, self.order, rank=rank, chip=chip),
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

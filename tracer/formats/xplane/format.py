"""How is an XSpace (``.xplane.pb`` of XProf, JAX, TensorFlow, torch_xla) read?

See docs/formats/xprof.md. A file is read twice from disk, a line of a few MiB at a time (xplane_file.py, xplane_decode.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.files import writing
from trnprof.tracer.formats.protobuf_wire import WireFile
from trnprof.tracer.formats.xplane.block import Gathered, Place, stage_events
from trnprof.tracer.formats.xplane.decode import line_events
from trnprof.tracer.formats.xplane.file import Plane, Space, read_space
from trnprof.tracer.formats.xplane.metadata import Words, event_table
from trnprof.tracer.formats.xplane.places import Device, devices, has_events, line_role
from trnprof.tracer.ingest.source import Format, Head, Source
from trnprof.tracer.ingest.stage import Facts, Stage

_REPLACED: Final = b"\xef\xbf\xbd"
_PLANE: Final = re.compile(rb"/device:|/host:|#Chip|Task Environment|/virtualdevice:|Host CPUs")
_ABSOLUTE_NS: Final = 10**17
"""Times beyond this count from 1970, not from the start of the profile."""
_FACTS: Final = ("Task Environment", "/host:metadata")
_MAX_MESSAGE: Final = 300


def recognise(head: Head) -> int:
    """Whether a source begins as an XSpace does, or is named like one."""
    is_named = head.name.endswith(".xplane.pb") or head.name == "xplane.pb"
    if head.data[:1] == b"\x0a" and _first_plane(head.data):
        return 95
    return 85 if is_named and (not head.data or head.data[:1] in b"\x0a\x12\x1a\x22") else 0


def _first_plane(data: bytes) -> bool:
    """Whether the first message is a plane: an id, and a name that planes have."""
    length = re.match(rb"\x0a[\x80-\xff]{0,9}[\x00-\x7f]", data)
    if length is None:
        return False
    body = data[length.end() : length.end() + 100]
    after_id = re.match(rb"(?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?\x12[\x00-\x7f]", body)
    return after_id is not None and _PLANE.match(body, after_id.end()) is not None


def read(source: Source, stage: Stage) -> None:
    """Read an XSpace into a stage.

    Raises:
        ProfileError: it holds no plane that can be read.
    """
    with _on_disk(source, stage) as path, path.open("rb") as opened:
        file = WireFile(opened.fileno())
        _refuse_text(file, source.label)
        space = read_space(file, stage.audit, source.label)
        if not any(p.name or p.lines for p in space.planes) and not space.hostnames:
            raise ProfileError(
                f"{source.label}: no plane of an XSpace in its {file.size:,} bytes, from byte 0 on; is it a file that jax.profiler or XProf wrote?"
            )
        _read_planes(source.label, stage, file, space)


FORMAT: Final = Format(
    "xplane", "XSpace (.xplane.pb) of XProf, JAX, TensorFlow and torch_xla", recognise, read
)


@contextmanager
def _on_disk(source: Source, stage: Stage) -> Iterator[Path]:
    """The decompressed file; of one that is cut, what there is of it."""
    path = stage.directory / "decompressed"
    is_open = False
    try:
        with source.on_disk() as whole:
            is_open = True
            yield whole
            return
    except ProfileError:
        if is_open:
            raise
    stream = source.open()
    try:
        with writing(path), path.open("wb") as file:
            while data := stream.read(1 << 20):
                file.write(data)
        yield path
    finally:
        stream.close()
        path.unlink(missing_ok=True)


def _refuse_text(file: WireFile, label: str) -> None:
    """Binary data that went through a text converter cannot be mended."""
    start = file.read(0, min(file.size, 1 << 16))
    at = start.find(_REPLACED)
    if 0 <= at < 4096 and start.count(_REPLACED) > 8:
        raise ProfileError(
            f"{label}: its bytes were rewritten as text (U+FFFD at byte {at}), so the binary profile in it is lost; "
            "copy the original file again, as binary"
        )


def _read_planes(label: str, stage: Stage, file: WireFile, space: Space) -> None:
    gathered = Gathered()
    places = list(zip(space.planes, devices(space.planes), strict=True))
    _facts(stage.facts, space, places)
    for plane, device in places:
        if has_events(plane):
            gathered.unnamed[plane.name] += (
                0 if plane.metadata else sum(line.events for line in plane.lines)
            )
            _read_plane(stage, file, gathered, plane, device)
    if gathered.operations.numbers:
        stage.add_ops(gathered.operations.rows)
    edges = gathered.links.edges(stage)
    if len(edges[0]):
        stage.add_flows(*edges, "launch")
    owners = np.full(max(len(stage.timelines), 1), -2, np.int64)
    for timeline, owner in gathered.owner_of_timeline.items():
        owners[timeline] = owner
    gathered.steps.finish(stage, owners, edges)
    _findings(stage, label, space, gathered)


def _read_plane(
    stage: Stage, file: WireFile, gathered: Gathered, plane: Plane, device: Device | None
) -> None:
    """Stage the events of a plane."""
    table = event_table(plane, gathered.operations, is_device=device is not None)
    words = Words(plane.words)
    for order, line in enumerate(plane.lines):
        place = Place(plane, line, device, line_role(line, device, plane), order, table, words)
        for events in line_events(file, line):
            stage_events(stage, gathered, place, events)


def _facts(facts: Facts, space: Space, places: list[tuple[Plane, Device | None]]) -> None:
    facts.host = next((h for h in space.hostnames if h), "")
    environment: dict[str, Any] = {}
    for plane in space.planes:
        if plane.name in _FACTS:
            environment |= {k: v for k, v in plane.stats.items() if not isinstance(v, bytes)}
    start = environment.get("profile_start_time")
    times = [line.timestamp_ns for p in space.planes for line in p.lines if line.events]
    if times and min(times) >= _ABSOLUTE_NS:
        facts.base_unix_ns = 0
    elif isinstance(start, int) and _ABSOLUTE_NS <= start < 2**63:
        facts.base_unix_ns = start
    if environment:
        facts.metadata["environment"] = environment
    for plane, device in places:
        chip = {k: v for k, v in plane.stats.items() if not isinstance(v, bytes)}
        if device is not None and not device.part and chip:
            name = chip.get("device_type_string") or chip.get("device_vendor") or device.type
            facts.system = {"name": str(name), "chip": chip}
            break


def _findings(stage: Stage, label: str, space: Space, gathered: Gathered) -> None:
    add = stage.audit.add
    for severity, texts in (("error", space.errors), ("warning", space.warnings)):
        for text in texts:
            said = text[:_MAX_MESSAGE]
            message = "the profiler itself reported what the example says"
            add(
                f"profiler_{severity}",
                severity,
                label,
                message,
                unreliable="what it names",
                example=said,
            )
    for kind, severity, places, message, unreliable in (
        ("malformed_events", "error", gathered.damaged,
         "events that are no protobuf, or larger than 4 MiB, were left out", "totals"),
        ("aggregated_events", "note", gathered.aggregated,
         "events that only count occurrences have no start; they lie on a track of their own", ""),
        ("names_missing", "error", gathered.unnamed,
         "the metadata of planes are missing, which stand behind their events: these are named by number", "names and categories"),
    ):  # fmt: skip
        count = sum(places.values())
        example = next((place for place, each in places.items() if each), "")
        add(kind, severity, label, message, unreliable=unreliable, count=count, example=example)

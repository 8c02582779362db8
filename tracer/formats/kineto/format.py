"""What does a profile of PyTorch (Kineto) say? The Chrome JSON of ``export_chrome_trace`` and ``tensorboard_trace_handler``."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.errors import ProfileError
from trnprof.tracer.formats.kineto.blocks import FIELDS, Reader, ready, stage_events
from trnprof.tracer.formats.kineto.collectives import KernelNames
from trnprof.tracer.formats.kineto.counters import Counters
from trnprof.tracer.formats.kineto.finish import finish
from trnprof.tracer.formats.kineto.kinds import LAST_EVENT, Kind
from trnprof.tracer.formats.kineto.messages import Messages
from trnprof.tracer.formats.kineto.ops import OpSpool
from trnprof.tracer.formats.kineto.places import Places
from trnprof.tracer.formats.kineto.state import State, codes_of
from trnprof.tracer.formats.trace_json.scan import EventBlock, Scan
from trnprof.tracer.ingest.source import Format, Head, Source
from trnprof.tracer.ingest.stage import Stage

_MARKS: Final = (
    b'"deviceProperties"',
    b'"distributedInfo"',
    b'"baseTimeNanoseconds"',
    b'"External id"',
    b'"ProfilerStep#',
    b'"Ev Idx"',
    b'"ac2g"',
    b'"cpu_op"',
    b'"cuda_runtime"',
    b'"python_function"',
    b'"user_annotation"',
    b'"gpu_memcpy"',
    b'"gpu_user_annotation"',
    b'"record_shapes"',
    b'"PyTorch Profiler',
)
"""What PyTorch's profiler writes and others do not."""
_DEVICE_WORK: Final = re.compile(rb'"cat"\s*:\s*"(?:kernel|gpu_memcpy|gpu_memset)"')
_ON_A_STREAM: Final = (b'"device"', b'"stream"')
_SURE: Final = 2


def recognise(head: Head) -> int:
    """By names of members and categories that only PyTorch's profiler writes, or by kernels on streams, which filters may leave of them."""
    data = head.data
    if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"["):
        return 0
    marks = sum(mark in data for mark in _MARKS)
    marks += bool(_DEVICE_WORK.search(data)) and all(word in data for word in _ON_A_STREAM)
    has_events = b'"traceEvents"' in data or b'"ph"' in data
    if not marks or not (has_events or b'"schemaVersion"' in data):
        return 0
    return 85 if marks >= _SURE else 60


def read(source: Source, stage: Stage) -> None:
    """Read a profile of PyTorch.

    Raises:
        ProfileError: it is empty, no JSON, or has no events.
    """
    state = State(stage, source.label)
    places = Places(stage)
    reader = Reader(
        state, places, Messages(), KernelNames(), OpSpool(stage), Counters(stage, places)
    )
    stream = source.open()
    try:
        scan = Scan(stream, FIELDS, stage.audit, source.label)
        for block in scan:
            _take(reader, block)
    finally:
        stream.close()
    if not scan.has_events:
        raise ProfileError(
            f"{source.label}: has no member traceEvents: this is no profile of PyTorch"
        )
    finish(reader, scan.header)
    if not stage.rows:
        stage.audit.add(
            "no_events",
            "warning",
            source.label,
            "the profile has no events: was anything run between its start and stop?",
            unreliable="everything",
        )


def _take(reader: Reader, block: EventBlock) -> None:
    """Stage the events of a block, and remember the others."""
    block.settle_origin()
    kind, of_range = reader.kinds(block)
    counts = np.bincount(kind, minlength=len(Kind))
    if counts[Kind.METADATA]:
        reader.places.read_names(block.take(kind == Kind.METADATA))
    if counts[Kind.COUNTER]:
        reader.counters.add(block.take(kind == Kind.COUNTER))
    if counts[Kind.FLOW_START] or counts[Kind.FLOW_END]:
        _take_flows(reader, block, kind)
    if counts[Kind.END]:
        _take_ends(reader, block.take(kind == Kind.END))
    is_begin = kind == Kind.BEGIN
    kind = np.where(is_begin, of_range, kind)
    chosen = np.flatnonzero(kind <= LAST_EVENT)
    if len(chosen):
        own = block if len(chosen) == block.rows else block.take(chosen)
        first = reader.state.stage.rows
        stage_events(reader, ready(reader, own, kind[chosen]))
        if counts[Kind.BEGIN]:
            begins = np.flatnonzero(is_begin[chosen])
            _take_begins(reader, own.take(begins), begins + first)


def _take_flows(reader: Reader, block: EventBlock, kind: NDArray[np.int8]) -> None:
    state = reader.state
    is_start = kind == Kind.FLOW_START
    is_flow = is_start | (kind == Kind.FLOW_END)
    own = block.take(is_flow)
    ids, has_id = own.integers("id")
    start, _, has_ts, _ = own.times_ns()
    usable = np.flatnonzero(has_id & has_ts)
    categories = own.texts("cat")
    known = codes_of(
        [word or "" for word in categories.dictionary.to_pylist()], state.flow_categories
    )
    codes = np.append(known, 0)[categories.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
    state.flows.add(
        len(usable),
        id=ids[usable],
        place=reader.places.places(own)[usable],
        ts=start[usable],
        category=codes[usable],
        starts=is_start[is_flow][usable],
    )


def _take_begins(reader: Reader, block: EventBlock, rows: NDArray[np.int64]) -> None:
    start, _, _, _ = block.times_ns()
    reader.state.halves.add(len(rows), row=rows, place=reader.places.places(block), ts=start)


def _take_ends(reader: Reader, block: EventBlock) -> None:
    start, _, has_ts, _ = block.times_ns()
    usable = np.flatnonzero(has_ts)
    place = reader.places.places(block)[usable]
    reader.state.halves.add(len(usable), row=np.int64(-1), place=place, ts=start[usable])


FORMAT = Format("kineto", "PyTorch profiler (Kineto)", recognise, read)

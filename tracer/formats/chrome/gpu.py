"""What do the processes of a trace that are GPUs run? For rocprof's JSON, and others that name a process ``GPU 0``."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trnprof.tracer.formats.chrome.phases import Row
from trnprof.tracer.formats.chrome.places import Places, Track, sort_place
from trnprof.tracer.formats.collective_names import is_collective_kernel
from trnprof.tracer.formats.copy_names import memory_codes_of_copy
from trnprof.tracer.ingest.stage import Stage, Timeline
from trnprof.tracer.schema import CATEGORIES, MEMORIES

_CHIPS_AFTER: Final = 1 << 20
_COPY: Final = r"(?i)^(mem(cpy|set)|copy|fill|hipmemcpy|async-copy)"
COMPUTE, DMA, COLLECTIVE, SYNC, HOST, MARKER = (
    CATEGORIES.index(c) for c in ("compute", "dma", "collective", "sync", "host", "marker")
)


def device_timelines(
    stage: Stage, places: Places
) -> tuple[dict[int, Timeline], dict[str | None, int]]:
    """Chips for the processes that are GPUs, and what their threads are.

    Returns:
        (definition of each timeline on a device, process → timeline of its chip).
    """
    devices = {t.process: places.device_of(t.process) for t in places.tracks}
    chips: dict[str | None, int] = {}
    for process, device in devices.items():
        if device is not None and device >= 0:
            chips[process] = stage.timeline(
                ("chip", process),
                Timeline("chip", f"GPU {device}", sort_order=_CHIPS_AFTER + device, chip=device),
            )
    own: dict[int, Timeline] = {}
    for track in places.tracks:
        device = devices[track.process]
        if device is None or track.row not in (Row.THREAD, Row.WAIT):
            continue
        if device >= 0:
            own[track.timeline] = _stream(places, track, chips[track.process], device)
        else:
            alone = next(iter(chips.values())) if len(chips) == 1 else None
            chip = stage.timelines[alone].chip if alone is not None else None
            own[track.timeline] = Timeline(
                "dma_queue", f"copies {track.thread or ''}".strip(), alone, 1 << 16, chip=chip
            )
    return own, chips


def give_meaning(
    stage: Stage,
    own: dict[int, Timeline],
    is_marker: NDArray[np.bool_],
    name_codes: NDArray[np.int32],
    names: list[str],
) -> None:
    """Set category and memories of events on devices, as late columns.

    Args:
        stage: with all events, of category host or marker.
        own: timelines on devices.
        is_marker: rows that are instants.
        name_codes: of each row.
        names: by code.
    """
    timeline = stage.times("timeline")
    kinds = np.array([own[n].kind if n in own else "" for n in range(len(stage.timelines))])[
        timeline
    ]
    words = pa.array(names, pa.string())
    on_device = (kinds != "") & ~is_marker
    copies = pc.match_substring_regex(words, _COPY).to_numpy(zero_copy_only=False)
    is_copy = on_device & (copies[name_codes] | (kinds == "dma_queue"))
    collectives = is_collective_kernel(words)
    is_collective = on_device & collectives[name_codes]
    category = np.where(is_marker, MARKER, HOST).astype(np.int8)
    category[on_device] = COMPUTE
    category[is_collective] = COLLECTIVE
    category[is_copy] = DMA
    category[on_device & (kinds == "thread")] = SYNC
    stage.set_late(
        "category", pa.DictionaryArray.from_arrays(pa.array(category), pa.array(list(CATEGORIES)))
    )
    for column, codes in memory_columns(is_copy, name_codes, names).items():
        stage.set_late(column, codes)


def memory_columns(
    is_copy: NDArray[np.bool_], name_codes: NDArray[np.int32], names: list[str]
) -> dict[str, pa.DictionaryArray]:
    """Where copies come from and go to, by their names."""
    ends = np.array([memory_codes_of_copy(name) for name in names] or [(-1, -1)], np.int8)
    columns = {}
    for side, column in enumerate(("source_memory", "target_memory")):
        codes = ends[name_codes, side]
        codes[~is_copy] = -1
        columns[column] = pa.DictionaryArray.from_arrays(
            pa.array(np.maximum(codes, 0), mask=codes < 0), pa.array(list(MEMORIES))
        )
    return columns


def _stream(places: Places, track: Track, chip: int, device: int) -> Timeline:
    thread = track.thread or "0"
    name = places.names.get(("thread_name", track.process, track.thread), "")
    if not name:
        name = f"stream {thread}"
    is_wait = track.row == Row.WAIT
    number = int(thread) if thread.isdecimal() and len(thread) < 9 else 0
    return Timeline(
        "thread" if is_wait else "stream",
        f"{name} (barriers)" if is_wait else name,
        chip,
        sort_place(2 * number + is_wait),
        exclusive=not is_wait,
        chip=device,
    )

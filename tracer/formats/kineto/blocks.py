"""How do the events of one block of a PyTorch profile become rows of a stage, and what is remembered of them?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trnprof.tracer.formats.kineto.collectives import KernelNames
from trnprof.tracer.formats.kineto.counters import Counters
from trnprof.tracer.formats.kineto.kinds import (
    CATEGORY,
    DEVICE_WORK,
    LAST_RANGE,
    MTIA_CATEGORY,
    MTIA_NAMES,
    Kind,
    kind_of,
    range_kind,
)
from trnprof.tracer.formats.kineto.memories import copy_ends
from trnprof.tracer.formats.kineto.messages import (
    ANNOTATION_NAME,
    MESSAGE_ARGS,
    Messages,
    has_message,
)
from trnprof.tracer.formats.kineto.nesting import ANY_CODE, AUTOGRAD, MODULE, OPTIMIZER, USER_CODE
from trnprof.tracer.formats.kineto.ops import OpSpool
from trnprof.tracer.formats.kineto.places import Places
from trnprof.tracer.formats.kineto.state import Bools, State, codes_of
from trnprof.tracer.formats.kineto.times import read_times
from trnprof.tracer.formats.trace_json.scan import EventBlock, Fields
from trnprof.tracer.ingest.stage import UNFINISHED
from trnprof.tracer.schema import MEMORIES

FIELDS: Final = Fields(
    ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id"),
    (
        *("correlation", "External id", "external id", "device", "stream", "bytes"),
        *("Input Dims", "Input type"),
        *("Total Allocated", "Total Reserved", "Device Id", "Device Type"),
        *("direction", "size", "name", "labels"),
        *MESSAGE_ARGS,
    ),
)
MEMORY_NAME: Final = pa.scalar("[memory]")
STEP_PREFIX: Final = "ProfilerStep#"
_UNNAMED: Final = pa.array(["(no name)"])

_AUTOGRAD_PREFIX: Final = "autograd::engine::evaluate_function"
_OPTIMIZER_PREFIX: Final = "Optimizer.step#"
_MODULE_PREFIX: Final = "nn.Module: "
_SOURCE_LINE: Final = r"\.py\(\d+\): "
_LIBRARY_CODE: Final = r"(^|/)(torch|torchvision|transformers|accelerate|functools|contextlib|threading|runpy)[/.]|site-packages/|^<"
_CATEGORIES: Final = pa.array(["host", "compute", "dma", "sync", "memory", "marker", "collective"])
_CATEGORY_CODES: Final = np.array(
    [_CATEGORIES.to_pylist().index(CATEGORY[k]) for k in sorted(CATEGORY)], np.int8
)
_COLLECTIVE: Final = 6


@dataclass
class Reader:
    """What blocks are read into.

    Attributes:
        state: numbers that are kept.
        places: timelines.
        messages: of collectives.
        kernels: which names are of collectives.
        spool: of operators.
        counters: timelines of counters.
    """

    state: State
    places: Places
    messages: Messages
    kernels: KernelNames
    spool: OpSpool
    counters: Counters
    _kinds: list[int] = field(default_factory=list)
    _begin_kinds: list[int] = field(default_factory=list)
    _is_mtia: list[bool] = field(default_factory=list)
    _has_mtia: bool = False

    def kinds(self, block: EventBlock) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
        """The kind of each event, and, of a beginning, that of the range which it begins."""
        codes, known = block.keys("ph", "cat")
        for phase, category in known[len(self._kinds) :]:
            self._kinds.append(kind_of(phase, category))
            self._begin_kinds.append(range_kind(category))
            self._is_mtia.append(category == MTIA_CATEGORY)
            self._has_mtia |= category == MTIA_CATEGORY
            if self._kinds[-1] == Kind.UNKNOWN:
                self.state.left_out.setdefault(str(phase), 0)
        kind = np.array(self._kinds or [0], np.int8)[codes]
        if Kind.UNKNOWN in self._kinds:
            self._count_unknown(codes, known)
        of_range = np.array(self._begin_kinds or [0], np.int8)[codes]
        if self._has_mtia:
            is_mtia = np.array(self._is_mtia)[codes]
            for name, of_name in MTIA_NAMES.items():
                is_it = is_mtia & is_name(block.texts("name"), pa.scalar(name))
                kind[is_it], of_range[is_it] = of_name, of_name
        return kind, of_range

    def _count_unknown(self, codes: NDArray[np.int64], known: list[tuple[Any, ...]]) -> None:
        counts = np.bincount(codes, minlength=len(known))
        for code, count in enumerate(counts.tolist()):
            if count and self._kinds[code] == Kind.UNKNOWN:
                self.state.left_out[str(known[code][0])] += count


@dataclass(frozen=True)
class Events:
    """Events that are ready to be staged: columns of the stage, and numbers that are remembered.

    Attributes:
        columns: for ``Stage.add_events``.
        kind: of each.
        block: where they come from.
    """

    columns: dict[str, Any]
    kind: NDArray[np.int8]
    block: EventBlock


def ready(reader: Reader, block: EventBlock, kind: NDArray[np.int8]) -> Events:
    """Decode events.

    Args:
        reader: the profile.
        block: ranges and instants only.
        kind: of each.
    """
    is_memory = (kind == Kind.INSTANT) & is_name(block.texts("name"), MEMORY_NAME)
    kind = np.where(is_memory, np.int8(Kind.MEMORY), kind)
    start, end, has_ts = read_times(block, reader.state.stage.audit, reader.state.label)
    end = np.where(kind > LAST_RANGE, start, end)
    if not reader.state.stage.rows:
        reader.state.first_ns = int(start[has_ts].min()) if has_ts.any() else 0
    if not has_ts.all():
        start = np.where(has_ts, start, reader.state.first_ns)
        end = np.where(has_ts, end, UNFINISHED)
        kind = np.where(has_ts, kind, np.int8(Kind.UNTIMED))
    columns: dict[str, Any] = {
        "timeline": reader.places.timelines(block, kind),
        "start_ns": start,
        "end_ns": end,
        "name": _without_nulls(block.texts("name")),
        "fingerprint": block.fingerprints(),
        "attributes": block.attributes(),
    }
    return Events(columns, kind, block)


def stage_events(reader: Reader, events: Events) -> None:
    """Stage events, and remember what they can be linked by."""
    state, block, kind = reader.state, events.block, events.kind
    first, columns = state.stage.rows, dict(events.columns)
    category = _CATEGORY_CODES[kind]
    work = np.flatnonzero((kind >= DEVICE_WORK[0]) & (kind <= DEVICE_WORK[-1]))
    if len(work):
        is_collective = _remember_work(reader, block, kind, work, first, columns)
        category[work[is_collective]] = _COLLECTIVE
    columns["category"] = pa.DictionaryArray.from_arrays(pa.array(category), _CATEGORIES)
    state.stage.add_events(**columns)
    state.kinds.append(kind)
    name = columns["name"]
    for wanted, remember in (
        (Kind.CPU_OP, _remember_ops),
        (Kind.CALL, _remember_calls),
        (Kind.ANNOTATION, _remember_annotations),
        (Kind.PYTHON, _remember_python),
    ):
        rows = np.flatnonzero(kind == wanted)
        if len(rows):
            own = block if len(rows) == block.rows else block.take(rows)
            remember(reader, own, name.take(pa.array(rows)), rows + first)
    allocations = np.flatnonzero(kind == Kind.MEMORY)
    if len(allocations):
        reader.counters.add_memory(block.take(allocations))


def is_name(names: pa.DictionaryArray, word: pa.StringScalar) -> Bools:
    """Where a name is this word."""
    return of_names(names, pc.equal(names.dictionary, word))


def of_names(names: pa.DictionaryArray, of_word: pa.Array) -> NDArray[Any]:
    """What is said of each distinct name, for each row; false or 0 without a name."""
    said = of_word.to_numpy(zero_copy_only=False)
    said = np.append(said, said.dtype.type(0))
    found: NDArray[Any] = said[name_codes(names)]
    return found


def name_codes(names: pa.DictionaryArray) -> NDArray[np.int32]:
    """Index of each name in the dictionary, -1 where there is none."""
    indices = names.indices.fill_null(-1) if names.null_count else names.indices
    codes: NDArray[np.int32] = indices.to_numpy(zero_copy_only=False)
    return codes


def _without_nulls(names: pa.DictionaryArray) -> pa.DictionaryArray:
    if not names.null_count:
        return names
    words = pa.concat_arrays([names.dictionary, _UNNAMED])
    indices = names.indices.fill_null(len(words) - 1)
    return pa.DictionaryArray.from_arrays(indices, words)


def _integers(block: EventBlock, *fields: str, default: int = -1) -> NDArray[np.int64]:
    values, valid = block.integers(fields[0])
    for other in fields[1:]:
        if valid.all():
            break
        more, has_more = block.integers(other)
        values, valid = np.where(valid, values, more), valid | has_more
    return values if valid.all() else np.where(valid, values, default)


def _remember_work(
    reader: Reader,
    block: EventBlock,
    kind: NDArray[np.int8],
    work: NDArray[np.int64],
    first: int,
    columns: dict[str, Any],
) -> Bools:
    """Remember kernels, copies and memsets, and add their columns; which of them are known to be collectives."""
    own = block if len(work) == block.rows else block.take(work)
    names = columns["name"].take(pa.array(work))
    message = np.full(len(work), -1, np.int32)
    says = has_message(own) & (kind[work] == Kind.KERNEL)
    if says.any():
        message[says] = reader.messages.from_arguments(own.take(says))
    is_named = (kind[work] == Kind.KERNEL) & reader.kernels.matching(names)
    size = _integers(own, "args.bytes", "args.size")
    size = np.where((kind[work] == Kind.KERNEL) | (size < 0), -1, size)
    _add_copies(own, names, kind[work], work, block.rows, size, columns)
    is_collective: Bools = says | is_named
    state = reader.state
    codes = np.full(len(work), -1, np.int32)
    if is_collective.any():
        words = np.array(codes_of(names.dictionary.to_pylist(), state.kernel_names))
        codes[is_collective] = words[name_codes(names)][is_collective]
    state.work.add(
        len(work),
        row=work + first,
        kind=kind[work],
        correlation=_integers(own, "args.correlation"),
        external=_integers(own, "args.External id", "args.external id"),
        message=message,
        is_named=is_named,
        name=codes,
        bytes=size,
    )
    return is_collective


def _add_copies(
    own: EventBlock,
    names: pa.DictionaryArray,
    kind: NDArray[np.int8],
    work: NDArray[np.int64],
    rows: int,
    size: NDArray[np.int64],
    columns: dict[str, Any],
) -> None:
    """Bytes and memories of copies and memsets."""
    if not (kind != Kind.KERNEL).any():
        return
    spread = np.full(rows, -1, np.int64)
    spread[work] = size
    columns["bytes"] = pa.array(spread, mask=spread < 0)
    source, target = copy_ends(own, names, kind)
    for column, codes in (("source_memory", source), ("target_memory", target)):
        all_codes = np.full(rows, -1, np.int8)
        all_codes[work] = codes
        columns[column] = pa.DictionaryArray.from_arrays(
            pa.array(all_codes, mask=all_codes < 0), pa.array(MEMORIES)
        )


def _remember_ops(
    reader: Reader, block: EventBlock, names: pa.DictionaryArray, rows: NDArray[np.int64]
) -> None:
    state = reader.state
    first = state.ops.count
    words = names.dictionary
    flags = AUTOGRAD * of_names(names, pc.starts_with(words, _AUTOGRAD_PREFIX)).astype(np.int8)
    is_message = has_message(block)
    if is_message.any():
        said = reader.messages.from_arguments(block.take(is_message))
        state.op_messages.add(len(said), op=np.flatnonzero(is_message) + first, message=said)
    external = _integers(block, "args.External id", "args.external id")
    state.ops.add(len(rows), row=rows, external=external, flags=flags)
    reader.spool.add(names, block.texts("args.Input Dims"), block.texts("args.Input type"))


def _remember_calls(
    reader: Reader, block: EventBlock, names: pa.DictionaryArray, rows: NDArray[np.int64]
) -> None:
    correlation = _integers(block, "args.correlation")
    reader.state.calls.add(len(rows), row=rows, correlation=correlation)


def _remember_annotations(
    reader: Reader, block: EventBlock, names: pa.DictionaryArray, rows: NDArray[np.int64]
) -> None:
    state, words = reader.state, names.dictionary
    flags = OPTIMIZER * of_names(names, pc.starts_with(words, _OPTIMIZER_PREFIX)).astype(np.int8)
    message = np.full(len(rows), -1, np.int32)
    is_message = of_names(names, pc.match_substring_regex(words, ANNOTATION_NAME))
    if is_message.any():
        message[is_message] = reader.messages.from_annotations(block.take(is_message))
    state.annotations.add(len(rows), row=rows, flags=flags, message=message)
    is_step = of_names(names, pc.starts_with(words, STEP_PREFIX))
    if is_step.any():
        labels = names.filter(pa.array(is_step)).to_pylist()
        known = codes_of(labels, state.step_labels)
        state.steps.add(len(labels), row=rows[is_step], label=known)


def _remember_python(
    reader: Reader, block: EventBlock, names: pa.DictionaryArray, rows: NDArray[np.int64]
) -> None:
    known = reader.state.python_names
    words: Sequence[str | None] = names.dictionary.to_pylist()
    codes = codes_of(list(words), known)[name_codes(names)]
    reader.state.python.add(len(rows), row=rows, code=codes)


def python_flags(names: Sequence[str]) -> NDArray[np.int8]:
    """What each name of a Python function says: a module's forward, a line of a script, a line of any Python file."""
    words = pa.array(names, pa.string())
    is_module = pc.starts_with(words, _MODULE_PREFIX).to_numpy(zero_copy_only=False)
    is_line = pc.match_substring_regex(words, _SOURCE_LINE).to_numpy(zero_copy_only=False)
    is_library = pc.match_substring_regex(words, _LIBRARY_CODE).to_numpy(zero_copy_only=False)
    flags = MODULE * is_module + ANY_CODE * is_line + USER_CODE * (is_line & ~is_library)
    found: NDArray[np.int8] = flags.astype(np.int8)
    return found

"""What encloses each operator and call of a PyTorch profile: operator, module, source line, what a collective is about?

By time, on each thread: PyTorch's ranges nest. A range that ends later than the one it began in is enclosed by the next one around that
holds all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.compiled import compiled
from trnprof.tracer.formats.kineto.kinds import Kind
from trnprof.tracer.formats.kineto.state import Ints
from trnprof.tracer.ingest.lanes import Order

LONGEST_NS: Final = 86_400_000_000_000
"""Ranges that last longer are not believed, and enclose nothing."""
_DEEPEST: Final = 100
"""Modules nested deeper have no path."""
AUTOGRAD: Final = 1
OPTIMIZER: Final = 2
MODULE: Final = 4
USER_CODE: Final = 8
ANY_CODE: Final = 16
"""Flags of ranges: of the autograd engine; of an optimizer; a module's forward; a line of a script, of whatever Python file. They
stand here because compiled code is kept until its own file changes."""
_DEEPEST_RANGE: Final = 4096
"""Ranges nested deeper enclose nothing."""
_IN_OP, _IN_MODULE, _SOURCE, _FLAGS, _MESSAGE, _WEAK_MESSAGE = range(6)
_HELD: Final = 6
"""What is held of the ranges around: operator, module, source, flags, message of arguments and of an annotation."""
_KINDS: Final = (int(Kind.CPU_OP), int(Kind.CALL), int(Kind.ANNOTATION), int(Kind.PYTHON))


@dataclass(frozen=True)
class Ranges:
    """Ranges on the host, by row of the stage.

    Attributes:
        start_ns, end_ns: of every row.
        kind: ``Kind`` of every row.
        own: its number among the operators, calls or annotations; of a Python function the code of its name.
    """

    start_ns: Ints
    end_ns: Ints
    kind: NDArray[np.int8]
    own: NDArray[np.int32]


@dataclass(frozen=True)
class Said:
    """What ranges say of what they enclose.

    Attributes:
        op_flags: of operators.
        op_message: message in the arguments of operators, -1: none.
        annotation_flags: of annotations.
        annotation_message: message of annotations, -1: none.
        python_flags: by code of the name.
    """

    op_flags: NDArray[np.int8]
    op_message: NDArray[np.int32]
    annotation_flags: NDArray[np.int8]
    annotation_message: NDArray[np.int32]
    python_flags: NDArray[np.int8]


@dataclass(frozen=True)
class Enclosing:
    """What is around operators and calls; -1 where there is none.

    Attributes:
        op_parent: operator around each operator.
        op_module: call of a module around it, an index of ``module_parent``.
        op_source: code of the Python function that called it.
        op_flags: AUTOGRAD, OPTIMIZER.
        call_op: operator around each call.
        call_message: what the nearest range that speaks of a collective says.
        module_parent: call of a module around each call of a module.
        module_code: code of its name.
    """

    op_parent: NDArray[np.int32]
    op_module: NDArray[np.int32]
    op_source: NDArray[np.int32]
    op_flags: NDArray[np.int8]
    call_op: NDArray[np.int32]
    call_message: NDArray[np.int32]
    module_parent: NDArray[np.int32]
    module_code: NDArray[np.int32]


def find_enclosing(order: Order, threads: int, ranges: Ranges, said: Said, calls: int) -> Enclosing:
    """Look at all ranges of the host.

    Args:
        order: of all rows, those of the host's threads first.
        threads: how many groups of ``order`` are threads.
        ranges: all rows.
        said: by operators, annotations and names.
        calls: number of calls.
    """
    ops = len(said.op_flags)
    is_python = ranges.kind == Kind.PYTHON
    modules = (
        int((said.python_flags[ranges.own[is_python]] & MODULE > 0).sum()) if is_python.any() else 0
    )
    found = Enclosing(
        op_parent=_unset(ops),
        op_module=_unset(ops),
        op_source=_unset(ops),
        op_flags=np.zeros(ops, np.int8),
        call_op=_unset(calls),
        call_message=_unset(calls),
        module_parent=_unset(modules),
        module_code=_unset(modules),
    )
    _sweep(
        order.rows,
        order.first[: threads + 1],
        (ranges.start_ns, ranges.end_ns, ranges.kind, ranges.own),
        _KINDS,
        (
            said.op_flags,
            said.op_message,
            said.annotation_flags,
            said.annotation_message,
            said.python_flags,
        ),
        (found.op_parent, found.op_module, found.op_source, found.op_flags),
        (found.call_op, found.call_message),
        (found.module_parent, found.module_code),
    )
    return found


def _unset(count: int) -> NDArray[np.int32]:
    return np.full(count, -1, np.int32)


@compiled
def _sweep(
    rows: Any, first: Any, ranges: Any, kinds: Any, said: Any, ops: Any, calls: Any, modules: Any
) -> None:
    """See ``find_enclosing``; the last three hold its results."""
    start, end, kind, own = ranges
    is_op, is_call, is_annotation, is_python = kinds
    op_flags, op_message, annotation_flags, annotation_message, python_flags = said
    ends = np.empty(_DEEPEST_RANGE, np.int64)
    held = np.full((_DEEPEST_RANGE + 1, _HELD), -1, np.int32)  # by depth; nothing is held outside
    held[:, _FLAGS] = 0
    frames = np.int32(0)
    for group in range(len(first) - 1):
        depth = 0
        for place in range(first[group], first[group + 1]):
            row = rows[place]
            what = kind[row]
            if what != is_op and what != is_call and what != is_annotation and what != is_python:
                continue
            length = end[row] - start[row]
            encloses = 0 <= length <= LONGEST_NS and depth < _DEEPEST_RANGE - 1
            depth = _depth_of(ends, depth, start[row], end[row] if encloses else start[row])
            inner, number = held[depth + 1], own[row]
            inner[:] = held[depth]
            if what == is_call:
                calls[0][number] = inner[_IN_OP]
                strong = inner[_MESSAGE] >= 0
                calls[1][number] = inner[_MESSAGE] if strong else inner[_WEAK_MESSAGE]
            elif what == is_op:
                _enter_op(inner, number, op_flags[number], op_message[number], ops)
            elif what == is_annotation:
                inner[_FLAGS] |= annotation_flags[number] & OPTIMIZER
                if annotation_message[number] >= 0:
                    inner[_WEAK_MESSAGE] = annotation_message[number]
            else:
                frames = _enter_python(inner, number, python_flags[number], modules, frames)
            if encloses:
                ends[depth] = end[row]
                depth += 1


@compiled
def _depth_of(ends: Any, depth: Any, start: Any, end: Any) -> Any:
    """How many of the ranges that are open hold a range: all of it, and an instant at their end too."""
    while depth > 0:
        last = ends[depth - 1]
        if last >= end and (last > start or start == end):
            break
        depth -= 1
    return depth


@compiled
def _enter_op(inner: Any, number: Any, flags: Any, message: Any, ops: Any) -> None:
    ops[0][number], ops[1][number], ops[2][number] = (
        inner[_IN_OP],
        inner[_IN_MODULE],
        inner[_SOURCE],
    )
    inner[_FLAGS] |= flags & AUTOGRAD
    ops[3][number] = inner[_FLAGS] & (AUTOGRAD | OPTIMIZER)
    inner[_IN_OP] = number
    if message >= 0:
        inner[_MESSAGE] = message


@compiled
def _enter_python(inner: Any, code: Any, flags: Any, modules: Any, frames: Any) -> Any:
    if flags & MODULE:
        modules[0][frames], modules[1][frames] = inner[_IN_MODULE], code
        inner[_IN_MODULE] = frames
        frames += 1
    if flags & USER_CODE:
        inner[_SOURCE] = code
        inner[_FLAGS] |= USER_CODE
    elif flags & ANY_CODE and not inner[_FLAGS] & USER_CODE:
        inner[_SOURCE] = code
    return frames


def module_paths(
    parent: NDArray[np.int32], code: NDArray[np.int32], names: list[str]
) -> tuple[list[str], NDArray[np.int32]]:
    """Dotted paths of calls of modules.

    Args:
        parent: call of a module around each, -1: none; earlier than it.
        code: of its name.
        names: by code.

    Returns:
        Distinct paths, and the number of each call's path.

    >>> paths, of_call = module_paths(np.int32([-1, 0, 0, -1]), np.int32([0, 1, 1, 0]), ["Net_0", "Linear_3"])
    >>> paths, of_call.tolist()
    (['Net_0', 'Net_0.Linear_3'], [0, 1, 1, 0])
    """
    paths: list[str] = []
    of_call = np.full(len(parent), -1, np.int32)
    left = np.flatnonzero(parent < 0)
    for _ in range(_DEEPEST):
        above = np.where(parent[left] < 0, -1, of_call[parent[left]]).astype(np.int64)
        distinct, number = np.unique(above * len(names) + code[left], return_inverse=True)
        of_call[left] = number + len(paths)
        for key in distinct.tolist():
            base, name = divmod(key, len(names))
            paths.append(f"{paths[base]}.{names[name]}" if base >= 0 else names[name])
        is_known = np.append(of_call >= 0, False)
        left = np.flatnonzero((of_call < 0) & is_known[parent])
    return paths, of_call

"""What does a PyTorch profile say of its collectives: which operation, in which group, how many bytes?

Three places say it: the arguments of a kernel of NCCL (recent releases), the operator ``record_param_comms`` around its launch, and,
before there were these, an annotation such as ``nccl:all_reduce`` with the shapes of its inputs.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trnprof.tracer.formats.trace_json.scan import EventBlock

MESSAGE_ARGS: Final = (
    "Collective name",
    "In msg nelems",
    "Out msg nelems",
    "Group size",
    "dtype",
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
    "Global rank start",
    "Global rank stride",
    "Comms Id",
)
_FIELDS: Final = tuple(f"args.{name}" for name in MESSAGE_ARGS)
_ANNOTATION: Final = ("name", "args.Input Dims", "args.Input type")
ANNOTATION_NAME: Final = r"^(nccl|rccl|hccl|gloo|mpi|ucc|xccl|ccl):"
_POINT_TO_POINT: Final = re.compile(
    r"(?i)(^|[^a-z])(batch_)?i?(send|recv)(_any_source)?\b(?!_?recv)"
)
_MOST_RANKS: Final = 1 << 20

DTYPES: Final = {
    "bfloat16": ("bfloat16", 2),
    "half": ("float16", 2),
    "float": ("float32", 4),
    "double": ("float64", 8),
    "byte": ("uint8", 1),
    "unsigned char": ("uint8", 1),
    "char": ("int8", 1),
    "signed char": ("int8", 1),
    "short": ("int16", 2),
    "short int": ("int16", 2),
    "int": ("int32", 4),
    "long": ("int64", 8),
    "long int": ("int64", 8),
    "bool": ("bool", 1),
    "float8_e4m3fn": ("float8_e4m3fn", 1),
    "float8_e5m2": ("float8_e5m2", 1),
    "float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
    "float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
    "complexfloat": ("complex64", 8),
    "c10::complex<float>": ("complex64", 8),
}
"""Names of datatypes in PyTorch's C++ and in its messages → (PyTorch's Python name, bytes)."""


@dataclass(frozen=True)
class Message:
    """What is said of one collective.

    Attributes:
        name: operation, such as ``allreduce``; empty if not said.
        group: name of the process group; None if not said.
        ranks: its members in order, () if not said.
        in_bytes, out_bytes: None if not said.
        dtype: None if not said.
        size: members; None if not said.
    """

    name: str = ""
    group: str | None = None
    ranks: tuple[int, ...] = ()
    in_bytes: int | None = None
    out_bytes: int | None = None
    dtype: str | None = None
    size: int | None = None

    @property
    def is_point_to_point(self) -> bool:
        """Whether it is a send or receive, which the other members of the group need not take part in."""
        return _POINT_TO_POINT.search(self.name) is not None


@dataclass
class Messages:
    """The different messages met so far, by code."""

    of_code: list[Message] = field(default_factory=list)
    _arguments: list[int] = field(default_factory=list)
    _annotations: list[int] = field(default_factory=list)

    def from_arguments(self, block: EventBlock) -> NDArray[np.int32]:
        """The message in the arguments of each event."""
        codes, known = block.keys(*_FIELDS)
        return self._numbered(codes, known, self._arguments, _from_arguments)

    def from_annotations(self, block: EventBlock) -> NDArray[np.int32]:
        """The message in the name and inputs of each annotation."""
        codes, known = block.keys(*_ANNOTATION)
        return self._numbered(codes, known, self._annotations, _from_annotation)

    def _numbered(
        self, codes: NDArray[np.int64], known: list[tuple[Any, ...]], numbers: list[int], read: Any
    ) -> NDArray[np.int32]:
        for values in known[len(numbers) :]:
            numbers.append(len(self.of_code))
            self.of_code.append(read(*values))
        return np.array(numbers or [0], np.int32)[codes]


def has_message(block: EventBlock) -> NDArray[np.bool_]:
    """Events whose arguments are about a collective."""
    found = block.has("args.Collective name") | block.has("args.Process Group Name")
    return found | block.has("args.Comms Id")


def dtype_name(text: str) -> str:
    """PyTorch's name of a datatype.

    >>> dtype_name("c10::BFloat16"), dtype_name("long int"), dtype_name("Scalar")
    ('bfloat16', 'int64', 'Scalar')
    """
    known = DTYPES.get(text.removeprefix("c10::").lower())
    return known[0] if known else text


def _from_arguments(
    name: str | None,
    elements_in: str | None,
    elements_out: str | None,
    size: str | None,
    dtype: str | None,
    group: str | None,
    description: str | None,
    ranks: str | None,
    first: str | None,
    stride: str | None,
    communicator: str | None,
) -> Message:
    known = DTYPES.get((dtype or "").removeprefix("c10::").lower())
    width = known[1] if known else None
    members = _integer(size)
    return Message(
        name or "",
        group_name(group, description) or communicator,
        read_ranks(ranks, members, _integer(first), _integer(stride)),
        _bytes(elements_in, width),
        _bytes(elements_out, width),
        known[0] if known else dtype,
        members,
    )


def _from_annotation(name: str | None, shapes: str | None, types: str | None) -> Message:
    operation = (name or "").partition(":")[2].split(" ")[0]
    try:
        dims, kinds = json.loads(shapes or "[]"), json.loads(types or "[]")
        known = [
            (math.prod(int(n) for n in shape), DTYPES[str(kind).removeprefix("c10::").lower()])
            for shape, kind in zip(dims, kinds, strict=False)
            if isinstance(shape, list) and str(kind).removeprefix("c10::").lower() in DTYPES
        ]
    except (ValueError, TypeError, RecursionError):
        known = []
    total = sum(count * width for count, (_, width) in known)
    if not known or not 0 <= total < 1 << 62:
        return Message(operation)
    return Message(operation, in_bytes=total, dtype=known[0][1][0])


def group_name(name: str | None, description: str | None) -> str | None:
    """What people call a process group.

    >>> group_name("0", "default_pg"), group_name("7", "undefined"), group_name(None, None)
    ('default_pg 0', '7', None)
    """
    said = description if description and description != "undefined" else ""
    return f"{said} {name or ''}".strip() or None


def read_ranks(
    text: Any, size: int | None, first: int | None = None, stride: int | None = None
) -> tuple[int, ...]:
    """The members of a group; long lists are written with an ellipsis, then they are told by first, stride and size.

    >>> read_ranks("[0, 2]", 2), read_ranks("[0, 8, ..., 120]", 16, 0, 8)[-1], read_ranks("[0, 1, ..., 9]", 10)
    ((0, 2), 120, ())
    """
    if isinstance(text, list | tuple):
        text = str(list(text)[:_MOST_RANKS])
    if text and "..." not in text and len(text) < 16 * _MOST_RANKS:
        found = tuple(int(n) for n in re.findall(r"\d{1,9}", text)[:_MOST_RANKS])
        if found and (size is None or len(found) == size):
            return found
    if size is not None and first is not None and stride and 0 < size <= _MOST_RANKS:
        last = first + stride * (size - 1)
        if 0 <= first <= last < 1 << 31:
            return tuple(range(first, last + 1, stride))
    return ()


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?\d{1,18}", text) else None


def _bytes(elements: str | None, width: int | None) -> int | None:
    count = _integer(elements)
    if count is None or width is None or not 0 <= count < 1 << 58:
        return None
    return count * width

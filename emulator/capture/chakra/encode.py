"""Which bytes is a node of an execution trace?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from trnprof.emulator.capture.chakra import schema
from trnprof.tracer.formats.protobuf_wire import LENGTH, VARINT

_NAMES: Final = dict(enumerate(schema.ATTRIBUTES))


def varint(value: int) -> bytes:
    """A number of 64 bits, seven in a byte, the lowest first."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def with_length(message: bytes) -> bytes:
    """A message as it stands in a file."""
    return varint(len(message)) + message


def metadata() -> bytes:
    """The first message of a file."""
    return with_length(_text(schema.METADATA_VERSION, schema.VERSION.encode()))


def node(
    number: int,
    name: str,
    kind: int,
    attributes: Mapping[int, int | bool | str],
    *,
    data: Iterable[int] = (),
    ctrl: Iterable[int] = (),
    duration_us: int = 0,
) -> bytes:
    """A node, with its length before it.

    Args:
        number: its id.
        name: its name.
        kind: NodeType.
        attributes: values by number in ``schema.ATTRIBUTES``.
        data: ids of the nodes whose results it uses.
        ctrl: of those that it follows for another reason.
        duration_us: in microseconds; 0: not known.
    """
    parts = [_number(schema.NODE_ID, number), _text(schema.NODE_NAME, name.encode())]
    parts.append(_number(schema.NODE_TYPE, kind))
    for field, ids in ((schema.CTRL_DEPS, ctrl), (schema.DATA_DEPS, data)):
        packed = b"".join(map(varint, ids))
        if packed:
            parts.append(_text(field, packed))
    if duration_us:
        parts.append(_number(schema.DURATION_MICROS, duration_us))
    parts += [_text(schema.ATTR, _attribute(key, value)) for key, value in attributes.items()]
    return with_length(b"".join(parts))


def _attribute(key: int, value: int | bool | str) -> bytes:
    name = _text(schema.ATTR_NAME, _NAMES[key])
    if isinstance(value, str):
        return name + _text(schema.STRING, value.encode())
    return name + _number(schema.BOOL if isinstance(value, bool) else schema.INT64, int(value))


def _number(field: int, value: int) -> bytes:
    return varint(field << 3 | VARINT) + varint(value)


def _text(field: int, content: bytes) -> bytes:
    return varint(field << 3 | LENGTH) + varint(len(content)) + content

"""Execution traces written and read with protobuf's own library, from a description of the schema: independent of our coder and decoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.decoder import _DecodeVarint32
from google.protobuf.internal.encoder import _VarintBytes
from google.protobuf.unknown_fields import UnknownFieldSet

F = descriptor_pb2.FieldDescriptorProto
COMP, SEND, RECV, COLL = 4, 5, 6, 7
METADATA, LOAD, STORE = 1, 2, 3
ALL_REDUCE, REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER, BARRIER = 0, 1, 2, 5, 6, 7, 9


def _field(name: str, number: int, kind: int, repeated: bool = False, of: str = "") -> Any:
    label = F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL
    made = F(name=name, number=number, type=kind, label=label)
    if of:
        made.type_name = f".chakra.{of}"
    return made


def _schema() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="chakra", syntax="proto3")
    messages = {
        "Bools": [_field("values", 1, F.TYPE_BOOL, True)],
        "Attribute": [
            _field("name", 1, F.TYPE_STRING),
            _field("double_val", 3, F.TYPE_DOUBLE),
            _field("float_val", 5, F.TYPE_FLOAT),
            _field("int32_val", 7, F.TYPE_INT32),
            _field("int64_val", 9, F.TYPE_INT64),
            _field("uint32_val", 11, F.TYPE_UINT32),
            _field("uint64_val", 13, F.TYPE_UINT64),
            _field("sint64_val", 17, F.TYPE_SINT64),
            _field("fixed64_val", 21, F.TYPE_FIXED64),
            _field("sfixed32_val", 23, F.TYPE_SFIXED32),
            _field("bool_val", 27, F.TYPE_BOOL),
            _field("bool_list", 28, F.TYPE_MESSAGE, of="Bools"),
            _field("string_val", 29, F.TYPE_STRING),
        ],
        "Metadata": [
            _field("version", 1, F.TYPE_STRING),
            _field("attr", 2, F.TYPE_MESSAGE, True, "Attribute"),
        ],
        "IO": [_field("values", 1, F.TYPE_STRING)],
        "Node": [
            _field("id", 1, F.TYPE_UINT64),
            _field("name", 2, F.TYPE_STRING),
            _field("type", 3, F.TYPE_INT32),
            _field("ctrl_deps", 4, F.TYPE_UINT64, True),
            _field("data_deps", 5, F.TYPE_UINT64, True),
            _field("start_time_micros", 6, F.TYPE_UINT64),
            _field("duration_micros", 7, F.TYPE_UINT64),
            _field("inputs", 8, F.TYPE_MESSAGE, of="IO"),
            _field("attr", 10, F.TYPE_MESSAGE, True, "Attribute"),
        ],
    }
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        message.field.extend(fields)
        if name == "Attribute":
            message.oneof_decl.add(name="value")
            for field in message.field[1:]:
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"chakra.{name}"))
        for name in messages
    }


MESSAGES = _schema()


def node(
    number: int,
    kind: int,
    name: str = "",
    *,
    data: Iterable[int] = (),
    ctrl: Iterable[int] = (),
    duration: int = 0,
    values: str = "",
    **attributes: Any,
) -> Any:
    """A node; an attribute that is no bool, int or text is given as {field: value}."""
    made = MESSAGES["Node"](
        id=number,
        name=name or f"node {number}",
        type=kind,
        data_deps=data,
        ctrl_deps=ctrl,
        duration_micros=duration,
    )
    if values:
        made.inputs.values = values
    for key, value in attributes.items():
        made.attr.append(_attribute(key, value))
    return made


def _attribute(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return MESSAGES["Attribute"](name=key, **value)
    kinds = {bool: "bool_val", int: "int64_val", str: "string_val"}
    return MESSAGES["Attribute"](name=key, **{kinds[type(value)]: value})


def content(nodes: Sequence[Any], version: str = "0.0.4") -> bytes:
    messages = [MESSAGES["Metadata"](version=version), *nodes]
    texts = [message.SerializeToString() for message in messages]
    return b"".join(_VarintBytes(len(text)) + text for text in texts)


def write(path: Path, nodes: Sequence[Any]) -> Path:
    path.write_bytes(content(nodes))
    return path


def read(path: Path) -> tuple[str, list[Any]]:
    """Version and nodes of a file; nothing in it may be unknown to the schema."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        size, at = _DecodeVarint32(data, at)
        kind = MESSAGES["Node" if found else "Metadata"]
        message = kind.FromString(data[at : at + size])
        for part in (message, *message.attr):
            assert not UnknownFieldSet(part)
        found.append(message)
        at += size
    return found[0].version, found[1:]


def attributes(node: Any) -> dict[str, Any]:
    """Of a node, by name."""
    return {a.name: getattr(a, a.WhichOneof("value")) for a in node.attr}

"""How are protobuf messages of others read, of which no package of ours brings the classes? Made here, from a short description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_TYPES: Final = {
    "int64": _FIELD.TYPE_INT64,
    "uint64": _FIELD.TYPE_UINT64,
    "double": _FIELD.TYPE_DOUBLE,
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
}


def message_classes(package: str, messages: Mapping[str, str]) -> dict[str, Any]:
    """Classes of messages.

    Args:
        package: a name of its own.
        messages: message → fields as ``number type name``, separated by ``;``, with ``*`` before the type where repeated. Whatever is a varint
            (int32, bool, enum) may be read as int64. Members of a oneof are plain fields: presence is told by ``HasField``.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package)
    file.syntax = "proto2"
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for text in fields.split(";"):
            number, kind, field_name = text.split()
            label = _FIELD.LABEL_REPEATED if kind.startswith("*") else _FIELD.LABEL_OPTIONAL
            kind = kind.lstrip("*")
            field = message.field.add(name=field_name, number=int(number), label=label)
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }

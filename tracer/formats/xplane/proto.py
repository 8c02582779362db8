"""Which messages does an XSpace consist of?

The schema of XProf's ``xplane.proto``, as descriptors made here: no package of ours brings them. Small messages (planes, metadata,
statistics of a plane) are read with these classes; events, which come by the million, by xplane_decode.py.
"""

from __future__ import annotations

from typing import Any, Final

from trnprof.tracer.protobuf import message_classes

_MESSAGES: Final = {
    "XStat": """1 int64 metadata_id; 2 double double_value; 3 uint64 uint64_value; 4 int64 int64_value;
        5 bytes str_value; 6 bytes bytes_value; 7 uint64 ref_value; 8 bytes compressed_str_value""",
    "XStatMetadata": "1 int64 id; 2 bytes name; 3 bytes description",
    "XEventMetadata": """1 int64 id; 2 bytes name; 3 bytes metadata; 4 bytes display_name; 5 *XStat stats;
        6 *int64 child_id""",
    "XEvent": "1 int64 metadata_id; 2 int64 offset_ps; 3 int64 duration_ps; 4 *XStat stats; 5 int64 num_occurrences",
    "XLine": """1 int64 id; 2 bytes name; 3 int64 timestamp_ns; 4 *XEvent events; 9 int64 duration_ps;
        10 int64 display_id; 11 bytes display_name""",
    "EventMetadataEntry": "1 int64 key; 2 XEventMetadata value",
    "StatMetadataEntry": "1 int64 key; 2 XStatMetadata value",
    "XPlane": """1 int64 id; 2 bytes name; 3 *XLine lines; 4 *EventMetadataEntry event_metadata;
        5 *StatMetadataEntry stat_metadata; 6 *XStat stats""",
    "XSpace": "1 *XPlane planes; 2 *bytes errors; 3 *bytes warnings; 4 *bytes hostnames",
    "CoreDetails": """1 bytes hostname; 2 int64 device_ordinal; 3 int64 core_num; 4 int64 local_chip_id;
        5 int64 global_chip_id; 6 int64 global_core_id""",
}
"""Message → fields as "number type name", ``*`` for repeated. Strings are read as bytes, since profiles hold some that are not
UTF-8; maps are the repeated entries that they are on the wire. Members of a oneof are plain fields: presence is told by
``HasField``."""


_classes = message_classes("trnprof.xplane", _MESSAGES)
XSTAT: Final[Any] = _classes["XStat"]
XEVENT: Final[Any] = _classes["XEvent"]
XLINE: Final[Any] = _classes["XLine"]
XPLANE: Final[Any] = _classes["XPlane"]
XSPACE: Final[Any] = _classes["XSpace"]
EVENT_METADATA: Final[Any] = _classes["EventMetadataEntry"]
STAT_METADATA: Final[Any] = _classes["StatMetadataEntry"]
CORE_DETAILS: Final[Any] = _classes["CoreDetails"]


def number(message: Any, field: str) -> int:
    """Number of a field of one of these messages."""
    return int(message.DESCRIPTOR.fields_by_name[field].number)

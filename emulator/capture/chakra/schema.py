"""Which numbers does the Chakra schema give to messages, fields, node types and collectives?

Field numbers and values of ``et_def.proto`` of mlcommons/chakra at 21585d8 (2025), schema 0.0.4, unchanged since October 2023 (c236cfa);
what was written before that has other numbers and is refused. An execution trace is one file a rank: messages one after the other, each behind
its length as a varint; first a GlobalMetadata, then Nodes.
"""

from __future__ import annotations

from typing import Final

from trnprof.emulator.collectives.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    REDUCE_SCATTER,
)

VERSION: Final = "0.0.4"
METADATA_VERSION: Final = 1
NODE_ID, NODE_NAME, NODE_TYPE, CTRL_DEPS, DATA_DEPS = 1, 2, 3, 4, 5
DURATION_MICROS, INPUTS, ATTR = 7, 8, 10
OLD_ATTRIBUTE: Final = 11
"""Where schemas before 0.0.4 had their attributes; now only nodes of storage have a field of this number."""

IO_VALUES: Final = 1
ATTR_NAME: Final = 1
DOUBLE, FLOAT, INT32, INT64, UINT32, UINT64 = 3, 5, 7, 9, 11, 13
SINT32, SINT64, FIXED32, FIXED64_VALUE, SFIXED32, SFIXED64 = 15, 17, 19, 21, 23, 25
BOOL, BOOL_LIST, STRING = 27, 28, 29

INVALID, METADATA, MEM_LOAD, MEM_STORE, COMP, COMM_SEND, COMM_RECV, COMM_COLL = range(8)
TYPE_NAMES: Final = (
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
)

COLLECTIVE_NAMES: Final = (
    "ALL_REDUCE",
    "REDUCE",
    "ALL_GATHER",
    "GATHER",
    "SCATTER",
    "BROADCAST",
    "ALL_TO_ALL",
    "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK",
    "BARRIER",
)
KINDS: Final[dict[int, str]] = {
    0: ALL_REDUCE,
    2: ALL_GATHER,
    5: BROADCAST,
    6: ALL_TO_ALL,
    7: REDUCE_SCATTER,
    8: REDUCE_SCATTER,
    9: BARRIER,
}
"""What those that are emulated are called here, by value of CollectiveCommType."""

WRITTEN_KINDS: Final = {kind: value for value, kind in reversed(KINDS.items())}

IS_CPU_OP, NUM_OPS, TENSOR_SIZE, COMM_TYPE, COMM_SIZE = range(5)
COMM_SRC, COMM_DST, COMM_TAG, PG_NAME, INVOLVED_DIM = range(5, 10)
ATTRIBUTES: Final = (
    b"is_cpu_op",
    b"num_ops",
    b"tensor_size",
    b"comm_type",
    b"comm_size",
    b"comm_src",
    b"comm_dst",
    b"comm_tag",
    b"pg_name",
    b"involved_dim",
)
"""Names of the attributes that are read, by their numbers here."""

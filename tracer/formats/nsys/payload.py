"""What do the payloads of NVTX events say of calls of NCCL?

A payload stands in ``binaryData`` (exports with ``--include-blobs=true``): a header of 32 bytes (domain, schema, sizes, each little-endian),
then fields at the offsets that NVTX_PAYLOAD_SCHEMA_ENTRIES states; or as JSON in ``jsonText`` (``--include-json=true``).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from trnprof.tracer.formats.tables import Bools, Ints, Tables, read_small

COMMUNICATOR: Final = "NCCL communicator ID"
MESSAGE_BYTES: Final = "Message size [bytes]"
RANKS: Final = "No. of ranks"
RANK: Final = "Rank"
FIELDS: Final = (COMMUNICATOR, MESSAGE_BYTES, RANKS, RANK)
_HEADER_BYTES: Final = 32
_SIZES: Final = {5: 4, 6: 4, 7: 8, 8: 8, 9: 8, 10: 8, 15: 4, 16: 4, 17: 8, 18: 8, 22: 8}
"""Bytes of the types of entry that are integers (NVTX_PAYLOAD_ENTRY_TYPE_…)."""


class Schemas:
    """Where the fields of interest lie in the payloads of each schema.

    Attributes:
        nccl_domains: ids of the domains whose payloads name a communicator.
    """

    def __init__(self, tables: Tables) -> None:
        rows = read_small(
            tables,
            "NVTX_PAYLOAD_SCHEMA_ENTRIES",
            ints=["domainId", "schemaId", "type", "offset"],
            texts=["name"],
        )
        self._places: dict[tuple[int, int], dict[str, tuple[int, int]]] = {}
        self.nccl_domains: set[int] = set()
        offsets = rows.ints("offset").tolist()
        columns = (rows.list(c) for c in ("domainId", "schemaId", "type", "name"))
        for i, (domain, schema, kind, name) in enumerate(zip(*columns, strict=True)):
            if name not in FIELDS or kind not in _SIZES or offsets[i] < 0:
                continue
            self._places.setdefault((domain, schema), {})[name] = (offsets[i], _SIZES[kind])
            if name == COMMUNICATOR:
                self.nccl_domains.add(domain)

    def decode(self, blobs: pa.Array) -> dict[str, tuple[Ints, Bools]]:
        """The fields in binary payloads: values, and where they are given."""
        found = {
            f: (np.zeros(len(blobs), np.int64), np.zeros(len(blobs), np.bool_)) for f in FIELDS
        }
        if not self._places or blobs.null_count == len(blobs):
            return found
        blobs = blobs.cast(pa.binary()) if blobs.type == pa.string() else blobs
        _, offset_buffer, data_buffer = blobs.buffers()
        ends = np.frombuffer(offset_buffer, np.int32, len(blobs) + 1, blobs.offset * 4)
        data = np.frombuffer(data_buffer, np.uint8)
        starts, sizes = ends[:-1].astype(np.int64), np.diff(ends).astype(np.int64)
        rows = np.flatnonzero(np.asarray(blobs.is_valid()) & (sizes >= _HEADER_BYTES))
        domain = _little_endian(data, starts[rows], 4)
        schema = _little_endian(data, starts[rows] + 8, 4)
        for (of_domain, of_schema), places in self._places.items():
            chosen = rows[(domain == of_domain) & (schema == of_schema)]
            for name, (offset, size) in places.items():
                fits = chosen[sizes[chosen] >= _HEADER_BYTES + offset + size]
                at = starts[fits] + _HEADER_BYTES + offset
                found[name][0][fits] = _little_endian(data, at, size)
                found[name][1][fits] = True
        return found


def from_json(texts: pa.Array) -> dict[str, tuple[Ints, Bools]]:
    """The fields in payloads that were exported as JSON text; numbers may have commas and quotation marks."""
    found = {}
    series = pl.Series(texts)
    for name in FIELDS:
        escaped = name.replace("[", r"\[").replace("]", r"\]").replace(".", r"\.")
        digits = series.str.extract(rf'"{escaped}"\s*:\s*"?([0-9][0-9,]*)').str.replace_all(",", "")
        values = digits.cast(pl.UInt64, strict=False)
        has = values.is_not_null().to_numpy()
        found[name] = (values.fill_null(0).to_numpy().view(np.int64), has)
    return found


def _little_endian(data: NDArray[np.uint8], at: Ints, size: int) -> Ints:
    """Numbers of so many bytes at these places; those of 4 bytes are unsigned, of 8 the bits."""
    value = np.zeros(len(at), np.uint64)
    for i in range(size):
        value |= data[at + i].astype(np.uint64) << np.uint64(8 * i)
    return value.view(np.int64)

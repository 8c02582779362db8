"""Which number stands for which string in the Perfetto file?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from trnprof.tracer.formats.perfetto_export.encode import SEQUENCE_ID, packet

NAMES: Final = "event_names"
CATEGORIES: Final = "event_categories"
ARGUMENT_NAMES: Final = "debug_annotation_names"
ARGUMENT_STRINGS: Final = "debug_annotation_string_values"

UNNAMED: Final = "(unnamed)"
_ENTRIES_PER_PACKET: Final = 4096


def clean(text: str | None) -> str:
    """A name that Perfetto shows: never empty, without NUL."""
    return without_nul(text or "") or UNNAMED


def without_nul(text: str) -> str:
    """A text with its NULs made visible: Perfetto's queries end a string there."""
    return text.replace("\0", "␀")


class Interning:
    """The interned strings of one packet sequence, each written once, before its first use."""

    def __init__(self) -> None:
        fields = (NAMES, CATEGORIES, ARGUMENT_NAMES, ARGUMENT_STRINGS)
        self._tables: dict[str, dict[str, int]] = {field: {} for field in fields}
        self._pending: list[tuple[str, str, int]] = []
        self._is_first = True

    def iids(self, field: str, texts: Sequence[str]) -> list[int]:
        """The numbers of some strings; new ones are remembered for ``packets``."""
        table = self._tables[field]
        for text in texts:
            if text not in table:
                table[text] = len(table) + 1
                self._pending.append((field, text, table[text]))
        return [table[text] for text in texts]

    def column(self, field: str, texts: pl.Series) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """The number of each of n strings (0 for null), and whether it is not null.

        Args:
            field: which table of strings.
            texts: String, Categorical or Enum. Only its distinct values are looked at one by one.
        """
        coded = texts.cast(pl.Categorical) if texts.dtype == pl.String else texts
        codes, distinct = coded.to_physical(), coded.drop_nulls().unique(maintain_order=True)
        values = distinct.cast(pl.String).to_list()
        if field == ARGUMENT_STRINGS:
            values = [without_nul(text) for text in values]
        else:
            values = [clean(text) for text in values]
        number = np.zeros(int(codes.max() or 0) + 1, np.uint64)  # type: ignore[arg-type]
        number[distinct.to_physical().to_numpy()] = self.iids(field, values)
        present = codes.is_not_null().to_numpy()
        return np.where(present, number[codes.fill_null(0).to_numpy()], 0), present

    def packets(self) -> bytes:
        """The packets for all strings that were not written yet; the first one begins the sequence."""
        out = []
        while self._is_first or self._pending:
            message = pb.TracePacket(trusted_packet_sequence_id=SEQUENCE_ID)
            message.sequence_flags = (
                pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
                if self._is_first
                else pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            )
            for field, text, iid in self._pending[:_ENTRIES_PER_PACKET]:
                _add(message.interned_data, field, text, iid)
            del self._pending[:_ENTRIES_PER_PACKET]
            self._is_first = False
            out.append(packet(message))
        return b"".join(out)


def _add(interned: pb.InternedData, field: str, text: str, iid: int) -> None:
    entry = getattr(interned, field).add()
    entry.iid = iid
    if field == ARGUMENT_STRINGS:
        entry.str = text.encode()
    else:
        entry.name = text

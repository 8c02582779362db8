"""What do the numbers in an Nsight Systems profile stand for: strings, enumerations, processes, threads?"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from trnprof.tracer.formats.table_groups import picked
from trnprof.tracer.formats.tables import Bools, Ints, Tables, read_small

UNNAMED: Final = "[unnamed]"
_API_VERSION: Final = re.compile(r"_v\d{4,}$")


class Strings:
    """The table StringIds. Code -1 of an id that it does not have stands for UNNAMED, its last word."""

    def __init__(self, tables: Tables) -> None:
        rows = read_small(tables, "StringIds", ints=["id"], texts=["value"])
        ids = rows.ints("id")
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        texts = rows.text("value").take(pa.array(order)).fill_null(UNNAMED)
        self.words: pa.Array = pa.concat_arrays([texts.cast(pa.string()), pa.array([UNNAMED])])
        self._is_dense = bool(len(ids)) and bool((self._ids == np.arange(len(ids))).all())
        self._scratch = np.full(len(self.words), -1, np.int32)

    def codes(self, ids: Ints, has: Bools) -> Ints:
        """Index in ``words`` of each id; the last word's where it is null or unknown."""
        unknown = len(self.words) - 1
        if self._is_dense:
            fits = has & (ids >= 0) & (ids < unknown)
            return np.where(fits, ids, unknown)
        if not unknown:
            return np.zeros(len(ids), np.int64)
        at = np.minimum(np.searchsorted(self._ids, ids), unknown - 1)
        return np.where(has & (self._ids[at] == ids), at, unknown)

    def pick(self, codes: Ints, words: pa.Array | None = None) -> pa.DictionaryArray:
        """The words with these codes; of ``words``, a variant of all words, if it is given."""
        return picked(self.words if words is None else words, codes, self._scratch)

    def word(self, string_id: int | None) -> str | None:
        """One string; None if there is none with this id."""
        if string_id is None:
            return None
        code = int(self.codes(np.array([string_id]), np.ones(1, np.bool_))[0])
        return None if code == len(self.words) - 1 else str(self.words[code].as_py())

    def api_words(self) -> pa.Array:
        """All words as names of CUDA functions: without the version of the function's interface (``_v7000``)."""
        return (
            pl.Series(self.words).str.replace(_API_VERSION.pattern, "").to_arrow().cast(pa.string())
        )


def enum_labels(tables: Tables, table: str, otherwise: dict[int, str]) -> dict[int, str]:
    """Labels of an enumeration as the profile has it (ENUM_… tables), on top of those that are documented."""
    column = "label" if "label" in tables.columns(table) else "name"
    rows = read_small(tables, table, ints=["id"], texts=[column])
    found = zip(rows.list("id"), rows.list(column), strict=True)
    return otherwise | {i: label for i, label in found if i is not None and label}


def process_of(global_id: Ints) -> Ints:
    """What a globalTid or globalPid says of its process: hardware, virtual machine and process id, as one number."""
    return global_id >> 24


def process_id(process: int) -> int:
    """The process id in a number of ``process_of``.

    >>> process_id(int(process_of(np.array([0x0001_0000_6F00_0019]))[0]))
    111
    """
    return process & 0xFFFFFF


def thread_id(global_tid: int) -> int:
    """The thread id in a globalTid."""
    return global_tid & 0xFFFFFF


class People:
    """Names of processes and threads."""

    def __init__(self, tables: Tables, strings: Strings) -> None:
        rows = read_small(tables, "PROCESSES", ints=["globalPid"], texts=["name"])
        keys = process_of(rows.ints("globalPid")).tolist()
        self._processes = dict(zip(keys, rows.list("name"), strict=True))
        rows = read_small(tables, "ThreadNames", ints=["nameId", "globalTid"])
        names = [strings.word(i) for i in rows.list("nameId")]
        self._threads = dict(zip(rows.list("globalTid"), names, strict=True))

    def process(self, process: int) -> str:
        """Name and number of a process."""
        name = self._processes.get(process) or "process"
        return f"{name.rpartition('/')[2] or name} {process_id(process)}"

    def thread(self, global_tid: int) -> str:
        """Process, name and number of a thread."""
        process = int(process_of(np.array([global_tid]))[0])
        name = self._threads.get(global_tid)
        label = f"thread {thread_id(global_tid)}"
        return f"{self.process(process)}: {label}" + (f" ({name})" if name else "")

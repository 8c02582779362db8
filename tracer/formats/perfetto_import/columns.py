"""Which columns do annotations become, and what text is left of them?

Annotations with the names and types of trnprof's own columns become these columns, which is how trnprof's export comes back; all
others become attributes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from trnprof.tracer.formats.perfetto_import.bodies import FIELD
from trnprof.tracer.formats.perfetto_import.state import (
    ARGUMENT_NAMES,
    ARGUMENT_STRINGS,
    Strings,
)
from trnprof.tracer.formats.protobuf_wire import Ints, texts
from trnprof.tracer.formats.trace_json.value_tokens import (
    BOOL,
    DOUBLE,
    INT,
    KEY,
    KEY_TEXT,
    NONE,
    TEXT,
    UINT,
    WORD,
    Lifted,
    Tokens,
    Vocabulary,
)
from trnprof.tracer.formats.xplane.names import source_line
from trnprof.tracer.schema import CATEGORIES, MEMORIES, WAIT_REASONS

_FIELDS: Final = {f.number: f.name for f in pb.TrackEvent.DESCRIPTOR.fields}
_OP_TEXTS: Final = ("op", "module", "phase", "shapes", "source")
_INT32: Final = 2**31 - 1
_MOST_DTYPES: Final = 100


def resolved(tokens: Tokens, scopes: Ints, strings: Strings) -> Tokens:
    """Tokens whose keys and words are numbers of strings, -1 where nothing describes them; a copy.

    Args:
        tokens: of n events, with iids; keys that are written out become numbers, too.
        scopes: of the events.
        strings: all that were met.
    """
    scope = np.repeat(scopes, np.diff(tokens.starts))
    kind, a = tokens.kind.copy(), tokens.a.copy()
    written = np.flatnonzero(kind == KEY_TEXT)
    fields = np.flatnonzero((kind == KEY) & (tokens.b == FIELD))
    for number in np.unique(a[fields]).tolist():
        name = f"TrackEvent.{_FIELDS.get(number, number)}"
        a[fields[tokens.a[fields] == number]] = strings.number(name)
    for what, table in ((KEY, ARGUMENT_NAMES), (WORD, ARGUMENT_STRINGS)):
        at = np.flatnonzero((kind == what) & ((what == WORD) | (tokens.b != FIELD)))
        a[at] = strings.tables[table].words(scope[at], a[at].view(np.uint64))
    if len(written):
        keys = texts(tokens.data, a[written], tokens.b[written]).dictionary_encode()
        numbers = np.array([strings.number(k) for k in keys.dictionary.to_pylist()], np.int64)
        a[written], kind[written] = numbers[keys.indices.to_numpy()], KEY
    return Tokens(tokens.data, tokens.starts, kind, a, tokens.b)


def rendered(tokens: Tokens, strings: Strings) -> pl.Series:
    """The JSON of what was not lifted out; the tokens cannot be used afterwards."""
    at = np.flatnonzero((tokens.kind == KEY) | (tokens.kind == WORD))
    used, index = _distinct(tokens.a[at], len(strings.words))
    words = [strings.words[u] if u >= 0 else "?" for u in used.tolist()]
    tokens.a[at] = index
    return pl.Series(tokens.render(Vocabulary.of(words)))


def words_of(strings: Strings, numbers: Ints) -> pl.Series:
    """Strings by number, null for -1."""
    used, index = _distinct(numbers, len(strings.words))
    words = [strings.words[u] if u >= 0 else None for u in used.tolist()]
    column = pl.Series(words, dtype=pl.String)
    return column.gather(index) if len(index) else column


def _distinct(numbers: Ints, bound: int) -> tuple[Ints, Ints]:
    """The distinct of some numbers from -1 to ``bound`` - 1, ascending, and the place of each among them: without sorting."""
    place = np.zeros(bound + 1, np.int64)
    place[numbers + 1] = 1
    used = np.flatnonzero(place)
    place[used] = np.arange(len(used))
    return used - 1, place[numbers + 1]


def spread(count: int, rows: Ints, values: Any, type_: pa.DataType) -> pa.Array:
    """A column of ``count`` rows with values in some of them and null in the others."""
    out, missing = np.zeros(count, np.asarray(values).dtype), np.ones(count, np.bool_)
    out[rows], missing[rows] = values, False
    return pa.array(out, mask=missing).cast(type_)


def chosen_of(values: pl.Series, index: Ints) -> pl.Series:
    """Values by index, null for -1."""
    return values.gather(pl.Series(index).replace(-1, None))


class Operations:
    """Operations by what trnprof's export says of them: name, module, phase, shapes, source."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str | None, ...], int] = {}

    def column(self, tokens: Tokens, strings: Strings, count: int) -> pa.Array:
        """``op_id`` of n events, whose annotations are taken out."""
        names = tokens.lift(strings.number("op"), keep=True)
        has = names.kind == WORD
        if not has.any():
            return pa.nulls(count, pa.uint32())
        frame = pl.DataFrame({"row": names.rows[has]})
        for name in _OP_TEXTS:
            lifted = _take(tokens, strings.number(name), lambda kind, _: kind == WORD)
            part = pl.DataFrame({"row": lifted.rows, name: lifted.a}).unique("row", keep="last")
            frame = frame.join(part, on="row", how="left")
        distinct = frame.select(_OP_TEXTS).unique(maintain_order=True)
        rows = [
            tuple(strings.words[i] if i is not None and i >= 0 else None for i in row)
            for row in distinct.iter_rows()
        ]
        numbers = [self._numbers.setdefault(row, len(self._numbers)) for row in rows]
        joined = frame.join(
            distinct.with_columns(op_id=pl.Series(numbers, dtype=pl.Int64)),
            on=_OP_TEXTS,
            nulls_equal=True,
            how="left",
        )
        return spread(count, joined["row"].to_numpy(), joined["op_id"].to_numpy(), pa.uint32())

    def table(self) -> dict[str, list[Any]]:
        """Columns of ``ops``; empty if there are none."""
        ops = list(self._numbers)
        if not ops:
            return {}
        places = [source_line(op[4]) for op in ops]
        return {
            "op_id": list(range(len(ops))),
            "kind": ["aten"] * len(ops),
            "name": [op[0] or "(unnamed)" for op in ops],
            "module_path": [op[1] for op in ops],
            "phase": [op[2] for op in ops],
            "input_shapes": [op[3] for op in ops],
            "source_file": [p[0] for p in places],
            "source_line": [p[1] for p in places],
        }


def event_columns(tokens: Tokens, strings: Strings, count: int) -> dict[str, pa.Array]:
    """The columns of n events that are annotations of the same name; these are taken out where their values fit."""
    key = strings.number
    columns: dict[str, pa.Array] = {}
    for name, type_, most in (
        ("step", pa.int32(), _INT32),
        ("bytes", pa.int64(), 2**63 - 1),
        ("descriptor_bytes", pa.int32(), _INT32),
    ):
        columns[name] = spread(count, *_whole_numbers(tokens, key(name), most), type_)
    ready = _take(tokens, key("ready_ns"), lambda kind, _: kind == INT)
    columns["ready_ns"] = spread(count, ready.rows, ready.a, pa.int64())
    flops = _take(tokens, key("flops"), lambda kind, _: kind == DOUBLE).floats()
    columns["flops"] = spread(count, *flops, pa.float64())
    truths = _take(tokens, key("is_transpose"), lambda kind, _: kind == BOOL)
    columns["is_transpose"] = spread(count, truths.rows, truths.a != 0, pa.bool_())
    for name, words in (
        ("dtype", None),
        ("source_memory", MEMORIES),
        ("target_memory", MEMORIES),
        ("wait_reason", WAIT_REASONS),
    ):
        columns[name] = _word_column(tokens, strings, name, words, count)
    return columns


def _whole_numbers(tokens: Tokens, key: int, most: int) -> tuple[Ints, Ints]:
    def fits(kind: Any, bits: Any) -> Any:
        return ((kind == INT) | (kind == UINT)) & (bits >= 0) & (bits <= most)

    return _take(tokens, key, fits).integers()


def _word_column(
    tokens: Tokens, strings: Strings, name: str, words: tuple[str, ...] | None, count: int
) -> pa.Array:
    """A column of few distinct interned strings."""
    key = strings.number(name)
    found = _take(tokens, key, lambda kind, _: kind == WORD, keep=True)
    used = _distinct(found.a, len(strings.words))[0]
    used = used[used >= 0]
    if words is None:
        used = used[:_MOST_DTYPES]
    else:
        used = used[[strings.words[u] in words for u in used.tolist()]]
    lifted = _take(tokens, key, lambda kind, bits: (kind == WORD) & np.isin(bits, used))
    numbers = np.full(count, -1, np.int64)
    numbers[lifted.rows] = lifted.a
    return words_of(strings, numbers).to_arrow().cast(pa.string()).dictionary_encode()


def _take(
    tokens: Tokens, key: int, accept: Callable[[Any, Any], Any], *, keep: bool = False
) -> Lifted:
    """Values of a key that are accepted, a function of kind and bits; the others stay."""
    at = np.flatnonzero((tokens.kind == KEY) & (tokens.a == key))
    at = at[at + 1 < len(tokens.kind)]
    at = at[accept(tokens.kind[at + 1], tokens.a[at + 1])]
    rows = np.searchsorted(tokens.starts, at, side="right") - 1
    found = Lifted(rows, tokens.kind[at + 1], tokens.a[at + 1], tokens.b[at + 1])
    if not keep:
        tokens.kind[at] = tokens.kind[at + 1] = NONE
    return found


def wrapped(tokens: Tokens, strings: Strings) -> tuple[Ints, pl.Series]:
    """Attributes that trnprof exported as one annotation of that name: rows that say nothing else, and the JSON objects they hold."""
    filled = np.concatenate([[0], np.cumsum(tokens.kind != NONE)])
    count = filled[tokens.starts[1:]] - filled[tokens.starts[:-1]]
    at = np.flatnonzero((tokens.kind == KEY) & (tokens.a == strings.number("attributes")))
    at = at[at + 1 < len(tokens.kind)]
    at = at[tokens.kind[at + 1] == TEXT]
    rows = np.searchsorted(tokens.starts, at, side="right") - 1
    at, rows = at[count[rows] == 2], rows[count[rows] == 2]
    found = pl.Series(texts(tokens.data, tokens.a[at + 1], tokens.b[at + 1]), dtype=pl.String)
    is_object = found.str.starts_with("{") & found.str.json_path_match("$").is_not_null()
    return rows[is_object.to_numpy()], found.filter(is_object)


def split_categories(
    categories: pl.Series, is_instant: NDArray[np.bool_]
) -> tuple[pl.Series, pl.Series]:
    """Category of each event, and as a JSON object the event's own categories where they are other ones."""
    is_known = categories.is_in(CATEGORIES).fill_null(False)
    other = pl.when(pl.Series(is_instant)).then(pl.lit("marker")).otherwise(pl.lit("host"))
    category = pl.select(pl.when(is_known).then(categories).otherwise(other)).to_series()
    foreign = categories.set(is_known, None)
    distinct = foreign.drop_nulls().unique()
    if not len(distinct):
        return category, foreign
    objects = [json.dumps({"categories": c}, ensure_ascii=False) for c in distinct.to_list()]
    new = pl.Series([o.replace('{"categories": ', '{"categories":', 1) for o in objects])
    own = foreign.replace_strict(distinct, new, default=None, return_dtype=pl.String)
    return category, own


def joined_objects(first: pl.Series, second: pl.Series) -> pl.Series:
    """JSON objects with the members of both; null where neither is."""
    return pl.select(
        pl.when(second.is_null())
        .then(first)
        .when(first.is_null())
        .then(second)
        .otherwise(first.str.head(-1) + "," + second.str.slice(1))
    ).to_series()

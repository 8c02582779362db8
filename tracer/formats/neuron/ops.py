"""Which operation does each instruction of a Neuron profile implement, up to the framework's module?

The ladder of the compiler: framework node ▸ framework operation ▸ HLO ▸ Penguin ▸ BIR instruction, joined by the ``raw_*_id``
fields that every level has of those above. Below it stands one operation for each combination of BIR instruction, HLO name, layer and
place in the source that instructions name; events refer to these. Without debug information the ladder is missing, and names and
layers of the instructions themselves make the operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from trnprof.tracer.formats.neuron.source_places import SourcePlaces
from trnprof.tracer.formats.neuron.tables import ProfileTables
from trnprof.tracer.formats.neuron.text import place
from trnprof.tracer.ingest.stage import Stage

_LADDER: Final = (
    ("FrameworkInstruction", "raw_framework_id", "framework_name", "aten"),
    ("HloInstruction", "raw_hlo_id", "hlo_name", "kernel"),
    ("PenguinInstruction", "raw_penguin_id", "penguin_name", "kernel"),
    ("BirInstruction", "raw_bir_id", "bir_name", "kernel"),
)
_LEAF: Final = ("parent_id", "hlo_name", "layer", "location")
MAX_LEAVES: Final = 1_000_000
_MAX_DEPTH: Final = 64


class Operations:
    """The operations of one profile, numbered as they are met."""

    def __init__(self, stage: Stage, places: SourcePlaces | None = None) -> None:
        """None yet.

        Args:
            stage: where they go.
            places: where instructions stand in the source.
        """
        self._stage = stage
        self._places = places or SourcePlaces()
        self.count = 0
        self._by_raw: dict[str, pl.DataFrame] = {}
        self._modules = pl.DataFrame(schema={"path": pl.String, "parent_id": pl.UInt32})
        self._nodes = pl.DataFrame(schema={"node": pl.String, "op": pl.UInt32})
        self._leaves = pl.DataFrame(
            schema={**dict.fromkeys(_LEAF, pl.String), "parent_id": pl.UInt32, "op_id": pl.UInt32}
        )
        self._is_full = False

    def load_ladder(self, tables: ProfileTables) -> None:
        """Take the hierarchy tables of a profile."""
        self._load_modules(tables)
        for table, raw, name, kind in _LADDER:
            known = [*self._by_raw, raw]
            rows = tables.frame(table, [*dict.fromkeys([*known, name])])
            rows = rows.filter(pl.col(raw).is_not_null()).unique(
                raw, keep="first", maintain_order=True
            )
            if not rows.height:
                continue
            path = pl.col(name).fill_null("").str.strip_chars("/")
            rows = self._with_parent(rows, [*self._by_raw]).with_columns(path=path)
            above = path.str.replace(r"/?[^/]*$", "")
            if kind == "aten":
                rows = self._with_module(rows.with_columns(path=above)).with_columns(path=path)
            ids = self.add(
                kind=kind,
                name=rows.select(path.str.extract(r"([^/]*)$").replace("", kind)).to_series(),
                parent_id=rows["parent_id"],
                module_path=rows.select(_dotted(above)).to_series() if kind == "aten" else None,
            )
            self._by_raw[raw] = rows.select(raw, op=ids)

    def of(self, rows: pl.DataFrame) -> pl.Series:
        """The operation of each row.

        Args:
            rows: with any of the raw ids, ``hlo_name``, ``layer``, ``nki_source_location``, … of the table Instruction.

        Returns:
            op_id, null where a row names nothing.
        """
        keys = self._with_parent(rows, [*self._by_raw]).select("parent_id")
        text = pl.String()
        empty = pl.Series([None], dtype=text).new_from_index(0, rows.height)
        keys = keys.with_columns(
            *(
                _nonempty(rows[name] if name in rows.columns else empty).alias(name)
                for name in ("hlo_name", "layer")
            ),
            self._places.of(rows).alias("location"),
        )
        self._add_leaves(
            keys.unique(maintain_order=True).filter(~pl.all_horizontal(pl.all().is_null()))
        )
        found = keys.join(
            self._leaves, on=_LEAF, how="left", nulls_equal=True, maintain_order="left"
        )
        return found["op_id"]

    def of_rung(self, table: str, rows: pl.DataFrame) -> pl.Series:
        """The operation that each row of a table of the ladder is itself; null where it has none."""
        if table == "FrameworkNode":
            return rows.select(node="node_name").join(
                self._nodes, on="node", how="left", maintain_order="left"
            )["op"]
        raw = next(raw for name, raw, _, _ in _LADDER if name == table)
        if raw not in self._by_raw:
            return pl.Series([None], dtype=pl.UInt32).new_from_index(0, rows.height)
        return rows.select(raw).join(self._by_raw[raw], on=raw, how="left", maintain_order="left")[
            "op"
        ]

    def add(
        self,
        *,
        kind: str,
        name: pl.Series,
        parent_id: pl.Series | None = None,
        **columns: pl.Series | None,
    ) -> pl.Series:
        """Append operations of one kind; their ids.

        Args:
            kind: of ``ops``.
            name: one each.
            parent_id: one each, or None.
            columns: further columns of ``ops``; None for those that are null.
        """
        ids = pl.Series("op", range(self.count, self.count + len(name)), pl.UInt32)
        self.count += len(name)
        if len(name):
            given = {"parent_id": parent_id, **columns}
            kinds = pl.Series([kind]).new_from_index(0, len(name))
            rows = {"op_id": ids, "kind": kinds, "name": name}
            self._stage.add_ops(rows | {k: v for k, v in given.items() if v is not None})
        return ids

    def _load_modules(self, tables: ProfileTables) -> None:
        rows = tables.frame("FrameworkNode", ["node_name", "parent_name"])
        rows = rows.filter(pl.col("node_name").is_not_null()).unique(
            "node_name", keep="first", maintain_order=True
        )
        if not rows.height:
            return
        rows = _with_paths(rows)
        ids = pl.Series(range(self.count, self.count + rows.height), dtype=pl.UInt32)
        own = rows.select(parent_name="node_name", parent_id=ids)
        placed = rows.join(own, on="parent_name", how="left", maintain_order="left")
        is_own = pl.col("parent_name") == pl.col("node_name")
        placed = placed.with_columns(parent_id=pl.when(~is_own).then(pl.col("parent_id")))
        self._nodes = rows.select(node="node_name", op=ids)
        self._modules = rows.select("path", parent_id=ids).unique("path", keep="first")
        self.add(
            kind="module",
            name=placed.select(pl.col("path").str.extract(r"([^/]*)$")).to_series(),
            parent_id=placed["parent_id"],
            module_path=placed.select(_dotted(pl.col("path"))).to_series(),
        )

    def _with_parent(self, rows: pl.DataFrame, raws: Sequence[str]) -> pl.DataFrame:
        """Add ``parent_id``: the lowest level above that knows the row's raw id."""
        found: list[pl.Series] = []
        for raw in reversed(raws):
            if raw in rows.columns:
                ids = rows.select(pl.col(raw).cast(pl.Int64, strict=False))
                known = self._by_raw[raw].with_columns(pl.col(raw).cast(pl.Int64))
                found.append(ids.join(known, on=raw, how="left", maintain_order="left")["op"])
        if not found:
            return rows.with_columns(parent_id=pl.lit(None, pl.UInt32))
        return rows.with_columns(pl.select(pl.coalesce(found).alias("parent_id")).to_series())

    def _with_module(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Fill ``parent_id`` where it is null with the framework node of the row's ``path``."""
        modules = self._modules.rename({"parent_id": "module_id"})
        joined = rows.join(modules, on="path", how="left", maintain_order="left")
        return joined.with_columns(parent_id=pl.coalesce("parent_id", "module_id")).drop(
            "module_id"
        )

    def _add_leaves(self, keys: pl.DataFrame) -> None:
        new = keys.join(self._leaves, on=_LEAF, how="anti", nulls_equal=True, maintain_order="left")
        new = self._with_room(new)
        if not new.height:
            return
        above = pl.col("layer").str.strip_chars("/").str.replace(r"/?[^/]*$", "")
        named = new.with_columns(path=above, asked="parent_id")
        named = self._with_module(named).with_columns(*_leaf_names())
        files = [place(text) for text in named["location"].to_list()]
        named = named.with_columns(
            module_path=_dotted(above),
            source_file=pl.Series([f for f, _ in files], dtype=pl.String),
            source_line=pl.Series([n for _, n in files], dtype=pl.Int32),
        )
        for (kind,), part in named.group_by("kind", maintain_order=True):
            own = ("parent_id", "module_path", "source_file", "source_line")
            ids = self.add(kind=str(kind), name=part["name"], **{c: part[c] for c in own})
            leaves = part.with_columns(parent_id="asked", op_id=ids).select(self._leaves.columns)
            self._leaves = pl.concat([self._leaves, leaves])

    def _with_room(self, new: pl.DataFrame) -> pl.DataFrame:
        room = MAX_LEAVES - self._leaves.height
        if new.height > room and not self._is_full:
            self._is_full = True
            self._stage.audit.add(
                "too_many_operations",
                "warning",
                self._stage.label,
                f"more than {MAX_LEAVES:,} combinations of operation and place in the source; later ones were left out",
                unreliable="operators",
            )
        return new.head(room)


def _leaf_names() -> list[pl.Expr]:
    """``name`` and ``kind`` of the operations that instructions refer to."""
    name = pl.coalesce(
        "hlo_name",
        pl.col("layer").str.strip_chars("/").str.extract(r"([^/]+)$"),
        pl.col("location").str.extract(r"([^/\\]+)$"),
        pl.lit("instruction"),
    )
    is_only_placed = pl.col("hlo_name").is_null() & pl.col("location").is_not_null()
    kind = (
        pl.when(pl.col("layer").is_not_null())
        .then(pl.lit("aten"))
        .when(is_only_placed)
        .then(pl.lit("source_line"))
        .otherwise(pl.lit("kernel"))
    )
    return [name.alias("name"), kind.alias("kind")]


def _nonempty(column: pl.Series) -> pl.Series:
    text = column.cast(pl.String)
    return pl.select(pl.when(text.str.len_bytes() > 0).then(text)).to_series()


def _dotted(path: pl.Expr) -> pl.Expr:
    """``Model/layers.0/mlp`` → ``Model.layers.0.mlp``; null for an empty path."""
    dotted = path.str.strip_chars("/").str.replace_all("/", ".", literal=True)
    return pl.when(dotted.str.len_bytes() > 0).then(dotted)


def _with_paths(rows: pl.DataFrame) -> pl.DataFrame:
    """Add ``path`` of each framework node: its name where that is a path already, else the names from the root down to it."""
    own = rows.select(up="node_name", above="parent_name").unique("up", keep="first")
    bare = pl.col("node_name").str.strip_chars("/")
    is_path = pl.col("node_name").str.contains("/", literal=True)
    rows = rows.with_columns(
        path=bare,
        up=pl.when(~is_path & (pl.col("parent_name") != pl.col("node_name"))).then(
            pl.col("parent_name")
        ),
    )
    for _ in range(_MAX_DEPTH):
        if rows["up"].null_count() == rows.height:
            break
        rows = rows.join(own, on="up", how="left", maintain_order="left")
        grown = pl.col("up").str.strip_chars("/") + "/" + pl.col("path")
        is_known = pl.col("up").is_not_null() & pl.col("up").is_in(own["up"].implode())
        at_top = (
            pl.col("above").is_null()
            | (pl.col("above") == pl.col("up"))
            | pl.col("up").str.contains("/", literal=True)
        )
        rows = rows.with_columns(
            path=pl.when(is_known).then(grown).otherwise(pl.col("path")),
            up=pl.when(is_known & ~at_top).then(pl.col("above")),
        ).drop("above")
    return rows.drop("up")

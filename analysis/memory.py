"""How full is each memory over time, and with what? From the counters that a trace has of memories.

A *gauge* is one memory of one place: the HBM of an emulated rank, the SBUF of its core, an HBM of a Neuron system profile, what PyTorch's allocator
holds of a GPU. Its *total* is a counter, and so is each *use* of it (parameters, …). A counter holds its value until its next sample.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from trnprof.analysis.metrics import ratio
from trnprof.tracer.memory_names import HBM_BYTES, HBM_USES, SBUF_BYTES, hbm_counter
from trnprof.tracer.reader import Trace

FULL: Final = 0.9
"""Above this share of its capacity a memory counts as nearly full."""

_NEURON_HBM: Final = r"^(?<memory>(?:.* )?HBM [^:]*): (?<use>.+)$"
_ALLOCATOR: Final = r"^(?<memory>.*memory) (?<use>reserved|allocated)$"
_ON_CHIP: Final = r"^(?<memory>SBUF|PSUM) use$"
ALLOCATED: Final = "allocated"


def gauges(trace: Trace, clock_id: int, rank: int | None = None) -> pl.DataFrame:
    """The counters of memories on a clock.

    Args:
        trace: the trace.
        clock_id: of the device.
        rank: only of this one, and of none.

    Returns:
        One row a counter: track_id, gauge (int, the same for a total and its uses), memory, use (null: the total), rank, replica_count, unit
        (``B``, or ``fraction`` of the memory), capacity (in that unit, null where unknown).
    """
    kept = pl.lit(True) if rank is None else (pl.col("rank") == rank) | pl.col("rank").is_null()
    name = pl.col("name")
    of_use = {hbm_counter(use): use for use in HBM_USES}
    neuron, allocator = (name.str.extract_groups(p).struct for p in (_NEURON_HBM, _ALLOCATOR))
    on_chip = name.str.extract(_ON_CHIP.replace("?<memory>", ""))
    emulated = pl.when((name == HBM_BYTES) | name.is_in(list(of_use))).then(pl.lit("HBM"))
    is_total = neuron.field("use") == "total"
    rows = (
        trace.tracks.filter(
            (pl.col("kind").cast(pl.String) == "counter")
            & pl.col("unit").is_in(["B", "fraction"])
            & (pl.col("clock_id") == clock_id)
            & pl.col("replica_of").is_null()
            & kept
        )
        .unique("track_id", keep="first", maintain_order=True)
        .with_columns(
            memory=pl.coalesce(
                emulated,
                pl.when(name == SBUF_BYTES).then(pl.lit("SBUF")),
                neuron.field("memory"),
                allocator.field("memory"),
                on_chip,
            ),
            use=pl.coalesce(
                name.replace_strict(of_use, default=None, return_dtype=pl.String),
                pl.when(~is_total).then(neuron.field("use")),
                pl.when(allocator.field("use") == ALLOCATED).then(allocator.field("use")),
            ),
        )
        .filter(pl.col("memory").is_not_null())
    )
    place = pl.struct("memory", "rank", "host", "chip", "core")
    return rows.select(
        "track_id",
        gauge=place.rank("dense").cast(pl.Int64),
        memory="memory",
        use="use",
        rank="rank",
        replica_count="replica_count",
        unit="unit",
        capacity=_capacity(trace),
    )


def _capacity(trace: Trace) -> pl.Expr:
    """What a memory holds at most, as far as the trace says: the emulated ones, and that of a known GPU."""
    emulated = trace.manifest.get("emulation") or {}
    core, chip = (trace.system.get(part) or {} for part in ("core", "chip"))
    hbm = (emulated.get("hbm") or {}).get("capacity_bytes")
    sbuf = core.get("sbuf_partitions", 0) * core.get("sbuf_bytes_per_partition", 0) or None
    gpu = None if emulated else chip.get("hbm_bytes")
    known = {"HBM": hbm, "SBUF": sbuf if emulated else None}
    memory = pl.col("memory")
    return (
        pl.when(pl.col("unit") == "fraction")
        .then(1.0)
        .when(memory.str.contains(r"^GPU \d+ memory$"))
        .then(pl.lit(gpu, pl.Float64))
        .otherwise(memory.replace_strict(known, default=None, return_dtype=pl.Float64))
    )


def levels(trace: Trace, known: pl.DataFrame, start_ns: int, end_ns: int) -> pl.DataFrame:
    """What the counters of ``gauges`` hold between two times, one row a piece of time in which one does not change.

    Args:
        trace: the trace.
        known: of ``gauges``.
        start_ns: of the window; the value from before holds on.
        end_ns: of it.

    Returns:
        track_id, start_ns, end_ns (both in the window), value; by track and time.
    """
    held = (
        trace.counters.filter(
            pl.col("track_id").is_in(known["track_id"].implode())
            & (pl.col("timestamp_ns") <= end_ns)
        )
        .select("track_id", at="timestamp_ns", value="value")
        .collect(engine="streaming")
        .sort("track_id", "at", maintain_order=True)
    )
    until = pl.col("at").shift(-1).over("track_id").fill_null(end_ns)
    return held.select(
        "track_id",
        start_ns=pl.col("at").clip(lower_bound=start_ns),
        end_ns=until,
        value="value",
        is_inside=(pl.col("at") >= start_ns) | (until > start_ns),
    ).filter("is_inside").drop("is_inside")  # fmt: skip


def peaks(known: pl.DataFrame, held: pl.DataFrame) -> pl.DataFrame:
    """Each memory when it is fullest, and how long it is nearly full.

    Returns:
        One row a gauge that has a total, the fullest first: track_id, gauge, memory, rank, replica_count, unit, capacity, peak, at_ns (when
        it first is so full), mean (over time), share (of capacity), full_ns and full_share (time above FULL of the capacity; null where it is
        unknown), near_peak_share (of time above FULL of the peak).
    """
    totals = known.filter(pl.col("use").is_null()).drop("use")
    length = pl.col("end_ns") - pl.col("start_ns")
    pieces = held.join(totals.select("track_id", "capacity"), on="track_id").with_columns(
        length=length, peak=pl.col("value").max().over("track_id")
    )
    above = pl.col("value") > FULL * pl.col("capacity")
    found = pieces.group_by("track_id").agg(
        pl.col("peak").first(),
        at_ns=pl.col("start_ns").filter(pl.col("value") == pl.col("peak")).min(),
        mean=ratio((pl.col("value") * pl.col("length")).sum(), pl.col("length").sum()),
        total_ns=pl.col("length").sum(),
        full_ns=pl.when(pl.col("capacity").first() > 0).then(pl.col("length").filter(above).sum()),
        near_ns=pl.col("length").filter(pl.col("value") > FULL * pl.col("peak")).sum(),
    )
    return (
        totals.join(found, on="track_id")
        .with_columns(
            share=ratio(pl.col("peak"), pl.col("capacity")),
            full_share=ratio(pl.col("full_ns"), pl.col("total_ns")),
            near_peak_share=ratio(pl.col("near_ns"), pl.col("total_ns")),
        )
        .drop("total_ns", "near_ns")
        .sort(
            pl.col("memory").str.starts_with("HBM") | pl.col("memory").str.starts_with("GPU"),
            pl.col("share").fill_null(0.0),
            "peak",
            "gauge",
            descending=[True, True, True, False],
        )
    )


def at_instant(known: pl.DataFrame, held: pl.DataFrame, gauge: int, at_ns: int) -> pl.DataFrame:
    """What a memory holds at a time, by use.

    Returns:
        use, value; the most first, without those that hold nothing.
    """
    uses = known.filter((pl.col("gauge") == gauge) & pl.col("use").is_not_null())
    return (
        held.filter(pl.col("start_ns") <= at_ns)
        .join(uses.select("track_id", "use"), on="track_id")
        .group_by("track_id", maintain_order=True)
        .agg(pl.col("use").first(), pl.col("value").last())
        .filter(pl.col("value") > 0)
        .select("use", "value")
        .sort("value", "use", descending=[True, False])
    )


def timeline(
    known: pl.DataFrame, held: pl.DataFrame, gauge: int, start_ns: int, end_ns: int, buckets: int
) -> pl.DataFrame:
    """A memory over equal buckets of time.

    Args:
        known: of ``gauges``.
        held: of ``levels``.
        gauge: which memory.
        start_ns: of the window.
        end_ns: of it.
        buckets: at most so many.

    Returns:
        One row a bucket: at_ns (its start), highest and mean (of the total), and by name of use what it holds at most in the bucket. A bucket
        before the first sample is null.
    """
    width = max(1, -(-(end_ns - start_ns) // buckets))
    count = max(1, -(-(end_ns - start_ns) // width))
    mine = known.filter(pl.col("gauge") == gauge).select("track_id", pl.col("use").fill_null(""))
    placed = held.join(mine, on="track_id").with_columns(
        bucket=((pl.col("start_ns") - start_ns) // width).clip(0, count - 1),
        last=((pl.col("end_ns") - 1 - start_ns) // width).clip(0, count - 1),
    )
    # of many samples few hold on into another bucket
    is_one = pl.col("last") <= pl.col("bucket")
    several = placed.filter(~is_one).with_columns(
        bucket=pl.int_ranges("bucket", pl.col("last") + 1)
    )
    pieces = (
        pl.concat([placed.filter(is_one), several.explode("bucket", empty_as_null=False)])
        .with_columns(bucket_start=start_ns + pl.col("bucket") * width)
        .with_columns(
            length=(
                pl.min_horizontal("end_ns", pl.col("bucket_start") + width)
                - pl.max_horizontal("start_ns", "bucket_start")
            ).clip(lower_bound=0)
        )
    )
    merged = pieces.group_by("bucket", "use").agg(
        highest=pl.col("value").max(),
        mean=ratio((pl.col("value") * pl.col("length")).sum(), pl.col("length").sum()),
    )
    total = merged.filter(pl.col("use") == "").drop("use")
    uses = merged.filter(pl.col("use") != "").sort("use", "bucket")
    wide = total
    if uses.height:
        wide = total.join(uses.pivot("use", index="bucket", values="highest"), on="bucket", how="left")  # fmt: skip
    every = pl.DataFrame({"bucket": range(count)}, schema={"bucket": pl.Int64})
    return (
        every.join(wide, on="bucket", how="left")
        .sort("bucket")
        .with_columns(at_ns=start_ns + pl.col("bucket") * width)
        .drop("bucket")
    )


def fragmentation(known: pl.DataFrame, held: pl.DataFrame) -> pl.DataFrame:
    """What an allocator reserves and does not hand out.

    Returns:
        One row a memory with both counters: memory, rank, reserved, allocated (both when most is reserved, and of that when most is
        allocated), unused_share (of what is reserved then), highest_unused (bytes reserved and not allocated at most), at_ns.
    """
    reserved = known.filter(pl.col("use").is_null())
    allocated = known.filter(pl.col("use") == ALLOCATED).select("gauge", allocated_id="track_id")
    pairs = reserved.join(allocated, on="gauge")
    if not pairs.height:
        return pl.DataFrame(schema=_FRAGMENTATION)
    names = pairs.select("gauge", "memory", "rank", "track_id")
    upper = held.join(names, on="track_id").select("gauge", "start_ns", reserved="value")
    lower = held.join(pairs.select("gauge", track_id="allocated_id"), on="track_id").select(
        "gauge", "start_ns", allocated="value"
    )
    both = (
        pl.concat([upper, lower], how="diagonal")
        .sort("gauge", "start_ns", maintain_order=True)
        .with_columns(pl.col("reserved", "allocated").forward_fill().over("gauge"))
        .group_by("gauge", "start_ns", maintain_order=True)
        .agg(pl.col("reserved", "allocated").last())
        .drop_nulls()
        .with_columns(unused=pl.col("reserved") - pl.col("allocated"))
    )
    order = pl.struct("reserved", "allocated")
    return (
        both.group_by("gauge")
        .agg(
            pl.col("reserved", "allocated", "start_ns").sort_by(order, descending=True).first(),
            highest_unused=pl.col("unused").max(),
        )
        .join(names.drop("track_id"), on="gauge")
        .select(
            "memory",
            pl.col("rank").cast(pl.Int64),
            "reserved",
            "allocated",
            unused_share=ratio(pl.col("reserved") - pl.col("allocated"), pl.col("reserved")),
            highest_unused="highest_unused",
            at_ns="start_ns",
        )
        .sort("memory", "rank")
    )


_FRAGMENTATION: Final = {
    "memory": pl.String,
    "rank": pl.Int64,
    "reserved": pl.Float64,
    "allocated": pl.Float64,
    "unused_share": pl.Float64,
    "highest_unused": pl.Float64,
    "at_ns": pl.Int64,
}

"""Which parts of the machine are not as their peers? Slow ranks and chips, slow links, ranks that begin late."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from trnprof.analysis.collective_calls import collective_parts
from trnprof.analysis.findings.case import Case
from trnprof.analysis.findings.finding import Finding
from trnprof.analysis.findings.thresholds import limit
from trnprof.analysis.findings.work import begins
from trnprof.analysis.step_graph import StepGraph
from trnprof.analysis.stragglers import stragglers
from trnprof.analysis.whatif.changes import added_by_links, combined
from trnprof.analysis.whatif.retime import Changes
from trnprof.tracer.units import format_ns, format_percent, format_rate

SLOW: Final = "slow-chip"
LINK: Final = "slow-link"
LATE: Final = "late-rank"
LATE_MOST: Final = 4


def find(case: Case) -> list[Finding]:
    """Slow chips (with their links), other slow links, late ranks."""
    slow = case.times.slowness.filter(pl.col("slowness") >= limit("slow_ratio"))
    links = _link_rates(case)
    lame = links.filter(pl.col("rate_ratio") <= limit("link_rate_ratio"))
    found, done = [], set()
    for name, members in _things(case, slow):
        chips = {int(name.split()[1])} if name.startswith("chip") else set()
        own = lame.filter(pl.col("ends").list.set_intersection(sorted(chips)).list.len() > 0)
        done |= set(own["track_id"].to_list())
        found.append(_slow(case, name, members, own, links))
    rest = lame.filter(~pl.col("track_id").is_in(list(done)))
    found += [
        _link(case, str(key[0]), str(key[1]), rows, links)
        for key, rows in rest.group_by("pair", "tier", maintain_order=True)
    ]
    late = _late(case) if case.trace.is_simulation else _stragglers(case)
    return [*found, *late]


def _things(case: Case, slow: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """Chips all of whose ranks are slow, those that repeat a slow one too; then the ranks that are on no such chip."""
    if not slow.height:
        return []
    cores = case.trace.tracks.filter(pl.col("kind").cast(pl.String) == "core").unique("track_id", keep="first")  # fmt: skip
    stood_for = cores.select(replica_of="track_id", of="rank")
    placed = cores.join(stood_for, on="replica_of", how="left").with_columns(rank=pl.coalesce("of", "rank"))  # fmt: skip
    is_slow = pl.col("rank").is_in(slow["rank"].implode())
    chips = (
        placed.group_by("chip")
        .agg(pl.col("rank").unique().sort(), whole=is_slow.all())
        .filter(pl.col("whole") & pl.col("chip").is_not_null())
        .sort("chip")
    )
    things = [
        (
            f"chip {chip}",
            slow.filter(pl.col("rank").is_in(ranks)).unique("rank", maintain_order=True),
        )
        for chip, ranks, _ in chips.iter_rows()
    ]
    done = {rank for _, members in things for rank in members["rank"].to_list()}
    rest = [rank for rank in slow["rank"].unique(maintain_order=True).to_list() if rank not in done]
    return things + [(f"rank {rank}", slow.filter(pl.col("rank") == rank)) for rank in rest]


def _slow(
    case: Case, name: str, members: pl.DataFrame, own: pl.DataFrame, links: pl.DataFrame
) -> Finding:
    ratio = float(members["slowness"].median() or 1.0)  # type: ignore[arg-type]
    busy_ns = float(members["busy_ns"].max() or 0.0)  # type: ignore[arg-type]
    beside = f"; {own.height} of its links too" if own.height else ""
    ranks = ", ".join(map(str, members["rank"].to_list()[:4])) + (", …" if members.height > 4 else "")  # fmt: skip
    others = ", and the others wait for it" if case.scope_units > 1 else ""

    def at_speed(graph: StepGraph) -> Changes:
        changes = _at_speed(graph, members)
        return (
            combined(graph, [changes, _links_at(case, graph, own, links)])
            if own.height
            else changes
        )

    gain = case.gain(busy_ns * (1 - 1 / ratio), at_speed)
    columns = "rank, name, count(*) AS events, avg(duration_ns) AS mean_ns"
    return Finding(
        key=SLOW,
        title=f"{name} takes {ratio:.2f}x its peers' time for equal work",
        evidence=f"rank {ranks}: {format_ns(busy_ns, 3)} of compute a step{others}{beside}; at its peers' speed",
        where=name,
        query=f"SELECT {columns} FROM named_events WHERE category = 'compute' AND {case.at_step()} GROUP BY rank, name ORDER BY name, mean_ns DESC",
        command=case.report("utilization"),
        touched_ns=busy_ns,
        gain_ns=gain.ns,
        step_ns=case.step_ns,
        is_upper_bound=gain.is_upper_bound,
        changes=gain.changes,
    )


def _at_speed(graph: StepGraph, members: pl.DataFrame) -> Changes:
    """Everything but collectives of some ranks at the speed of their peers."""
    speeds = graph.events.select("rank", "category").join(
        members.select("rank", "slowness"), on="rank", how="left", maintain_order="left"
    )
    own = pl.when(pl.col("category").cast(pl.String) != "collective").then(1 / pl.col("slowness"))
    factors = speeds.select(own.fill_null(1.0)).to_series().to_numpy()
    return Changes(factors, np.zeros(len(graph)))


def _link_rates(case: Case) -> pl.DataFrame:
    """Links that carried bytes in the step: track_id, name, tier, pair, ends (chips), rate (B/s while busy), median, rate_ratio, busy_ns."""
    tracks = case.trace.tracks.unique("track_id", keep="first")
    tiers = tracks.select(parent_id="track_id", tier="name")
    links = tracks.filter(pl.col("kind").cast(pl.String) == "link").join(tiers, on="parent_id", how="left")  # fmt: skip
    at = pl.lit(True) if case.times.step is None else pl.col("step") == case.times.step
    ends = pl.col("name").str.extract_all(r"\d+").cast(pl.List(pl.Int64))
    used = (
        case.trace.events.filter(at & (pl.col("bytes") > 0) & (pl.col("duration_ns") > 0))
        .join(links.lazy().select("track_id", "tier", name_="name"), on="track_id")
        .group_by("track_id", "tier", name="name_")
        .agg(pl.col("bytes").sum(), busy_ns=pl.col("duration_ns").sum())
        .with_columns(rate=pl.col("bytes") * 1e9 / pl.col("busy_ns"), ends=ends)
        .with_columns(median=pl.col("rate").median().over("tier"))
        .collect(engine="streaming")
    )
    pair = pl.col("ends").list.sort().cast(pl.List(pl.String)).list.join("-")
    named = pl.when(pl.col("ends").list.len() == 2).then(pair).otherwise("name")
    return used.with_columns(rate_ratio=pl.col("rate") / pl.col("median"), pair=named).sort("rate_ratio", "name")  # fmt: skip


def _links_at(case: Case, graph: StepGraph, lame: pl.DataFrame, links: pl.DataFrame) -> Changes:
    """Slow links at the median rate of their tier, by how long collectives then occupy the busiest of their links."""
    is_lame = pl.col("track_id").is_in(lame["track_id"].implode())
    factors = links.select("track_id", factor=pl.when(is_lame).then("rate_ratio").otherwise(1.0))
    return Changes(np.ones(len(graph)), added_by_links(case.trace, graph, factors))


def _link(case: Case, pair: str, tier: str, rows: pl.DataFrame, links: pl.DataFrame) -> Finding:
    rate, median = rows["rate"][0], rows["median"][0]
    busy_ns = float(rows["busy_ns"].max() or 0.0)  # type: ignore[arg-type]
    gain = case.gain(
        busy_ns * (1 - rate / median), lambda graph: _links_at(case, graph, rows, links)
    )
    ids = ", ".join(f"'{name}'" for name in rows["name"].to_list())
    columns = "t.name AS link, count(*) AS events, sum(e.bytes) AS bytes, sum(e.duration_ns) AS busy_ns"  # fmt: skip
    return Finding(
        key=LINK,
        title=f"link {pair} ({tier}) runs at {format_percent(rate / median, 0)} of the rate of its tier",
        evidence=f"{format_rate(rate, 'B/s', 3)} while busy, the median link {format_rate(median, 'B/s', 3)}; collectives keep it busy {format_ns(busy_ns, 3)} a step",
        where=f"link {pair}",
        query=f"SELECT {columns} FROM events e JOIN tracks t ON e.track_id = t.track_id WHERE t.kind = 'link' AND e.bytes > 0 AND (t.name IN ({ids}) OR {case.at_step()}) GROUP BY t.name ORDER BY busy_ns DESC",
        command=case.report("collectives"),
        touched_ns=busy_ns,
        gain_ns=gain.ns,
        step_ns=case.step_ns,
        is_upper_bound=gain.is_upper_bound,
        changes=gain.changes,
    )


def _late(case: Case) -> list[Finding]:
    """Ranks whose first event comes later than the median rank's; where timing the step again starts all at once, what that saves."""
    found = []
    rows = begins(case.times).filter(pl.col("late_ns") >= limit("late_share") * case.step_ns)
    for row in rows.sort("late_ns", descending=True).head(LATE_MOST).to_dicts():
        gain, bound = float(row["late_ns"]), True
        if case.graph is not None:
            gain, bound = max(0.0, min(gain, case.step_ns - case.base_ns)), False
        late = format_ns(row["late_ns"], 3)
        found.append(
            Finding(
                key=LATE,
                title=f"rank {row['rank']} begins {late} later than its peers",
                evidence=f"its first event starts {late} after the median rank's; the others wait for it in their first collective",
                where=f"rank {row['rank']}",
                query=f"SELECT rank, min(start_ns) AS first_ns FROM named_events WHERE rank IS NOT NULL AND {case.at_step()} GROUP BY rank ORDER BY first_ns DESC",
                command=case.report("collectives"),
                touched_ns=float(row["late_ns"]),
                gain_ns=gain,
                step_ns=case.step_ns,
                is_upper_bound=bound,
            )
        )
    return found


def _stragglers(case: Case) -> list[Finding]:
    """Of measured ranks, whose clocks need not agree: those that come last to collectives again and again."""
    if case.times.scope.units["rank"].n_unique() < 2:
        return []
    late = stragglers(collective_parts(case.trace, case.times.scope)).filter("is_chronic")
    steps = max(1, case.times.scope.windows["step"].n_unique() - 1)
    found = []
    for row in late.head(LATE_MOST).to_dicts():
        gain = float(row["made_wait_ns"]) / steps
        found.append(
            Finding(
                key=LATE,
                title=f"rank {row['rank']} comes last to {row['times_last']:,} of {row['calls']:,} collectives",
                evidence=f"{format_ns(row['late_ns'], 3)} later than the median of the others since its call {row['since_call']}; without it they would wait {format_ns(gain, 3)} less a step",
                where=f"rank {row['rank']}",
                query="SELECT rank, count(*) AS calls, min(start_ns) AS first_ns FROM collectives GROUP BY rank ORDER BY rank",
                command=case.report("collectives"),
                touched_ns=gain,
                gain_ns=gain,
                step_ns=case.step_ns,
                is_upper_bound=True,
            )
        )
    return found

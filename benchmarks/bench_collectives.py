"""How fast are collectives emulated, beside SimPy on the same transfers, and how does the cost grow with ranks and chunks?

A 1 GiB ring all-reduce goes round a switch (100 GB/s and 250 ns a link), one chunk, as fabric simulators are compared by; both sides answer with
the same time. Everything is warm: the loops were compiled and the functions called before.

    python benchmarks/bench_collectives.py
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import simpy

from trnprof.emulator.collectives.endpoint import NO_COST
from trnprof.emulator.collectives.fluid.max_min import max_min_rates
from trnprof.emulator.collectives.outcome import Outcome
from trnprof.emulator.collectives.request import Request
from trnprof.emulator.collectives.run import run_collective
from trnprof.emulator.collectives.trace.write import write_collectives
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.emulator.fabric.routes import find_routes
from trnprof.tracer.manifest import create_trace_directory

GIB, MIB = 2**30, 2**20
RATE_BYTES_PER_S, LATENCY_PS = 100e9, 250_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7, help="runs, of which the least counts")
    repeats = parser.parse_args().repeats
    for chips in (64, 144):
        beside_simpy(chips, repeats)
    growth(repeats)
    routes_and_all_to_all()
    flows(repeats)
    links_written()


def beside_simpy(chips: int, repeats: int) -> None:
    """The same ring on both sides."""
    fabric = made_up(f"switch:{chips}")
    ours_s, outcome = least(repeats, lambda: all_reduce(fabric, chips, chunks=1))
    simpy_s, end_ps = least(1, lambda: simpy_ring_ps(chips, -(-GIB // chips)))
    if abs(outcome.time_ps - end_ps) > 2 * (chips - 1):
        raise SystemExit(f"the two disagree: {outcome.time_ps} and {end_ps} ps")
    print(
        f"ring all_reduce, {chips} chips, 1 GiB: {ours_s * 1e3:.2f} ms, SimPy {simpy_s * 1e3:.0f} ms,"
        f" {simpy_s / ours_s:.0f}x, both say {end_ps / 1e9:.4f} ms"
    )


def simpy_ring_ps(chips: int, segment_bytes: int) -> int:
    """Each rank passes a segment to its neighbour 2(N-1) times, over its link to the switch and the switch's to the neighbour.

    The second link takes the head of a segment as it arrives (cut-through), so it is held as long as the first, a latency later.
    """
    environment = simpy.Environment()
    steps = 2 * (chips - 1)
    up = [simpy.Resource(environment) for _ in range(chips)]
    down = [simpy.Resource(environment) for _ in range(chips)]
    arrived = [[environment.event() for _ in range(chips)] for _ in range(steps)]
    segment_ps = round(segment_bytes / RATE_BYTES_PER_S * 1e12)
    ends = []

    def carry(link: simpy.Resource, then: Callable[[], None]) -> Generator[Any, Any, None]:
        with link.request() as turn:
            yield turn
            head = environment.timeout(LATENCY_PS)
            head.callbacks.append(lambda _: then())
            yield environment.timeout(segment_ps)

    def rank(position: int) -> Generator[Any, Any, None]:
        to = (position + 1) % chips
        for step in range(steps):
            if step:
                yield arrived[step - 1][position]

            def second_link(step: int = step) -> None:
                environment.process(carry(down[to], lambda: last_link(step)))

            def last_link(step: int) -> None:
                tail = environment.timeout(segment_ps)
                tail.callbacks.append(lambda _: arrived[step][to].succeed())

            environment.process(carry(up[position], second_link))
        yield arrived[-1][position]
        ends.append(environment.now)

    for position in range(chips):
        environment.process(rank(position))
    environment.run()
    return int(max(ends))


def growth(repeats: int) -> None:
    """What ranks and chunks cost."""
    for chips in (16, 64, 256):
        for chunks in (1, 4, 16):
            fabric = made_up(f"switch:{chips}")
            spent_s, outcome = least(
                min(repeats, 3), lambda f=fabric, n=chips, c=chunks: all_reduce(f, n, chunks=c)
            )
            tasks = len(outcome.events.message) if outcome.events else 0
            print(
                f"ring all_reduce, {chips} chips, {chunks} chunks: {tasks} transfers in {spent_s * 1e3:.1f} ms,"
                f" {tasks / spent_s / 1e6:.1f} M/s"
            )


def routes_and_all_to_all() -> None:
    """All pairs of a large torus."""
    fabric = made_up("torus:8x8x8")
    pairs = np.arange(512 * 512)
    routes_s, routes = least(3, lambda: find_routes(fabric, pairs // 512, pairs % 512))
    print(f"routes of all pairs of 8x8x8: {len(routes.links)} links in {routes_s * 1e3:.0f} ms")
    request = Request("all_to_all", 512 * MIB, tuple(range(512)), ("all-pairs",), chunks=1)
    spent_s, outcome = least(3, lambda: run_collective(fabric, request))
    print(
        f"all_to_all of 1 MiB pairs on 8x8x8: {spent_s:.2f} s, {outcome.time_ps / 1e9:.2f} ms emulated"
    )


def flows(repeats: int) -> None:
    """Max-min fair rates of random flows."""
    for spec, count in (
        ("torus:8x8", 1_000),
        ("torus:8x8x8", 1_000),
        ("torus:12x12", 10_000),
        ("torus:8x8x8", 10_000),
    ):
        fabric = made_up(spec)
        rng = np.random.default_rng(1)
        source = rng.integers(0, fabric.chips, count)
        target = (source + rng.integers(1, fabric.chips, count)) % fabric.chips
        routes = find_routes(fabric, source, target)
        spent_s, _ = least(
            repeats,
            lambda f=fabric, r=routes: max_min_rates(r.offsets, r.links, f.bytes_per_s),
        )
        print(f"max-min of {count} flows on {spec}: {spent_s * 1e3:.2f} ms")


def links_written() -> None:
    """A trace of every transfer over every link, without and with all dependencies."""
    fabric = made_up("switch:144")
    outcome = all_reduce(fabric, 144, chunks=61)  # 286 steps x 144 ranks x 2 links x 61 chunks
    for edges in ("none", "binding", "all"):
        with tempfile.TemporaryDirectory() as folder:

            def write(folder: str = folder, edges: str = edges) -> int:
                path = create_trace_directory(Path(folder) / "run.trnprof", force=True)
                return write_collectives(path, [outcome], NO_COST, edges=edges)

            spent_s, events = least(2, write)
        print(
            f"link-level trace of {events} transfers, edges {edges}: {spent_s:.2f} s, {events / spent_s / 1e6:.2f} M/s"
        )


def made_up(spec: str) -> Fabric:
    return build_fabric(made_up_topology(spec, [RATE_BYTES_PER_S], [LATENCY_PS]))


def all_reduce(fabric: Fabric, chips: int, chunks: int) -> Outcome:
    request = Request("all_reduce", GIB, tuple(range(chips)), ("ring",), chunks=chunks)
    return run_collective(fabric, request)


def least(repeats: int, work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the fastest of several runs, after one to warm up, and what it gave."""
    result = work() if repeats > 1 else None
    spent = []
    for _ in range(repeats):
        begin = time.perf_counter()
        result = work()
        spent.append(time.perf_counter() - begin)
    return min(spent), result


if __name__ == "__main__":
    main()

"""How long do overlapping transfers take by SimGrid? Prints what simgrid_flows.json holds; run by hand: python simgrid_flows.py > simgrid_flows.json.

Needs SimGrid 3.32 and its Python binding (Debian: python3-simgrid), nothing of trnprof: links and routes are made here, by their definition.
Model CM02 (max-min fair sharing, without TCP's windows and without traffic of acknowledgements). Each job is a chain of transfers, one after the
other, each of [source, target, bytes].
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import product
from math import prod
from typing import Any

from simgrid import (  # type: ignore[import-not-found]
    Actor,
    Comm,
    Engine,
    Host,
    LinkInRoute,
    NetZone,
    simgrid_version,
    this_actor,
)

BYTES_PER_S = 50e9
SETTINGS = ("network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0")
CASES: dict[str, tuple[tuple[int, ...], float, int, int, int, int]] = {
    # sizes (one: a star), latency of a link in s, jobs, most transfers of a job, most bytes, latest start in ps
    "torus:4x4x4": ((4, 4, 4), 0.0, 250, 3, 2**20, 200_000_000),
    "torus:5x3": ((5, 3), 0.0, 100, 4, 2**22, 1_000_000_000),
    "switch:24": ((24,), 500e-9, 150, 4, 2**20, 100_000_000),
}


def torus_route(sizes: tuple[int, ...], source: int, target: int) -> list[str]:
    """Links in dimension order, the shorter way round, upwards on a tie."""
    links, stride = [], 1
    for size in sizes:
        place, there = source // stride % size, target // stride % size
        way = 1 if 2 * ((there - place) % size) <= size else -1
        while place != there:
            following = (place + way) % size
            neighbour = source + (following - place) * stride
            links.append(f"{source}>{neighbour}")
            source, place = neighbour, following
        stride *= size
    return links


def all_routes(sizes: tuple[int, ...]) -> dict[tuple[int, int], list[str]]:
    pairs = [(a, b) for a, b in product(range(prod(sizes)), repeat=2) if a != b]
    if len(sizes) == 1:
        return {(a, b): [f"up{a}", f"down{b}"] for a, b in pairs}
    return {(a, b): torus_route(sizes, a, b) for a, b in pairs}


def make_jobs(name: str) -> list[dict[str, Any]]:
    sizes, _, jobs, longest, most_bytes, latest_ps = CASES[name]
    random.seed(name)
    return [
        {
            "start_ps": random.randrange(latest_ps),
            "transfers": [
                [*random.sample(range(prod(sizes)), 2), random.randint(1, most_bytes)]
                for _ in range(random.randint(1, longest))
            ],
            "end_ps": [],
        }
        for _ in range(jobs)
    ]


def build(sizes: tuple[int, ...], latency_s: float) -> list[Host]:
    zone = NetZone.create_full_zone("fabric")
    hosts = [zone.create_host(f"chip{chip}", 1e9) for chip in range(prod(sizes))]
    routes = all_routes(sizes)
    links = {
        name: zone.create_link(name, BYTES_PER_S).set_latency(latency_s).seal()
        for name in sorted({name for route in routes.values() for name in route})
    }
    for (source, target), route in routes.items():
        over = [LinkInRoute(links[name]) for name in route]
        zone.add_route(hosts[source].netpoint, hosts[target].netpoint, None, None, over, False)
    zone.seal()
    return hosts


def carry(hosts: list[Host], job: dict[str, Any]) -> None:
    this_actor.sleep_until(job["start_ps"] / 1e12)
    for source, target, size in job["transfers"]:
        Comm.sendto(hosts[source], hosts[target], size)
        job["end_ps"].append(round(Engine.clock * 1e12))


def run(name: str) -> dict[str, Any]:
    sizes, latency_s, *_ = CASES[name]
    engine = Engine(["simgrid_flows", *(f"--cfg={setting}" for setting in SETTINGS)])
    hosts, jobs = build(sizes, latency_s), make_jobs(name)
    for number, job in enumerate(jobs):
        Actor.create(f"job{number}", hosts[0], carry, hosts, job)
    engine.run()
    return {"topology": name, "latency_ps": round(latency_s * 1e12), "jobs": jobs}


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.stdout.write(json.dumps(run(sys.argv[1])))
    else:  # a process has one engine
        runs = [
            json.loads(subprocess.check_output([sys.executable, __file__, name])) for name in CASES
        ]
        made_by = f"SimGrid {simgrid_version}, {', '.join(SETTINGS)}"
        head = {"made_by": made_by, "link_bytes_per_s": BYTES_PER_S}
        body = json.dumps({**head, "cases": runs}, separators=(",", ":"))
        sys.stdout.write(body.replace('{"start_ps"', '\n{"start_ps"') + "\n")

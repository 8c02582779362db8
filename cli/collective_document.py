"""What does ``collective --json`` hold?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from trnprof.cli.collectives import Setting
from trnprof.emulator.collectives.busbw import request_bus_factor
from trnprof.emulator.collectives.outcome import Outcome
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.names import link_name
from trnprof.tracer.version import __version__

COLLECTIVE_SCHEMA: Final = 1
BUSIEST: Final = 5
"""Links that are named."""
FORCED: Final = "given by --algorithm"


def collective_document(setting: Setting, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """One run: the keys of the collective that was asked for; of several in flight, all under ``collectives``."""
    document = _head(setting) | outcome_document(outcomes[0])
    if len(outcomes) > 1:
        document["collectives"] = [outcome_document(outcome) for outcome in outcomes]
    return document


def sweep_document(setting: Setting, rows: Sequence[Sequence[Outcome]]) -> dict[str, Any]:
    """A sweep: the keys of a run, one dict a size, under ``sweep``."""
    return _head(setting) | {"sweep": [outcome_document(outcomes[0]) for outcomes in rows]}


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """One collective. Times in ns, rates in B/s, percent as fractions 0–1."""
    request = outcome.request
    return {
        "collective": request.collective,
        "time_ns": outcome.time_ps / 1000,
        "algorithm": algorithm_name(outcome),
        "algorithms": list(outcome.algorithms),
        "algorithm_reason": reason(outcome),
        "fidelity": outcome.fidelity,
        "chunks": chunks_of(outcome),
        "forwarding": request.forwarding,
        "ties": request.ties,
        "astra_sim": asdict(request.astra_sim) if request.astra_sim is not None else None,
        "ranks": request.members,
        "rank_list": list(request.ranks) if request.replicas == 1 else None,
        "folded": folded(outcome),
        "root": request.ranks[request.root] if request.ranks else None,
        "bytes": request.bytes,
        "steps": steps(outcome),
        "algorithm_bandwidth_bytes_per_s": outcome.algorithm_bandwidth_bytes_per_s,
        "bus_bandwidth_bytes_per_s": bus_bandwidth(outcome),
        "bound": {
            "kind": outcome.bound.kind,
            "resource": outcome.bound.resource,
            "step": outcome.bound.step,
        },
        "link_utilization_percent": mean_utilization(outcome),
        "links": links(outcome),
        "rank_end_ns": (np.asarray(outcome.rank_end_ps) / 1000).tolist(),
    }


def folded(outcome: Outcome) -> dict[str, Any] | None:
    """Of how many instances one was emulated, and its ranks; None where all were."""
    request = outcome.request
    if request.replicas == 1:
        return None
    return {
        "instances": request.replicas,
        "emulated_instances": 1,
        "ranks_of_each": list(request.ranks),
    }


def bus_bandwidth(outcome: Outcome) -> float:
    """Algorithm bandwidth times the factor of nccl-tests, which makes collectives comparable."""
    return outcome.algorithm_bandwidth_bytes_per_s * request_bus_factor(outcome.request)


def algorithm_name(outcome: Outcome) -> str:
    """One name, or one a dimension with commas where they differ."""
    names = outcome.algorithms
    return names[0] if len(set(names)) == 1 else ",".join(names)


def reason(outcome: Outcome) -> str:
    """Why this algorithm."""
    return outcome.chosen_because or FORCED


def steps(outcome: Outcome) -> int | None:
    """How many steps the algorithm has; unknown of the closed form."""
    return outcome.messages.steps if outcome.messages is not None else None


def mean_utilization(outcome: Outcome) -> float:
    """Mean over the links that carried anything of the fraction of time in which each was busy."""
    used = np.asarray(outcome.link_bytes) > 0
    return float(outcome.link_utilization[used].mean()) if used.any() else 0.0


def links(outcome: Outcome) -> dict[str, Any]:
    """How many links there are and carried anything, and the busiest (of the emulated instance, where it stands for all)."""
    fabric, use, times = outcome.fabric, outcome.link_utilization, outcome.request.replicas
    used = np.asarray(outcome.link_bytes) > 0
    return {
        "count": fabric.links * times,
        "failed_count": int(fabric.is_failed.sum()),
        "used_count": int(used.sum()) * times,
        "mean_utilization_of_all_percent": float(use.mean()) if fabric.links else 0.0,
        "bytes": int(np.asarray(outcome.link_bytes).sum()) * times,
        "busiest": [_link(outcome, fabric, link) for link in busiest(outcome)],
    }


def busiest(outcome: Outcome, count: int = BUSIEST) -> list[int]:
    """The links that were busy longest, the lowest number first among equals."""
    busy = np.asarray(outcome.link_busy_ps)
    order = np.argsort(-busy, kind="stable")[:count]
    return [int(link) for link in order if busy[link] > 0]


def chunks_of(outcome: Outcome) -> int | None:
    """Into how many chunks a message was cut; 1 where a formula has whole ones."""
    if outcome.formula_chunks is not None:
        return outcome.formula_chunks
    if outcome.events is None:
        return outcome.request.chunks
    return int(np.asarray(outcome.events.chunk).max(initial=0)) + 1


def _link(outcome: Outcome, fabric: Fabric, link: int) -> dict[str, Any]:
    return {
        "link": link_name(fabric, link),
        "tier": fabric.topology.tiers[fabric.tier[link]].name,
        "utilization_percent": float(outcome.link_utilization[link]),
        "busy_ns": float(outcome.link_busy_ps[link]) / 1000,
        "bytes": int(outcome.link_bytes[link]),
        "bytes_per_s": float(fabric.bytes_per_s[link]),
    }


def _head(setting: Setting) -> dict[str, Any]:
    topology = setting.fabric.topology
    machine = setting.machine
    return {
        "schema": COLLECTIVE_SCHEMA,
        "tool_version": __version__,
        "system": {
            "name": setting.place,
            "description": machine.description if machine is not None else "made up",
            "instances": setting.instances,
            "chips": topology.chips * setting.replicas,
            "topology": {
                "coordinates": list(topology.coordinates),
                "sizes": [*topology.sizes[:-1], topology.sizes[-1] * setting.replicas],
                "tiers": [
                    {"name": t.name, "kind": t.kind, "link_bytes_per_s": t.link_bytes_per_s}
                    for t in topology.tiers
                ],
            },
        },
        "is_simulation": True,
        "estimates": setting.estimates,
        "faults": list(setting.faults),
    }

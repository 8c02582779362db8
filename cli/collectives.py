"""How does ``collective`` go: from options to a fabric and requests, to outcomes, to a trace?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from trnprof.cli.collective_folding import Folding, choose_folding
from trnprof.cli.collective_options import (
    Another,
    Options,
    read_algorithms,
    read_another,
    read_astra_sim,
    read_bandwidths,
    read_collective,
    read_fault,
    read_jitter,
    read_latencies,
    read_named,
    read_ranks,
    read_size,
    read_skew,
    read_slow,
)
from trnprof.cli.send_bytes import read_send_bytes
from trnprof.emulator.collectives.algorithms.names import ALIASES
from trnprof.emulator.collectives.endpoint import NO_COST, Endpoint
from trnprof.emulator.collectives.messages import ALL_TO_ALL, BARRIER, UNLIKE_RANKS
from trnprof.emulator.collectives.outcome import Outcome
from trnprof.emulator.collectives.request import CHUNKED, CUT_THROUGH, FLUID, Request
from trnprof.emulator.fabric.build import build_fabric
from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.faults import degrade_link, fail_link
from trnprof.emulator.fabric.made_up import made_up_topology
from trnprof.emulator.machine import Machine, load_machine
from trnprof.tracer.errors import FabricError, TrnprofError


@dataclass(frozen=True)
class Setting:
    """What is run, and on what.

    Attributes:
        place: what people call the machine or fabric.
        fabric: faults included; of one instance, where it is folded.
        machine: None for a made-up fabric.
        instances: of the machine.
        endpoint: costs at the chips.
        requests: all in flight at once; the first is the one that was asked for.
        faults: as they were typed.
    """

    place: str
    fabric: Fabric
    machine: Machine | None
    instances: int
    endpoint: Endpoint
    requests: tuple[Request, ...]
    faults: tuple[str, ...]

    @property
    def replicas(self) -> int:
        """How many instances the emulated one stands for."""
        return self.requests[0].replicas

    @property
    def estimates(self) -> list[str]:
        """Dotted keys of the machine's figures that nobody published and that a collective's time rests on."""
        if self.machine is None:
            return []
        tables = ("topology", "collectives", *(("scale_out",) if self.instances > 1 else ()))
        return [key for key in self.machine.estimates if key.partition(".")[0] in tables]


def prepare(options: Options, size: int | None) -> Setting:
    """Everything that can be refused is refused here.

    Args:
        options: the command line.
        size: of the buffer in bytes, where a sweep chooses it; None: the options say.

    Raises:
        TrnprofError: an option makes no sense, or does not fit the others.
    """
    collective = read_collective(options.collective)
    place, fabric, machine, folding = _place(options, collective)
    requests = _requests(options, collective, size, fabric.chips, folding)
    for text in options.degrade:
        fabric = degrade_link(fabric, *read_fault(text, "--degrade", "link"))
    for text in options.fail:
        fabric = fail_link(fabric, read_named(text, "--fail", "link"))
    return Setting(
        place=place,
        fabric=fabric,
        machine=machine,
        instances=options.instances or 1,
        endpoint=machine.endpoint() if machine is not None else NO_COST,
        requests=requests,
        faults=_faults(options),
    )


def run(setting: Setting) -> list[Outcome]:
    """One outcome a request, all of them in flight at once."""
    from trnprof.emulator.collectives.run import run_many

    return run_many(setting.fabric, setting.requests, setting.endpoint, setting.machine)


def sweep_runs(setting: Setting, sizes: Sequence[int]) -> list[list[Outcome]]:
    """The outcomes of each size of the first request's buffer."""
    first, *others = setting.requests
    return [run(replace(setting, requests=(replace(first, bytes=size), *others))) for size in sizes]


def write_trace(
    output: Path,
    setting: Setting,
    outcomes: Sequence[Outcome],
    *,
    edges: str | None,
    reproducible: bool,
    command: Sequence[str],
    force: bool,
) -> int:
    """Write outcomes as a trace beside ``output`` and put it in its place.

    Returns:
        How many events it has.
    """
    from trnprof.emulator.collectives.trace.write import write_collectives
    from trnprof.tracer.manifest import trace_beside, write_manifest

    with trace_beside(output, force=force) as directory:
        events = write_collectives(
            directory, outcomes, setting.endpoint, edges=edges, reproducible=reproducible
        )
        write_manifest(
            directory,
            is_simulation=True,
            command=command,
            system=describe(setting),
            emulation={
                "execution": "collective",
                "detail": "chunk",
                "lnc": 1,
                "estimates": setting.estimates,
                "fallback_ops": 0,
                "fallback_time_percent": 0.0,
                "notes": [],
            },
            reproducible=reproducible,
            notes=[f"fault or perturbation: {fault}" for fault in setting.faults],
        )
    return events


def describe(setting: Setting) -> dict[str, object]:
    """The machine or fabric as plain data, for the manifest."""
    if setting.machine is not None:
        return setting.machine.describe() | {"instances": setting.instances}
    topology = setting.fabric.topology
    return {
        "name": setting.place,
        "description": "made up",
        "topology": asdict(topology) | {"chips": topology.chips},
        "estimates": [],
    }


def _place(options: Options, collective: str) -> tuple[str, Fabric, Machine | None, Folding]:
    """Name, fabric without faults, machine, and whether it is folded."""
    if options.system is not None and options.topology is not None:
        raise TrnprofError("give --system or --topology, not both")
    if options.system is not None:
        for name in ("bandwidth", "latency"):
            if getattr(options, name) is not None:
                raise TrnprofError(
                    f"--{name} goes with --topology; the links of a system are what its file says"
                )
        return _scaled(options, collective, load_machine(options.system))
    if options.topology is None:
        raise TrnprofError(
            "on what? give --system (trnprof systems lists them), or --topology and --bandwidth"
        )
    if options.instances is not None:
        raise TrnprofError("--instances goes with --system; write more dimensions in --topology")
    if options.fold is not None:
        raise TrnprofError("--fold and --no-fold go with --instances")
    if options.bandwidth is None:
        raise TrnprofError("--topology needs --bandwidth, such as 50GiB/s")
    latencies = read_latencies("0ns" if options.latency is None else options.latency)
    topology = made_up_topology(options.topology, read_bandwidths(options.bandwidth), latencies)
    return options.topology, build_fabric(topology), None, Folding()


def _scaled(
    options: Options, collective: str, machine: Machine
) -> tuple[str, Fabric, Machine, Folding]:
    """The same of a machine, or several."""
    instances = options.instances or 1
    place = machine.name if instances == 1 else f"{instances:,} x {machine.name}"
    folding = choose_folding(options, collective, machine)
    if folding.ranks is not None:
        return place, build_fabric(machine.folded(instances)), machine, folding
    try:
        topology = machine.scaled(instances)
    except FabricError as error:
        if not folding.obstacle:
            raise
        raise TrnprofError(
            f"{error}; one instance cannot stand for all, as {folding.obstacle}"
        ) from error
    return place, build_fabric(topology), machine, folding


def _requests(
    options: Options, collective: str, size: int | None, chips: int, folding: Folding
) -> tuple[Request, ...]:
    if folding.ranks is not None:
        ranks, replicas = folding.ranks, options.instances or 1
    else:
        ranks = tuple(range(chips)) if options.ranks is None else read_ranks(options.ranks, chips)
        replicas = 1
    sent = _sent_bytes(options, collective, len(ranks))
    others = tuple(read_another(text) for text in options.others)
    first = Request(
        collective=collective,
        bytes=size if size is not None else _size(options, collective, sent),
        ranks=ranks,
        algorithms=_proper(read_algorithms(options.algorithm)),
        fidelity=options.fidelity or (FLUID if others else CHUNKED),
        chunks=options.chunks,
        forwarding=_forwarding(options),
        root=_position(options.root, ranks, collective, "--root"),
        sent_bytes=sent,
        jitter=read_jitter(options.jitter),
        slow_chips=read_slow(options.slow),
        astra_sim=None if options.astra_sim is None else read_astra_sim(options.astra_sim),
        ties=options.ties,
        replicas=replicas,
    )
    requests = (first, *(_another(other, first, chips) for other in others))
    return _skewed(requests, read_skew(options.skew))


def _forwarding(options: Options) -> str:
    """That of every hop; ASTRA-sim has its own."""
    if options.astra_sim is not None and options.forwarding == CUT_THROUGH:
        raise TrnprofError(
            f"--astra-sim passes on whole chunks: leave out --forwarding {CUT_THROUGH}"
        )
    return options.forwarding or CUT_THROUGH


def _another(other: Another, first: Request, chips: int) -> Request:
    if other.bytes is None and other.collective != BARRIER:
        raise TrnprofError(f"--with {other.collective}: bytes is missing")
    if other.bytes is not None and other.collective == BARRIER:
        raise TrnprofError("--with barrier: a barrier has no buffer: leave out bytes")
    ranks = first.ranks if other.ranks is None else read_ranks(other.ranks, chips)
    return replace(
        first,
        collective=other.collective,
        bytes=other.bytes or 0,
        ranks=ranks,
        algorithms=_proper(other.algorithms),
        root=_position(other.root, ranks, other.collective, "--with … root"),
        sent_bytes=None,
    )


def _proper(algorithms: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(ALIASES.get(name, name) for name in algorithms)


def _size(options: Options, collective: str, sent: tuple[tuple[int, ...], ...] | None) -> int:
    if collective == BARRIER:
        if options.size is not None:
            raise TrnprofError("a barrier has no buffer: leave out --bytes")
        return 0
    if sent is not None:
        if options.size is not None:
            raise TrnprofError("give --bytes or --send-bytes, not both")
        return max(sum(row) for row in sent)
    if options.size is None:
        raise TrnprofError("how much? give --bytes, such as 1GiB, or --sweep 1KiB..1GiB")
    return read_size(options.size, "--bytes")


def _sent_bytes(
    options: Options, collective: str, ranks: int
) -> tuple[tuple[int, ...], ...] | None:
    if options.send_bytes is None:
        return None
    if collective != ALL_TO_ALL:
        raise TrnprofError(f"--send-bytes is for {ALL_TO_ALL}, not for {collective}")
    return read_send_bytes(options.send_bytes, ranks)


def _position(rank: int | None, ranks: tuple[int, ...], collective: str, option: str) -> int:
    if rank is None:
        return 0
    if collective not in UNLIKE_RANKS:
        raise TrnprofError(
            f"{option} {rank}: {collective} has no root; those that have are {', '.join(UNLIKE_RANKS)}"
        )
    if rank not in ranks:
        raise TrnprofError(f"{option} {rank}: that rank is not in the group")
    return ranks.index(rank)


def _skewed(requests: tuple[Request, ...], skews: Mapping[int, int]) -> tuple[Request, ...]:
    """A late rank is late for all collectives that it is in."""
    for rank in skews:
        if not any(rank in request.ranks for request in requests):
            raise TrnprofError(f"--skew rank={rank}: that rank is in no group")
    return tuple(
        replace(
            request,
            release_ps={
                request.ranks.index(r): ps for r, ps in skews.items() if r in request.ranks
            },
        )
        for request in requests
    )


def _faults(options: Options) -> tuple[str, ...]:
    given = (
        ("--degrade", options.degrade),
        ("--fail", options.fail),
        ("--slow", options.slow),
        ("--skew", options.skew),
        ("--jitter", options.jitter),
    )
    return tuple(f"{option} {text}" for option, texts in given for text in texts)

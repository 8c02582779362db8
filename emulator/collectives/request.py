"""What is asked: which collective, among whom, how large, by which algorithm, in which fidelity, on how sound a machine?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from trnprof.emulator.fabric.routes import CLOCKWISE

CLOSED_FORM: Final = "closed-form"
CHUNKED: Final = "chunked"
FLUID: Final = "fluid"
FIDELITIES: Final = (CLOSED_FORM, CHUNKED, FLUID)
CUT_THROUGH: Final = "cut-through"
STORE_AND_FORWARD: Final = "store-and-forward"
FORWARDINGS: Final = (CUT_THROUGH, STORE_AND_FORWARD)
DEFAULT_CHUNKS: Final = 16
MIN_CHUNK_BYTES: Final = 65_536
"""Of a message that is cut without being told to: AWS's collectives move 64 KiB packets (Neuron runtime environment documents)."""

MAX_DEFAULT_TRANSFERS: Final = 4_000_000
"""Of chunks over links, where nobody says how many chunks: about 2 s of work."""


@dataclass(frozen=True)
class Jitter:
    """Log-normal noise on every transfer time, of median 1.

    Attributes:
        seed: of numpy's PCG64.
        sigma: standard deviation of the logarithm (0.02 for 2 %).
    """

    seed: int
    sigma: float


@dataclass(frozen=True)
class AstraSim:
    """Run as ASTRA-sim 2.0's congestion-aware analytical backend does, to compare with it; no machine works like this.

    Whole nanoseconds (each serialisation and each arrival rounded down), whole chunks stored and forwarded at every hop, a fixed delay between an
    arrival and what follows it, and sums that hold up their message but occupy nothing. Chunks are what it calls splits.

    Attributes:
        active_chunks: how many chunks a rank has in flight at once ("active-chunks-per-dimension"); 0 for all.
        endpoint_ps: before the first message, and after each arrival ("endpoint-delay").
        memory_bytes_per_s: summing takes three times the bytes over this ("local-mem-bw", 1e9 a GB); 0: no time.
    """

    active_chunks: int = 0
    endpoint_ps: int = 1000
    memory_bytes_per_s: float = 0.0


@dataclass(frozen=True)
class Request:
    """One collective of a group.

    Attributes:
        collective: a name of ``messages.COLLECTIVES``.
        bytes: the full buffer as nccl-tests counts it: the input of all_reduce and reduce_scatter, the output of all_gather, a rank's send
            buffer of all_to_all; what is sent for the others.
        ranks: chips of the group, in the order of their positions; of a folded one (see ``Group``), those of the first instance.
        algorithms: one name, or one a dimension of the group; empty leaves the choice to the policy.
        fidelity: of ``FIDELITIES``.
        chunks: into how many chunks each message is cut; None: at most ``DEFAULT_CHUNKS``, on average none below ``MIN_CHUNK_BYTES``, and
            fewer where there would be more than ``MAX_DEFAULT_TRANSFERS``.
        forwarding: of ``FORWARDINGS``.
        root: position of the rank that broadcasts (or sends, of send_recv).
        sent_bytes: all_to_all only: for ragged ones, how much each position (row) sends to each (column); None: all the same.
        release_ps: by position, when a rank comes to the collective (skew); 0 where not given.
        jitter: noise on the transfers.
        slow_chips: by chip, the fraction of their speed that links from and to it, its memory, DMA engines and CC-cores have left.
        astra_sim: chunked only: the ways of that simulator instead of an endpoint's costs and a forwarding.
        ties: of ``routes.TIES``: which way round a ring to the chip opposite.
        replicas: instances that a folded group stands for, on a folded fabric (see ``folding``); 1 of any other.
    """

    collective: str
    bytes: int
    ranks: tuple[int, ...]
    algorithms: tuple[str, ...] = ()
    fidelity: str = CHUNKED
    chunks: int | None = None
    forwarding: str = CUT_THROUGH
    root: int = 0
    sent_bytes: tuple[tuple[int, ...], ...] | None = None
    release_ps: Mapping[int, int] = field(default_factory=dict)
    jitter: Jitter | None = None
    slow_chips: Mapping[int, float] = field(default_factory=dict)
    astra_sim: AstraSim | None = None
    ties: str = CLOCKWISE
    replicas: int = 1

    @property
    def members(self) -> int:
        """How many ranks the group has."""
        return len(self.ranks) * self.replicas

"""What are the parts of a machine: its chip and peaks, what collectives cost, power and price, what vendors print?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trnprof.emulator.collectives.request import AstraSim


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One chip: its cores share its HBM evenly.

    Attributes:
        name: as its vendor calls it.
        cores: NeuronCores; 0 where the description has none (GPUs).
        hbm_bytes: capacity.
        hbm_stacks: how many; 0 where the description does not say.
        hbm_bytes_per_s: of all stacks together.
        printed_dense_flops: FLOP/s by datatype as the vendor prints them; AWS sums all engines, so they are never a denominator here.
        printed_sparse_flops: likewise, with structured sparsity.
    """

    name: str
    cores: int = 0
    hbm_bytes: int
    hbm_stacks: int = 0
    hbm_bytes_per_s: float
    printed_dense_flops: Mapping[str, float]
    printed_sparse_flops: Mapping[str, float]


@dataclass(frozen=True)
class Peaks:
    """FLOP/s of one chip by datatype: of its tensor engines where they are described, else what the vendor prints."""

    dense_flops: Mapping[str, float]
    sparse_flops: Mapping[str, float]


@dataclass(frozen=True)
class Collectives:
    """What a collective costs at its chips, and at which sizes AWS's library changes its algorithm.

    Attributes:
        start_ns: from the call to the first message.
        post_ns: a CC-core's time a message.
        dma_start_ns: from its end to the first byte.
        dma_done_ns: from the last byte to the semaphore's being seen.
        cc_cores: of a chip.
        dma_bytes_per_s: all DMA engines of a chip.
        reduce_touches: HBM bytes a reduced byte at the receiver.
        direct_below_bytes: smaller buffers go by the direct algorithm.
        halving_doubling_below_bytes: smaller ones than this by halving-doubling, larger ones by KangaRing.
    """

    start_ns: float
    post_ns: float
    dma_start_ns: float
    dma_done_ns: float
    cc_cores: int
    dma_bytes_per_s: float
    reduce_touches: float
    direct_below_bytes: int
    halving_doubling_below_bytes: int


@dataclass(frozen=True)
class Economics:
    """Power in watts and price in US dollars; what nobody published is None, and ``absent`` says why.

    Attributes:
        racks: that the system fills.
        chip_power_w: at most, of one chip.
        rack_power_w: of one rack.
        usd_per_hour: the whole system, on demand.
        usd_per_chip_hour: of one chip, reserved as a Capacity Block.
        chip_capex_usd: what one chip costs its buyer.
        absent: reasons, by the name of the figure.
    """

    racks: int | None
    chip_power_w: float | None
    rack_power_w: float | None
    usd_per_hour: float | None
    usd_per_chip_hour: float | None
    chip_capex_usd: float | None
    absent: Mapping[str, str]


@dataclass(frozen=True)
class Published:
    """Totals of the system as its vendor prints them, to hold ours against.

    Attributes:
        dense_flops: by datatype, FLOP/s.
        sparse_flops: likewise.
        hbm_bytes: capacity.
        hbm_bytes_per_s: bandwidth of all chips.
        efa_bytes_per_s: of all chips into the network, in one direction.
    """

    dense_flops: Mapping[str, float] = field(default_factory=dict)
    sparse_flops: Mapping[str, float] = field(default_factory=dict)
    hbm_bytes: float | None = None
    hbm_bytes_per_s: float | None = None
    efa_bytes_per_s: float | None = None


@dataclass(frozen=True)
class AstraSimWays:
    """How ASTRA-sim would run a workload on the machine, where it is to be compared with that.

    A rank has one operation and one collective at a time. Computing nodes of an execution trace take what the roofline says and no time where
    they have no bytes; or, without a roofline, what was measured, and 1 ns where nothing was.

    Attributes:
        algorithms: by collective, one name or one a dimension.
        chunks: of a message ("preferred-dataset-splits").
        ways: of its collectives.
        has_roofline: "roofline-enabled".
    """

    algorithms: Mapping[str, tuple[str, ...]]
    chunks: int
    ways: AstraSim
    has_roofline: bool

"""Is a Neuron profile whole? What its tables say of each other, as findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trnprof.tracer.formats.neuron.dma import DmaTally
from trnprof.tracer.formats.neuron.flows import FlowTally
from trnprof.tracer.formats.neuron.instructions import InstructionTally
from trnprof.tracer.ingest.audit import Audit
from trnprof.tracer.ingest.stage import Facts

MANY: Final = 0.5
SAME: Final = 1e-3
"""Sums that differ by a smaller share are the same: the tool keeps some in 32 bits."""


def check_instructions(
    seen: InstructionTally, summary: Mapping[str, Any], label: str, audit: Audit
) -> None:
    """Findings on instructions."""
    where = f"{label}: Instruction"
    audit.add(
        "missing_debug_info",
        "note",
        where,
        "no instruction says where it was written: compile with NEURON_FRAMEWORK_DEBUG=1 (and XLA_IR_DEBUG, XLA_HLO_DEBUG) to have it",
        unreliable="operators by source line",
        count=seen.rows if seen.rows and not seen.has_debug else 0,
    )
    audit.add(
        "unknown_opcode",
        "warning",
        where,
        "instructions of unknown opcode were kept as compute; a newer aws-neuronx-tools may know them",
        unreliable="figures by opcode",
        count=sum(seen.unknown_opcodes.values()),
        example=next(iter(seen.unknown_opcodes), ""),
    )
    audit.add(
        "flops_from_operands",
        "note",
        where,
        "the profile states no FLOPs: they were taken from the operands (2 x rows x columns x elements)",
        unreliable="HFU and MFU where operands leave out broadcasts",
        count=seen.estimated_flops,
    )
    audit.add(
        "partial_transpose",
        "note",
        where,
        "instructions of which only a part transposes count as useful FLOPs as a whole",
        unreliable="share of transposes",
        count=seen.partly_transposed,
    )
    for metric, own in (
        ("hardware_flops", seen.raw_flops),
        ("adjusted_hardware_flops", seen.adjusted_flops),
    ):
        said = summary.get(metric)
        if isinstance(said, (int, float)) and said > 0 and own and abs(own - said) > SAME * said:
            audit.add(
                "summary_disagrees",
                "warning",
                where,
                f"{metric} of the tool's summary is {said:.6g}, the instructions have {own:.6g}: rows may be missing",
                unreliable="HFU and MFU",
                example=metric,
            )


def check_dma(
    transfers: DmaTally,
    packets: DmaTally,
    summary: Mapping[str, Any],
    instructions: int,
    label: str,
    audit: Audit,
) -> None:
    """Findings on DMA: is it there at all, named, and do transfers and packets agree?"""
    _check_presence(transfers, packets, instructions, label, audit)
    audit.add(
        "doubled_sbuf_transfers",
        "warning",
        f"{label}: DmaPacketAggregated",
        "sizes of transfers within SBUF are known to be told twice too large by some versions; they were kept as they are",
        unreliable="bytes within SBUF; HBM traffic is not concerned",
        count=transfers.sbuf_to_sbuf,
    )
    if transfers.rows and packets.rows:
        _compare(transfers, packets, label, audit)
    said = summary.get("dma_transfer_total_bytes")
    own = transfers.total_bytes if transfers.rows else packets.total_bytes
    if isinstance(said, (int, float)) and said > 0 and own and abs(own - said) > 0.01 * said:
        audit.add(
            "summary_disagrees",
            "warning",
            f"{label}: DMA",
            f"dma_transfer_total_bytes of the tool's summary is {said:.6g}, the rows have {own:.6g}",
            unreliable="bytes moved, memory bandwidth utilization",
            example="dma_transfer_total_bytes",
        )


def _check_presence(
    transfers: DmaTally, packets: DmaTally, instructions: int, label: str, audit: Audit
) -> None:
    rows = transfers.rows + packets.rows
    advice = "capture with NEURON_RT_ENABLE_DGE_NOTIFICATIONS=1"
    audit.add(
        "missing_dge_notifications",
        "warning",
        label,
        f"no DMA transfer is in the profile, though instructions are: {advice}",
        unreliable="everything about DMA and memory bandwidth",
        count=int(instructions > 0 and rows == 0),
    )
    named = transfers if transfers.rows else packets
    audit.add(
        "missing_dge_notifications",
        "warning" if named.rows and named.unnamed > MANY * named.rows else "note",
        f"{label}: DMA",
        f"transfers whose tensor is unknown: {advice}",
        unreliable="which tensor is moved how often",
        count=named.unnamed,
    )
    audit.add(
        "only_packets",
        "note",
        f"{label}: DmaPacket",
        "the profile has packets but no transfers: they stand for them, without memories at their ends",
        unreliable="HBM traffic and MBU",
        count=packets.rows if not transfers.rows else 0,
    )


def _compare(transfers: DmaTally, packets: DmaTally, label: str, audit: Audit) -> None:
    whole, pieces = transfers.total_bytes, packets.total_bytes
    example = f"{whole:,} B in transfers, {pieces:,} B in packets"
    if pieces > whole * (1 + SAME):
        audit.add(
            "missing_transfers",
            "warning",
            f"{label}: DmaPacketAggregated",
            "packets move more than transfers: terminal transfers are missing among the transfers, whose bytes were taken",
            unreliable="bytes moved, memory bandwidth utilization",
            example=example,
        )
    elif whole > pieces * (1 + SAME):
        audit.add(
            "sampled_packets",
            "note",
            f"{label}: DmaPacket",
            "packets move less than transfers: they were sampled; bytes were taken from transfers",
            unreliable="packets by engine",
            example=example,
        )


def dma_facts(transfers: DmaTally, packets: DmaTally, facts: Facts) -> None:
    """Both ways to count DMA, for the manifest."""
    facts.metadata["neuron_dma"] = {
        name: {
            "rows": tally.rows,
            "payload_bytes": tally.total_bytes,
            "active_ns": tally.covered_ns(),
            "summed_ns": tally.summed_ns,
        }
        for name, tally in (("transfers", transfers), ("packets", packets))
    }


def check_flows(seen: FlowTally, repeated: int, label: str, audit: Audit) -> None:
    """Findings on dependencies."""
    where = f"{label}: Flow"
    audit.add(
        "dangling_flows",
        "note",
        where,
        "dependencies whose other end is not among the rows were left out",
        unreliable="dependency chains",
        count=seen.dangling,
    )
    audit.add(
        "backward_flows",
        "warning",
        where,
        "dependencies whose target starts before their source ends",
        unreliable="dependency chains",
        count=seen.backward,
    )
    audit.add(
        "repeated_ids",
        "warning",
        where,
        "ids that several rows have: their dependencies were given to the first one",
        unreliable="dependency chains",
        count=repeated,
    )

"""What does a collective of HLO ask of other ranks? Bytes as ``CollectiveCall`` counts them, and whose.

The module is taken before the compiler of the host widens reductions of bfloat16. Of one that was optimised already (an executable that was
loaded, not compiled), a reduction counts half its bytes where XLA marked it as promoted from 16 to 32 bits: the name of what it applies ends so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trnprof.emulator.capture.hlo.groups import permutation_groups, rank_groups
from trnprof.emulator.capture.hlo.module import Instruction, Shape
from trnprof.emulator.capture.hlo.values import Groups, Value, Walk
from trnprof.emulator.collectives.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    PERMUTE,
    REDUCE_SCATTER,
)
from trnprof.emulator.workload import CollectiveCall

KINDS: Final = {
    "all-reduce": ALL_REDUCE,
    "all-gather": ALL_GATHER,
    "reduce-scatter": REDUCE_SCATTER,
    "all-to-all": ALL_TO_ALL,
    "ragged-all-to-all": ALL_TO_ALL,
    "collective-broadcast": BROADCAST,
    "collective-permute": PERMUTE,
}
"""Opcode without -start → kind."""


def exchange(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """One collective, over the group that the followed rank is in."""
    opcode = ins.opcode.removesuffix("-start")
    kind = KINDS[opcode]
    if kind == PERMUTE:
        groups = permutation_groups(ins.proto, walk.partitions)
    else:
        groups = rank_groups(ins.proto, walk.replicas, walk.partitions)
    own = next((group for group in groups if walk.rank in group), ())
    shapes = _results(ins, values, opcode)
    if len(own) < 2:
        if kind == PERMUTE and groups:
            walk.notes[
                "a collective-permute in which the captured rank takes no part is left out"
            ] = None
        made = [
            Value(shape, v.ref, repeats=v.repeats) for shape, v in zip(shapes, values, strict=False)
        ]
        return _as_result(ins, made)
    made = [Value(shape, walk.new_ref(shape)) for shape in shapes]
    counted = made if kind == ALL_GATHER else values
    nbytes = sum(v.shape.nbytes for v in counted) // (2 if _is_promoted(walk, ins) else 1)
    call = CollectiveCall(kind, _group(walk, own, groups), nbytes)
    name = f"xla::{opcode}"
    inputs, outputs = [v.ref for v in values], [v.ref for v in made if v.ref]
    walk.emit(ins, name, inputs, outputs, collective=call)
    return _as_result(ins, made)


def _results(ins: Instruction, values: list[Value], opcode: str) -> tuple[Shape, ...]:
    """Shapes of what arrives; a -start that also hands on its operands has them first."""
    parts = ins.shape.parts
    if parts is None:
        return (ins.shape,)
    if ins.opcode.endswith("-start") and opcode != "all-reduce" and len(parts) > 1:
        second = parts[1]
        return second.parts if second.parts is not None else (second,)
    return parts[: len(values)] if opcode != "all-to-all" else parts


def _is_promoted(walk: Walk, ins: Instruction) -> bool:
    return any(walk.module.computations[c].name.endswith("_promoted") for c in ins.called)


def _as_result(ins: Instruction, made: list[Value]) -> Value:
    is_tuple = ins.shape.parts is not None and not ins.opcode.endswith("-start")
    if len(made) == 1 and not is_tuple:
        return made[0]
    shape = replace(ins.shape, parts=tuple(v.shape for v in made), dims=(), dtype="")
    return Value(shape, parts=tuple(made))


def _group(walk: Walk, own: tuple[int, ...], groups: Groups) -> int:
    """Index of a group; siblings are those of its size."""
    alike = tuple(sorted(group for group in groups if len(group) == len(own)))
    if (own, alike) not in walk.groups:
        walk.groups.append((own, alike))
    return walk.groups.index((own, alike))

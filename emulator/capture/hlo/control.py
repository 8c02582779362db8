"""How is a program of HLO walked? Calls, fusions and branches are entered, the body of a loop as often as it runs.

How often follows from the program: counters and bounds that depend on constants alone are computed as the walk goes on, and the condition with
them. Where it does not (a loop until convergence), the body counts as often as XLA says it does (``known_trip_count``), else once, and a note
says so.
"""

from __future__ import annotations

import json
from typing import Final

import numpy as np

from trnprof.emulator.capture.hlo.arrays import VISITS, alias, unknown
from trnprof.emulator.capture.hlo.exchanges import KINDS, exchange
from trnprof.emulator.capture.hlo.known import evaluate
from trnprof.emulator.capture.hlo.module import Instruction
from trnprof.emulator.capture.hlo.values import Value, Walk, constant

_FREE_TARGETS: Final = (
    "Sharding SPMDFullToShardShape SPMDShardToFullShape LayoutConstraint MoveToHost MoveToDevice annotate_device_placement "
    "xla.sdy.FuncResultSharding X64Combine AllocateBuffer"
).split()
_ONES_WITHOUT_WORK: Final = frozenset(
    "after-all infeed outfeed send send-done recv recv-done rng-get-and-update-state".split()
)
MAXIMUM_TRIPS: Final = 1_000_000
"""A loop that runs more often is taken for one that never ends."""


def walk_computation(walk: Walk, number: int, arguments: list[Value]) -> Value:
    """The result of a computation of these arguments."""
    computation = walk.module.computations[number]
    found: dict[int, Value] = {}
    for at in walk.orders[number]:
        ins = computation.instructions[at]
        if ins.opcode == "parameter":
            found[at] = arguments[ins.proto.parameter_number]
        else:
            found[at] = _visit(walk, ins, [found[o] for o in ins.operands])
    return found[computation.root]


def _visit(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    known = evaluate(ins, [v.known for v in values])
    if known is not None:
        return constant(known, ins.shape)
    match ins.opcode:
        case "tuple":
            return Value(ins.shape, parts=tuple(values))
        case "get-tuple-element":
            parts = values[0].parts
            return parts[ins.proto.tuple_index] if parts is not None else values[0]
        case "while":
            return _loop(walk, ins, values[0])
        case "conditional":
            return _branch(walk, ins, values)
        case "call" | "fusion" | "async-start":
            return walk_computation(walk, ins.called[0], values)
        case "map":
            return walk.result(ins, "add", [v.ref for v in values])
        case "custom-call":
            return _custom_call(walk, ins, values)
        case "partition-id":
            return constant(np.array(walk.rank % walk.partitions), ins.shape)
        case "replica-id":
            return constant(np.array(walk.rank // walk.partitions), ins.shape)
    if ins.opcode in _ONES_WITHOUT_WORK:
        return Value(ins.shape)
    if ins.opcode.removesuffix("-start") in KINDS:
        return exchange(walk, ins, values)
    return VISITS.get(ins.opcode, unknown)(walk, ins, values)


def _loop(walk: Walk, ins: Instruction, state: Value) -> Value:
    condition, body = _loop_computations(walk, ins)
    trips = 0
    while trips < MAXIMUM_TRIPS:
        goes_on = _condition(walk, condition, state)
        if goes_on is None:
            return _repeated(walk, ins, body, state)
        if not goes_on:
            return state
        state = walk_computation(walk, body, [state])
        trips += 1
    return state


def _loop_computations(walk: Walk, ins: Instruction) -> tuple[int, int]:
    """Condition and body of a loop: the condition is the one that returns a truth value."""
    first, second = ins.called
    computation = walk.module.computations[first]
    if computation.instructions[computation.root].shape.dtype == "bool":
        return first, second
    return second, first


def _condition(walk: Walk, number: int, state: Value) -> bool | None:
    """Whether the loop goes on; None where that depends on data. What computes it is not recorded."""
    count, tensors = len(walk.operations), walk.tensors
    known = walk_computation(walk, number, [state]).known
    if len(walk.operations) > count:
        del walk.operations[count:]
        walk.tensors = tensors
    return None if known is None else bool(known)


def _repeated(walk: Walk, ins: Instruction, body: int, state: Value) -> Value:
    """A loop whose end depends on data."""
    count = _known_trip_count(ins)
    if count is None:
        count = 1
        where = f"{ins.source_file}:{ins.source_line}" if ins.source_line else ins.op_name
        walk.notes[
            f"how often the loop at {where} runs depends on data: its body is counted once"
        ] = None
    for _ in range(count):
        state = walk_computation(walk, body, [state])
    return state


def _known_trip_count(ins: Instruction) -> int | None:
    """What XLA found, in the instruction's configuration."""
    try:
        return int(json.loads(ins.proto.backend_config)["known_trip_count"]["n"])
    except (ValueError, KeyError, TypeError):
        return None


def _branch(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """The branch that is taken; where that depends on data, the one with most matrix products (of several, the first)."""
    known = values[0].known
    if known is None:
        chosen = max(range(len(ins.called)), key=lambda i: walk.heavy.get(ins.called[i], False))
        where = f"{ins.source_file}:{ins.source_line}" if ins.source_line else ins.op_name
        walk.notes[
            f"which branch at {where} is taken depends on data: the one with matrix products is counted"
        ] = None
    elif values[0].shape.dtype == "bool":
        chosen = 0 if bool(known) else 1
    else:
        index = int(known)
        chosen = index if 0 <= index < len(ins.called) else len(ins.called) - 1
    return walk_computation(walk, ins.called[chosen], [values[1 + chosen]])


def _custom_call(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """By its target: annotations are free, the host's callbacks are not the device's, others are charged as unknown operators."""
    target = ins.proto.custom_call_target
    if target in _FREE_TARGETS or target.startswith("xla.sdy."):
        return alias(walk, ins, values) if values else Value(ins.shape)
    if "callback" in target:
        walk.notes["callbacks into Python are the host's work and are left out"] = None
        return _made_elsewhere(walk, ins)
    if target == "TopK":
        return walk.result(ins, "topk", [v.ref for v in values])
    return walk.result(ins, f"xla::{target}", [v.ref for v in values])


def _made_elsewhere(walk: Walk, ins: Instruction) -> Value:
    shapes = ins.shape.parts if ins.shape.parts is not None else (ins.shape,)
    made = tuple(Value(s, walk.new_ref(s, "input")) if s.dtype else Value(s) for s in shapes)
    return made[0] if ins.shape.parts is None else Value(ins.shape, parts=made)

"""Which operation is an instruction on arrays? Names of aten where the device does the same, so that one set of lowerings serves both.

Views (reshape, transpose, slices, broadcasts) move nothing and make no operation. An opcode without a twin keeps its own name, ``xla::fft``, and
is charged as one that no lowering knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trnprof.emulator.capture.hlo.known import literal
from trnprof.emulator.capture.hlo.module import Instruction
from trnprof.emulator.capture.hlo.products import convolution, dot
from trnprof.emulator.capture.hlo.values import Value, Visit, Walk, constant, viewed

ELEMENTWISE: Final = {
    **{
        name: name
        for name in "add maximum minimum remainder abs floor ceil sign tanh sqrt rsqrt tan atan2 erf".split()
    },
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "power": "pow",
    "cbrt": "pow",
    "exponential": "exp",
    "exponential-minus-one": "expm1",
    "log": "log",
    "log-plus-one": "log1p",
    "logistic": "sigmoid",
    "sine": "sin",
    "cosine": "cos",
    "negate": "neg",
    "round-nearest-afz": "round",
    "round-nearest-even": "round",
    "is-finite": "isfinite",
    "select": "where",
    "clamp": "clamp",
    "convert": "_to_copy",
    "reduce-precision": "_to_copy",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "not": "bitwise_not",
    "shift-left": "bitwise_left_shift",
    "shift-right-logical": "bitwise_right_shift",
    "shift-right-arithmetic": "bitwise_right_shift",
    "iota": "arange",
    "rng": "rand",
    "rng-bit-generator": "rand",
    "concatenate": "cat",
    "pad": "constant_pad_nd",
    "reverse": "flip",
}
_ALIASES: Final = (
    "copy optimization-barrier add-dependency domain copy-start copy-done all-reduce-done all-gather-done collective-permute-done async-done "
    "async-update"
).split()
_REDUCTIONS: Final = {
    "add": "sum",
    "maximum": "amax",
    "minimum": "amin",
    "multiply": "prod",
    "and": "all",
    "or": "any",
}
_POOLS: Final = {"maximum": "max_pool2d_with_indices", "add": "avg_pool2d"}


def elementwise(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """One element in, one out; also what only joins or fills."""
    if ins.opcode == "convert" and values[0].shape.dtype == ins.shape.dtype:
        return values[0]
    return walk.result(ins, ELEMENTWISE[ins.opcode], [v.ref for v in values])


def compare(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """Named by its direction."""
    return walk.result(ins, ins.proto.comparison_direction.lower(), [v.ref for v in values])


def alias(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """The operand itself: copies are the compiler's affair, and what completes something asynchronous does nothing else."""
    return values[0]


def reshape(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """A view."""
    return viewed(values[0], ins.shape)


def transpose(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """A view, not contiguous if the last dimension moves."""
    order = tuple(ins.proto.dimensions)
    moved = [d for d in order if values[0].shape.dims[d] > 1]
    return viewed(values[0], ins.shape, is_contiguous=moved == sorted(moved))


def broadcast(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """What is broadcast is read where it lies."""
    value = values[0]
    if value.known is not None and value.known.size == 1:
        return Value(ins.shape)
    return Value(ins.shape, value.ref, repeats=ins.shape.numel > value.shape.numel or value.repeats)


def dynamic_update_slice(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """Only the slice is written, into the memory of the operand."""
    target, update = walk.owned(ins, values[0]), values[1]
    part = viewed(target, update.shape).ref
    assert part is not None
    walk.emit(ins, "copy_", [update.ref], [part])
    return target


def reduce(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """By what it applies: a sum, a maximum, …; of several arrays at once, the position of a maximum."""
    dims = list(ins.proto.dimensions)
    sources = values[: len(values) // 2]
    refs = [v.ref for v in sources]
    if len(sources) > 1:
        return walk.result(ins, "argmax", refs, {"dim": dims})
    name = _REDUCTIONS.get(applied(walk, ins), "sum")
    if not dims or sources[0].shape.numel == ins.shape.numel:
        return viewed(sources[0], ins.shape)
    return walk.result(ins, name, refs, {"dim": dims})


def reduce_window(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """A pooling, or, where windows reach back to the beginning, a running sum."""
    window = ins.proto.window.dimensions
    sizes = [int(d.size) for d in window]
    if any(d.size > 1 and d.padding_low == d.size - 1 and d.stride == 1 for d in window):
        return walk.result(ins, "cumsum", [values[0].ref], {"dim": sizes.index(max(sizes))})
    name = _POOLS.get(applied(walk, ins), "avg_pool2d")
    return walk.result(ins, name, [values[0].ref], {"kernel_size": [s for s in sizes if s > 1]})


def select_and_scatter(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """The gradient of a pooling by the maximum."""
    sizes = [int(d.size) for d in ins.proto.window.dimensions]
    name, kernel = "max_pool2d_with_indices_backward", [s for s in sizes if s > 1]
    return walk.result(ins, name, [values[1].ref, values[0].ref], {"kernel_size": kernel})


def gather(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """Slices at given places; a view where it takes everything from one."""
    indices = values[1]
    if indices.known is not None:
        return viewed(values[0], ins.shape)
    return walk.result(ins, "embedding", [values[0].ref, indices.ref])


def scatter(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """Slices added or written at given places, into the memory of the operand."""
    count = (len(values) - 1) // 2
    target, indices, update = values[0], values[count], values[count + 1]
    if count > 1:
        return walk.result(ins, "xla::scatter", [v.ref for v in values])
    name = "scatter_add" if applied(walk, ins) == "add" else "index_put"
    owned = walk.owned(ins, target)
    assert owned.ref is not None
    walk.emit(ins, name + "_", [owned.ref, indices.ref, update.ref], [owned.ref])
    return owned


def constants(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """Small integers are followed; a number needs no memory; a table is part of the program."""
    known = literal(ins)
    if known is not None:
        return constant(known, ins.shape)
    if ins.shape.numel <= 1 or not ins.shape.dtype:
        return Value(ins.shape)
    ref = walk.new_ref(ins.shape, "buffer")
    walk.constants.append(ref)
    return Value(ins.shape, ref)


def applied(walk: Walk, ins: Instruction) -> str:
    """Opcode of the last thing that the computation of a reduction does."""
    for number in reversed(ins.called):  # select-and-scatter has two
        computation = walk.module.computations[number]
        root = computation.instructions[computation.root]
        while root.opcode in ("convert", "copy", "bitcast") and root.operands:
            root = computation.instructions[root.operands[0]]
        return root.opcode
    return ""


def unknown(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """Under its own name."""
    return walk.result(ins, f"xla::{ins.opcode}", [v.ref for v in values])


VISITS: Final[Mapping[str, Visit]] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(_ALIASES, alias),
    **dict.fromkeys(("reshape", "bitcast", "bitcast-convert", "slice", "dynamic-slice"), reshape),
    "compare": compare,
    "transpose": transpose,
    "broadcast": broadcast,
    "dynamic-update-slice": dynamic_update_slice,
    "reduce": reduce,
    "reduce-window": reduce_window,
    "select-and-scatter": select_and_scatter,
    "gather": gather,
    "scatter": scatter,
    "constant": constants,
    "dot": dot,
    "convolution": convolution,
}
"""Opcode → what becomes of it."""

"""How are dot and convolution of HLO told as matrix products of aten? Dimensions are brought into aten's order; FLOPs are XLA's.

FLOPs as XLA counts them (``HloCostAnalysis``): 2 x results x contracted elements; of a convolution only where the window meets the image and no
hole of a dilated one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from trnprof.emulator.capture.hlo.module import Instruction
from trnprof.emulator.capture.hlo.values import Value, Walk, shaped


def dot(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """[batch, m, k] x [batch, k, n]."""
    numbers, (a, b) = ins.proto.dot, values[:2]
    contracted, batched = set(numbers.lhs_contracting), set(numbers.lhs_batch)
    k = _product(a, contracted)
    batch = _product(a, batched)
    m = a.shape.numel // max(1, k * batch)
    n = b.shape.numel // max(1, k * batch)
    lead = (batch,) if batch > 1 else ()
    inputs = [shaped(a, (*lead, m, k)), shaped(b, (*lead, k, n))]
    name = "bmm" if lead else "mm"
    return _with_shape(walk, ins, name, inputs, (*lead, m, n), 2.0 * batch * m * k * n)


def convolution(walk: Walk, ins: Instruction, values: list[Value]) -> Value:
    """Image [N, C, …], weight [O, C / groups, …]; what lacks an image dimension becomes a matrix product like any other."""
    numbers, (image, weight) = ins.proto.convolution, values[:2]
    groups = max(1, ins.proto.feature_group_count, ins.proto.batch_group_count)
    kernel = _sizes(weight.shape.dims, numbers.kernel_spatial)
    out_channels = weight.shape.dims[numbers.kernel_output]
    contracted = weight.shape.dims[numbers.kernel_input]
    positions = _sizes(ins.shape.dims, numbers.output_spatial)
    out_batch = ins.shape.dims[numbers.output_batch]
    inputs = [
        shaped(
            image,
            _ordered(
                image.shape.dims, numbers.input_batch, numbers.input_feature, numbers.input_spatial
            ),
        ),
        shaped(weight, (out_channels, contracted, *kernel)),
    ]
    valid = math.prod(
        _valid_positions(window, size, out)
        for window, size, out in zip(
            ins.proto.window.dimensions,
            _sizes(image.shape.dims, numbers.input_spatial),
            positions,
            strict=True,
        )
    )
    samples = out_batch * out_channels * contracted / max(1, ins.proto.batch_group_count)
    dims = (out_batch, out_channels, *positions)
    arguments = {"groups": groups}
    return _with_shape(walk, ins, "convolution", inputs, dims, 2.0 * samples * valid, arguments)


def _with_shape(
    walk: Walk,
    ins: Instruction,
    name: str,
    inputs: Sequence[Any],
    dims: tuple[int, ...],
    flops: float,
    arguments: dict[str, Any] | None = None,
) -> Value:
    """The operation, its result told in aten's order, the value in XLA's."""
    value = Value(ins.shape, walk.new_ref(ins.shape))
    told = shaped(value, dims)
    assert told is not None
    walk.emit(ins, name, inputs, [told], arguments or {}, flops=flops)
    return value


def _valid_positions(window: Any, size: int, positions: int) -> int:
    """Pairs of a place in the result and an element of the window that meet an element of the image."""
    base, spread = max(1, window.base_dilation), max(1, window.window_dilation)
    stride = max(1, window.stride)
    last = (size - 1) * base
    count = 0
    for element in range(window.size):
        shift = element * spread - window.padding_low
        if base == 1:
            first = max(0, -(shift // stride))  # smallest place with place * stride + shift >= 0
            count += max(0, min(positions - 1, (last - shift) // stride) - first + 1)
        else:
            places = (place * stride + shift for place in range(positions))
            count += sum(0 <= at <= last and at % base == 0 for at in places)
    return count


def _product(value: Value, dimensions: Iterable[int]) -> int:
    return math.prod(value.shape.dims[d] for d in dimensions)


def _sizes(dims: tuple[int, ...], which: Iterable[int]) -> tuple[int, ...]:
    return tuple(dims[d] for d in which)


def _ordered(
    dims: tuple[int, ...], batch: int, feature: int, spatial: Iterable[int]
) -> tuple[int, ...]:
    return (dims[batch], dims[feature], *_sizes(dims, spatial))

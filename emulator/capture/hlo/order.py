"""In which order does a program of HLO run? XLA's graph has none before it is scheduled; a reasonable one is chosen here.

Depth first from the results, shallow results first, so that a layer's weight gradient and its update come as soon as backward has reached it,
and nothing is made long before it is read. What needs no matrix product (gathering or casting a weight, masks) counts as of no depth and
is put right before its first reader: collectives of weights are issued then, and not a layer ahead (docs/recording.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trnprof.emulator.capture.hlo.module import Computation, Module

PRODUCTS: Final = frozenset(("dot", "convolution", "ragged-dot", "scaled-dot", "custom-call"))


def program_order(computation: Computation, heavy: Mapping[int, bool]) -> tuple[int, ...]:
    """Ids of the instructions that the result needs, operands before their users.

    Args:
        computation: all of them.
        heavy: by id of a computation, whether it has matrix products.
    """
    depth: dict[int, int] = {}
    for number, ins in computation.instructions.items():
        above = max((depth[o] for o in ins.operands), default=0)
        weight = ins.opcode in PRODUCTS or any(heavy.get(c, False) for c in ins.called)
        depth[number] = above + weight
    order: list[int] = []
    seen: set[int] = set()
    stack = [(computation.root, False)]
    while stack:
        number, is_ready = stack.pop()
        if is_ready:
            order.append(number)
        elif number not in seen:
            seen.add(number)
            stack.append((number, True))
            operands = dict.fromkeys(computation.instructions[number].operands)
            first = sorted(operands, key=lambda o: (depth[o] == 0, depth[o]))
            stack.extend((o, False) for o in reversed(first) if o not in seen)
    return tuple(order)


def heavy_computations(module: Module) -> dict[int, bool]:
    """By id, whether a computation has matrix products, itself or in what it calls."""
    found: dict[int, bool] = {}

    def is_heavy(number: int) -> bool:
        if number not in found:
            found[number] = False
            instructions = module.computations[number].instructions.values()
            found[number] = any(
                ins.opcode in PRODUCTS or any(map(is_heavy, ins.called)) for ins in instructions
            )
        return found[number]

    for number in module.computations:
        is_heavy(number)
    return found

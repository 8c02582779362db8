"""Which operators give one value everywhere, so that a tensor too large for values is known by that one?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

_MADE: Final = {"zeros": 0, "ones": 1}
_FROM_ONE: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "_to_copy": torch.clone,
    "clone": torch.clone,
    "any": torch.any,
    "all": torch.all,
    "bitwise_not": torch.bitwise_not,
    "logical_not": torch.logical_not,
}
_FROM_TWO: Final[dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "mul": torch.mul,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
}
_FINITE: Final = {"isnan": False, "isinf": False, "isposinf": False, "isneginf": False}
"""Questions about values that nobody knows, which are taken to be finite."""


def makes_filling(name: str) -> bool:
    """Whether an operator makes a tensor of one value."""
    return name in _MADE or name == "full"


def filling_made(name: str, args: Sequence[Any]) -> Any:
    """That value."""
    return args[1] if name == "full" else _MADE[name]


def takes_fillings(name: str) -> bool:
    """Whether an operator gives one value everywhere where its inputs have one."""
    return name in _FROM_ONE or name in _FROM_TWO


def filling_from(name: str, fillings: Sequence[tuple[torch.dtype, Any]]) -> Any:
    """That value; None where inputs are missing.

    Args:
        name: of the operator.
        fillings: datatype and value of each input.
    """
    with unset_fake_temporarily():
        values = [torch.tensor(value, dtype=dtype) for dtype, value in fillings]
        if name in _FROM_ONE and len(values) == 1:
            return _FROM_ONE[name](values[0]).item()
        if name in _FROM_TWO and len(values) == 2:
            return _FROM_TWO[name](values[0], values[1]).item()
    return None


def answer_if_finite(name: str, args: Sequence[Any]) -> bool | None:
    """What a question about infinities and NaN is answered, where all values are finite; None for other operators."""
    if name in ("eq", "ne") and len(args) > 1:
        same, other = args[0] is args[1], args[1]
        is_infinite = isinstance(other, float) and math.isinf(other)
        return (name == "eq") == same if same or is_infinite else None
    return _FINITE.get(name)

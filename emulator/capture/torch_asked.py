"""What did a program ask of tensors that have no values, and did the answer decide anything?

A number that is only printed does no harm: such reads are counted. One that is compared decides what the program does next: its
line is told, with a way out. So what ``item()`` gives is a number that notices when it is compared.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import torch

from trnprof.emulator.capture.torch_source import caller_line

_MOST_LINES: Final = 5
_TORCH: Final = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep
_OWN: Final = os.path.dirname(os.path.realpath(__file__)) + os.sep
_ARITHMETIC: Final = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow neg abs pos round"
).split()
_COMPARISONS: Final = "lt le gt ge eq ne".split()
_WAY_OUT: Final = (
    "decided by values that fake tensors do not have, taken as 0 or False: {}; if that is the wrong way, "
    "record real tensors (--real, which runs one rank), or let a setting of the script decide"
)


class Asked:
    """Counts what was asked.

    Attributes:
        reads: values read that are not known.
        shapes: operators whose result has a shape that depends on values, and what was assumed of it.
        decisions: lines of the program where such a value decided.
    """

    def __init__(self) -> None:
        self.reads = 0
        self.shapes: Counter[str] = Counter()
        self.decisions: Counter[tuple[str, int]] = Counter()
        self._whole, self._broken = _number_types(self.decide)

    def placeholder(self, value: Any) -> Any:
        """The number in place of a value that is not known."""
        if isinstance(value, bool | complex):
            return value
        return self._whole(value) if isinstance(value, int) else self._broken(value)

    def decide(self) -> None:
        """A value that is not known decides; inside torch it is a check, which passes."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and _is_below(frame.f_code.co_filename, _OWN):
            frame = frame.f_back
        if frame is not None and not _is_below(frame.f_code.co_filename, _TORCH):
            self.decisions[caller_line()] += 1

    def notes(self) -> list[str]:
        """Remarks for people."""
        found = []
        if self.reads:
            found.append(
                f"fake tensors: {self.reads} value(s) were read that are not known (item(), numpy(), …): 0 or False was given"
            )
        for assumed, count in self.shapes.items():
            found.append(f"fake tensors: {assumed} ({count} time(s))")
        if self.decisions:
            lines = [
                f"{file}:{line} ({count} time(s))"
                for (file, line), count in self.decisions.most_common(_MOST_LINES)
            ]
            more = len(self.decisions) - len(lines)
            lines += [f"{more} further line(s)"] if more else []
            found.append(_WAY_OUT.format(", ".join(lines)))
        return found


@functools.cache
def _is_below(file: str, folder: str) -> bool:
    return os.path.realpath(file).startswith(folder)


def _number_types(decide: Callable[[], None]) -> tuple[type, type]:
    """Classes of an int and a float that report each comparison, and hand that on to what is computed from them."""

    def calculated(base: type, name: str) -> Callable[..., Any]:
        method = getattr(base, f"__{name}__")

        def calculate(self: Any, *others: Any) -> Any:
            try:
                value = method(self, *others)
            except ZeroDivisionError:  # a mean over a count that is not known
                value = 0.0
            if value is NotImplemented or isinstance(value, complex):
                return value
            return whole(value) if isinstance(value, int) else broken(value)

        return calculate

    def compared(base: type, name: str) -> Callable[..., Any]:
        method = getattr(base, f"__{name}__")

        def compare(self: Any, *others: Any) -> Any:
            decide()
            return method(self, *others)

        return compare

    def members(base: type) -> dict[str, Any]:
        names = [name for name in _ARITHMETIC if hasattr(base, f"__{name}__")]
        found = {f"__{name}__": calculated(base, name) for name in names}
        found |= {f"__{name}__": compared(base, name) for name in (*_COMPARISONS, "bool")}
        return {
            **found,
            "__hash__": base.__hash__,
            "__reduce__": lambda self: (base, (base(self),)),
        }

    whole: type = type("UnknownInt", (int,), members(int))
    broken: type = type("UnknownFloat", (float,), members(float))
    return whole, broken

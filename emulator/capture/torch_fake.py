"""How does a program run on fake tensors, which have shapes but no values?

Questions about values get a stated placeholder (0, False, zeros), each kind noted once, so that training loops that print
their loss go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)


class Placeholders:
    """Answers for what fake tensors cannot tell.

    Args:
        note: called once for each kind of placeholder.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._noted: set[str] = set()

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The operation's own result, or a placeholder for a value that does not exist."""
        try:
            return func(*args, **kwargs)
        except DataDependentOutputException:
            self.say(str(func), "a value read from a fake tensor is 0 or False")
            tensor = next((a for a in args if isinstance(a, torch.Tensor)), None)
            if tensor is None or func is torch.ops.aten.equal.default:
                return True
            return False if tensor.dtype == torch.bool else 0.0 if tensor.is_floating_point() else 0
        except DynamicOutputShapeException:
            self.say(str(func), "a result whose size depends on values has the size of its input")
            tensor = next(a for a in args if isinstance(a, torch.Tensor))
            if func is torch.ops.aten.nonzero.default:
                return tensor.new_zeros((tensor.numel(), tensor.dim()), dtype=torch.int64)
            return tensor.new_zeros((tensor.numel(),))

    def say(self, kind: str, text: str) -> None:
        """Note one kind of placeholder, once."""
        if kind not in self._noted:
            self._noted.add(kind)
            self._note(f"fake tensors: {kind}: {text}")


def enter_fake_mode(placeholders: Placeholders) -> FakeTensorMode:
    """Make every tensor created from now on a fake one, and let host conversions give zeros."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.__enter__()
    _patch(torch.Tensor, "numpy", _zeros_numpy, placeholders)
    _patch(torch.Tensor, "tolist", lambda t: _zeros_numpy(t).tolist(), placeholders)
    _patch(torch.Tensor, "__array__", lambda t, *_: _zeros_numpy(t), placeholders)
    save = torch.save

    def skip_save(value: Any, *args: Any, **kwargs: Any) -> None:
        placeholders.say("torch.save", "nothing is saved")

    skip_save.__wrapped__ = save  # type: ignore[attr-defined]
    torch.save = skip_save
    # module.to(dtype) would swap tensors that weak references watch; replace the parameters instead
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    return mode


def _zeros_numpy(tensor: torch.Tensor) -> Any:
    dtype = np.float32 if tensor.dtype == torch.bfloat16 else str(tensor.dtype).split(".")[-1]
    return np.zeros(tuple(tensor.shape), dtype=dtype)


def _patch(
    owner: Any, name: str, placeholder: Callable[..., Any], placeholders: Placeholders
) -> None:
    original = getattr(owner, name)

    def answer(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, FakeTensor):
            placeholders.say(f"Tensor.{name}", "zeros")
            return placeholder(self)
        return original(self, *args, **kwargs)

    setattr(owner, name, answer)

"""How many FLOPs does an operation count, as torch.utils.flop_counter counts them?

Its registry lists the attention kernels of GPUs only. The CPU's is the same computation, so it is counted by the registry's own
formula for attention: a model then has the FLOPs that it would have on the device it is meant for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count


def _cpu_attention(*args: Any, **_: Any) -> int:
    return int(sdpa_flop_count(*(t.shape for t in args[:3])))


def _cpu_attention_backward(*args: Any, **_: Any) -> int:
    return int(sdpa_backward_flop_count(*(t.shape for t in args[:4])))


_ALSO: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _cpu_attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _cpu_attention_backward,
}


def model_flops(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> float:
    """FLOPs of one call by the registry behind FlopCounterMode, and CPU attention; 0 for what neither counts.

    Args:
        packet: overload packet of the operator, such as ``torch.ops.aten.mm``.
        args: its arguments.
        kwargs: its keyword arguments.
        out: what it returned.
    """
    count = flop_registry.get(packet) or _ALSO.get(packet)
    return 0.0 if count is None else float(count(*args, **kwargs, out_val=out))

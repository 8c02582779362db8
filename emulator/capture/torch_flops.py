"""How many FLOPs does an operation count, as torch.utils.flop_counter counts them?"""

from __future__ import annotations

from typing import Any

from torch.utils.flop_counter import flop_registry


def model_flops(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> float:
    """FLOPs of one call by the registry behind FlopCounterMode; 0 for what it does not count.

    Args:
        packet: overload packet of the operator, such as ``torch.ops.aten.mm``.
        args: its arguments.
        kwargs: its keyword arguments.
        out: what it returned.
    """
    count = flop_registry.get(packet)
    return 0.0 if count is None else float(count(*args, **kwargs, out_val=out))


def counts_flops(packet: Any) -> bool:
    """Whether the registry counts this operator."""
    return packet in flop_registry

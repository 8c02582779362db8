"""How do the clocks of a NeuronCore and of its host relate? By sync points, or by executions that lasted as long on both.

Rule of the runtime: with the sync point of the same execution, host = sync_cpu + (device - sync_device). A line through all sync points
(least absolute deviations) tells offset and drift, and how far single points are from it: that is the error of whatever is put on one
axis. All absolute times stay whole numbers; only differences from an origin are reals.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

ITERATIONS: Final = 40
MOST_POINTS: Final = 20_000
DURATION_SHARE: Final = 1e-3
DURATION_NS: Final = 2_000
"""Two durations are taken for the same execution if they differ by no more than this share or time."""
AGREE_NS: Final = 10_000
"""Shifts that differ by no more are the same."""
MOST_PAIRS: Final = 4_000_000


@dataclass(frozen=True)
class ClockFit:
    """``host = device + offset_ns + drift * (device - origin_ns)``.

    Attributes:
        offset_ns: at the origin.
        drift: s/s; 0 where too few points tell it.
        origin_ns: on the device's clock.
        points: sync points, or executions matched.
        median_error_ns, max_error_ns: distance of the points from the line.
    """

    offset_ns: int
    drift: float
    origin_ns: int
    points: int
    median_error_ns: float
    max_error_ns: float

    def host_ns(self, device_ns: Ints) -> Ints:
        """Device times on the host's clock."""
        bent: Ints = np.rint((device_ns - self.origin_ns) * self.drift).astype(np.int64)
        return bent + device_ns + self.offset_ns

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)


def fit_clock(device_ns: Ints, host_ns: Ints) -> ClockFit | None:
    """A robust line through sync points; None without any.

    Args:
        device_ns: of each point, on the device's clock.
        host_ns: of each point, on the host's clock.
    """
    if not len(device_ns):
        return None
    every = max(1, len(device_ns) // MOST_POINTS)
    device, host = device_ns[::every], host_ns[::every]
    difference = host - device
    middle = int(np.sort(difference)[(len(difference) - 1) // 2])
    low, high = int(device.min()), int(device.max())
    origin = low + (high - low) // 2
    tau = (device - origin) / max(1, high - low)
    late = (difference - middle).astype(np.float64)
    x, slope = _least_absolute(tau, late, with_slope=len(device) >= 3 and high > low)
    error = np.abs(late - x - slope * tau)
    return ClockFit(
        middle + round(x),
        slope / max(1, high - low),
        origin,
        len(device_ns),
        float(np.median(error)),
        float(error.max()),
    )


def host_by_execution(
    device_ns: Ints, execution: Ints, sync_device_ns: Ints, sync_host_ns: Ints, sync_execution: Ints
) -> tuple[Ints, NDArray[np.bool_]]:
    """Device times on the host's clock by the sync point of their execution (of several, the nearest before).

    Args:
        device_ns: times.
        execution: the execution that each belongs to.
        sync_device_ns: of each sync point.
        sync_host_ns: of each sync point.
        sync_execution: of each sync point.

    Returns:
        The times, and whether their execution has a sync point (else the time is as it was).
    """
    if not len(sync_device_ns):
        return device_ns, np.zeros(len(device_ns), np.bool_)
    order = np.lexsort((sync_device_ns, sync_execution))
    keys, at = sync_execution[order], sync_device_ns[order]
    first = np.searchsorted(keys, execution, "left")
    last = np.searchsorted(keys, execution, "right")
    is_known = last > first
    place = _last_before(at, device_ns, first, np.maximum(last, first + 1))
    chosen = order[np.minimum(place, len(order) - 1)]
    moved = sync_host_ns[chosen] + (device_ns - sync_device_ns[chosen])
    return np.where(is_known, moved, device_ns), is_known


def bind_by_duration(
    device_start: Ints, device_end: Ints, host_start: Ints, host_end: Ints
) -> tuple[ClockFit, int] | None:
    """The shift that lays executions of a device profile over those of a system profile with the same durations.

    Args:
        device_start: of executions, on the device's clock.
        device_end: of executions, on the device's clock.
        host_start: of executions as the system profile has them, on the host's clock.
        host_end: of executions as the system profile has them, on the host's clock.

    Returns:
        The shift that most executions agree on, of several such the one whose durations fit best (its drift is 0); and how many
        shifts as many agree on. None if no durations match.
    """
    if not len(device_start) or not len(host_start):
        return None
    few = max(1, MOST_PAIRS // len(host_start))
    length, known = (device_end - device_start)[:few], host_end - host_start
    close = np.abs(length[:, None] - known[None, :])
    allowed = np.maximum(DURATION_NS, np.rint(length * DURATION_SHARE))[:, None]
    mine, theirs = np.nonzero((close <= allowed) & (length[:, None] > 0))
    if not len(mine):
        return None
    shift, misfit = host_start[theirs] - device_start[mine], close[mine, theirs]
    order = np.argsort(shift, kind="stable")
    shift, misfit = shift[order], misfit[order]
    reach = np.searchsorted(shift, shift + AGREE_NS, "right")
    votes = reach - np.arange(len(shift))
    leading = np.flatnonzero(votes == votes.max())
    sums = np.concatenate([[0], np.cumsum(misfit)])
    best = int(leading[np.argmin(sums[reach[leading]] - sums[leading])])
    agreed = shift[best : reach[best]]
    offset = int(agreed[(len(agreed) - 1) // 2])
    error = np.maximum(np.abs(agreed - offset), misfit[best : reach[best]]).astype(np.float64)
    fit = ClockFit(
        offset,
        0.0,
        int(device_start.min()),
        len(agreed),
        float(np.median(error)),
        float(error.max()),
    )
    apart = 1 + int((np.diff(shift[leading]) > AGREE_NS).sum())
    return fit, apart


def _last_before(at: Ints, wanted: Ints, first: Ints, end: Ints) -> Ints:
    """In each part [first, end) of ``at`` (ascending) the last place not after ``wanted``, else the first one."""
    low, high = first.copy(), end.copy()
    while (high - low > 1).any():
        middle = (low + high) // 2
        is_before = at[np.minimum(middle, len(at) - 1)] <= wanted
        is_open = high - low > 1
        low = np.where(is_open & is_before, middle, low)
        high = np.where(is_open & ~is_before, middle, high)
    return low


def _least_absolute(
    tau: NDArray[np.float64], late: NDArray[np.float64], *, with_slope: bool
) -> tuple[float, float]:
    x, slope = float(np.median(late)), 0.0
    if not with_slope:
        return x, slope
    design = np.column_stack([np.ones(len(tau)), tau])
    found = np.linalg.lstsq(design, late, rcond=None)[0]
    for _ in range(ITERATIONS):
        error = np.abs(late - design @ found)
        weight = 1 / np.maximum(error, max(0.5, 1e-3 * float(np.median(error))))
        scaled = design * np.sqrt(weight)[:, None]
        again = np.linalg.lstsq(scaled, late * np.sqrt(weight), rcond=None)[0]
        moved, found = float(np.abs(again - found).max()), again
        if moved < 0.1:
            break
    return float(found[0]), float(found[1])

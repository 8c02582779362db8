"""Clocks put together by sync points and by executions of equal length, against shifts and drifts that were put in."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trnprof.tracer.formats.neuron.clock import bind_by_duration, fit_clock, host_by_execution

UNIX = 1_760_000_000_000_000_000


@settings(max_examples=40, deadline=None)
@given(st.integers(-(10**15), 10**15), st.floats(-1e-4, 1e-4), st.integers(0, 2**32 - 1))
def test_offset_and_drift_are_found_despite_noise_and_outliers(
    offset: int, drift: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    device = np.sort(random.integers(0, 10**10, 200))
    true = UNIX + offset + device + np.rint(device * drift).astype(np.int64)
    noise = random.integers(-200, 201, 200)
    noise[random.choice(200, 20, replace=False)] += 5_000_000
    fit = fit_clock(device, true + noise)
    assert fit is not None
    assert fit.points == 200
    assert abs(fit.host_ns(device) - true).max() < 400
    assert fit.median_error_ns < 400
    assert fit.max_error_ns > 4_000_000


def test_few_points_give_a_shift_and_none_give_nothing() -> None:
    none = np.empty(0, np.int64)
    assert fit_clock(none, none) is None
    fit = fit_clock(np.array([5, 9]), np.array([UNIX + 5, UNIX + 9]))
    assert fit is not None
    assert (fit.drift, fit.max_error_ns) == (0.0, 0.0)
    assert fit.host_ns(np.array([0])).tolist() == [UNIX]


def test_the_sync_point_of_the_same_execution_decides() -> None:
    # neuron.md 3.4: adjusted = sync_cpu + (event_dev - sync_dev), with the point of the same exec_id
    device = np.array([100, 250, 400, 999])
    execution = np.array([1, 2, 2, 7])
    sync_device, sync_host = np.array([90, 200, 390]), np.array([UNIX, UNIX + 1_000, UNIX + 5_000])
    moved, known = host_by_execution(device, execution, sync_device, sync_host, np.array([1, 2, 2]))
    assert moved.tolist() == [UNIX + 10, UNIX + 1_050, UNIX + 5_010, 999]
    assert known.tolist() == [True, True, True, False]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_executions_are_bound_by_their_durations(seed: int, executions: int) -> None:
    random = np.random.default_rng(seed)
    length = random.integers(10**6, 10**9, 40)
    gap = random.integers(10**4, 10**7, 40)
    host_start = UNIX + np.cumsum(length + gap) - length
    first = int(random.integers(0, 40 - executions + 1))
    mine = slice(first, first + executions)
    shift = int(host_start[first]) - 2_000
    start = host_start[mine] - shift + random.integers(-300, 301, executions)
    end = start + length[mine] + random.integers(-300, 301, executions)
    bound = bind_by_duration(start, end, host_start, host_start + length)
    assert bound is not None
    fit, alternatives = bound
    if alternatives == 1:
        assert abs(fit.offset_ns - shift) <= 600
        assert fit.max_error_ns <= 2_500


def test_equal_executions_leave_the_choice_open() -> None:
    host = UNIX + np.arange(5) * 1_000_000
    bound = bind_by_duration(np.array([0]), np.array([500_000]), host, host + 500_000)
    assert bound is not None
    assert bound[1] == 5
    assert bind_by_duration(np.array([0]), np.array([90_000]), host, host + 500_000) is None

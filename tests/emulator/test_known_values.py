"""Values computed beside fake tensors, held against the same program on real ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from trnprof.emulator.capture.torch_known import Known, KnownValues  # noqa: E402


class Followed(TorchDispatchMode):
    """Runs each operation on fake tensors, and lets it be followed."""

    def __init__(self, known: KnownValues) -> None:
        super().__init__()
        self.known = known

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.known.follow(func, args, kwargs or {}, out)
        return out


STEPS = {
    "ones": lambda a, b: torch.ones(3, 4, dtype=torch.int64),
    "range": lambda a, b: torch.arange(12).view(3, 4),
    "like": lambda a, b: torch.full_like(a, 7),
    "add": lambda a, b: a + b,
    "product": lambda a, b: a * b % 11,
    "greater": lambda a, b: (a > b).long(),
    "row": lambda a, b: a[1:2].expand(3, 4) + 0,
    "turned": lambda a, b: a.t().contiguous().view(3, 4),
    "into": lambda a, b: a.add_(b),
    "row into": lambda a, b: (a[0].fill_(5), a)[1],
    "column into": lambda a, b: (a[:, 1].copy_(b[:, 2]), a)[1],
    "zero": lambda a, b: (b.zero_(), a)[1],
    "where": lambda a, b: torch.where(a > 3, a, b),
    "sum": lambda a, b: a + b.sum(),
    "sorted": lambda a, b: a.sort(-1).values,
    "chosen": lambda a, b: a.gather(1, b.remainder(4)),
    "drawn": lambda a, b: torch.randint(0, 9, (3, 4)),
}


def play(names: list[tuple[str, int, int]]) -> list[Any]:
    values = [torch.zeros(3, 4, dtype=torch.int64), torch.arange(12).view(3, 4) + 1]
    for name, first, second in names:
        values.append(STEPS[name](values[first % len(values)], values[second % len(values)]))
    return values


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 20), st.integers(0, 20)),
        max_size=12,
    )
)
def test_what_is_known_is_right_and_all_is_known_without_draws(
    names: list[tuple[str, int, int]],
) -> None:
    real = play(names)
    known = KnownValues()
    with FakeTensorMode(allow_non_fake_inputs=True), Followed(known):
        fake = play(names)
    is_drawn = any(name == "drawn" for name, *_ in names)
    for ours, truth in zip(fake, real, strict=True):
        found = known.find(ours)
        assert found is not None or is_drawn
        if found is not None and not is_drawn:
            assert found.is_exact
            assert torch.equal(found.values, truth)


def test_a_flag_that_ends_a_loop_is_known_although_another_condition_is_not() -> None:
    known = KnownValues()
    with FakeTensorMode(allow_non_fake_inputs=True), Followed(known):
        tokens = torch.randint(0, 9, (3,))
        is_end = tokens == 2
        going_on = torch.full((3,), False) | is_end
        over = torch.full((3,), True) | is_end
        unknown = is_end & is_end
    assert known.find(tokens) is None
    assert known.find(unknown) is None
    found, ended = known.find(going_on), known.find(over)
    assert found is not None
    assert ended is not None
    assert (found.values.tolist(), found.is_exact) == ([False] * 3, False)
    assert (ended.values.tolist(), ended.is_exact) == ([True] * 3, True)


def test_what_unknown_values_are_written_into_is_no_longer_known() -> None:
    known = KnownValues()
    with FakeTensorMode(allow_non_fake_inputs=True), Followed(known):
        counts = torch.zeros(3, dtype=torch.int64)
        view = counts[1:]
        assert known.find(view) is not None
        counts += torch.randint(0, 9, (3,))
    assert known.find(counts) is None
    assert known.find(view) is None


def counts_of(chosen: Any) -> list[Any]:
    """As programs count the tokens of each of 8 experts."""
    marked = torch.zeros(len(chosen), 8).int().scatter(1, chosen, 1)
    added = torch.zeros(8, dtype=torch.int64).scatter_add_(
        0, chosen.ravel(), torch.ones_like(chosen.ravel())
    )
    places = (chosen.unsqueeze(-1) == torch.arange(8)).cumsum(0)
    return [
        marked.bool(),
        marked.sum(0),
        added,
        places[-1].sum(0),
        chosen.ravel().sort(stable=True)[1],
    ]


def test_what_follows_from_the_choices_of_routers_is_known_however_large() -> None:
    chosen = torch.randint(0, 8, (50_000, 2), generator=torch.Generator().manual_seed(1))
    known = KnownValues()
    with FakeTensorMode(allow_non_fake_inputs=True), Followed(known):
        fake = torch.empty(50_000, 2, dtype=torch.int64)
        known.learn(fake, Known(chosen, True, frozenset(("router",))))
        ours = counts_of(fake)
        filled = torch.zeros(50_000, 2, dtype=torch.int64)
        filled[:10] = 3
        unknown = fake + filled
    for one, truth in zip(ours, counts_of(chosen), strict=True):
        found = known.find(one)
        assert found is not None
        assert found.routers == {"router"}
        assert torch.equal(found.values, truth)
    assert known.find(unknown) is None


@pytest.mark.parametrize("size", [3, 100_000])
def test_values_that_nobody_knows_are_finite(size: int) -> None:
    known = KnownValues()
    with FakeTensorMode(allow_non_fake_inputs=True), Followed(known):
        drawn = torch.randn(size)
        answers = [
            torch.isfinite(drawn).all(),
            (drawn == drawn).all(),
            ~torch.isnan(drawn).any(),
            ~(torch.isnan(drawn) | torch.isinf(drawn)).any(),
            ~(drawn.abs() == float("inf")).any(),
        ]
        other = (drawn == 1.0).any()
    assert [known.find(answer).values.item() for answer in answers] == [True] * len(answers)
    assert known.find(other) is None

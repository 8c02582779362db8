"""Which part of time is shown? Integer nanoseconds of any size, kept inside the trace, with a stack of earlier views."""

from __future__ import annotations

from dataclasses import dataclass, replace

MIN_SPAN_NS = 8
"""Zooming in stops here; a frame shows at least 1 ns a column (see ``at_least``)."""
MAX_PAST = 200


@dataclass(frozen=True)
class Viewport:
    """A window [t0, t1) into the time [lo, hi) of one clock.

    Attributes:
        lo: first moment of the clock, ns.
        hi: last moment.
        t0: first moment shown.
        t1: end of what is shown.
        past: earlier windows, newest last.
        future: windows that ``back`` has left, newest last.
        gesture: what made this window; one pan after another is one entry of ``past``.
    """

    lo: int
    hi: int
    t0: int
    t1: int
    past: tuple[tuple[int, int], ...] = ()
    future: tuple[tuple[int, int], ...] = ()
    gesture: str = ""

    @classmethod
    def whole(cls, lo: int, hi: int) -> Viewport:
        """A window that shows everything."""
        return cls(lo, hi, lo, max(hi, lo + MIN_SPAN_NS))

    @property
    def span(self) -> int:
        """Length of the window, ns."""
        return self.t1 - self.t0

    @property
    def is_whole(self) -> bool:
        """Whether all of the clock is in the window."""
        return self.t0 <= self.lo and self.t1 >= self.hi

    def at_least(self, span: int) -> Viewport:
        """The same window, widened around its centre to at least ``span`` ns; no entry in the stack."""
        if self.span >= span:
            return self
        t0, t1 = self._clamped(self.t0 - (span - self.span) // 2, span)
        return replace(self, t0=t0, t1=t1)

    def zoom(self, numerator: int, denominator: int, at: int) -> Viewport:
        """The window times numerator/denominator, the moment ``at`` staying where it is."""
        rounding = denominator - 1 if numerator > denominator else 0
        span = max((self.span * numerator + rounding) // denominator, MIN_SPAN_NS)
        whole = max(self.hi - self.lo, MIN_SPAN_NS)
        span = min(span, max(whole, self.span))
        if numerator > denominator and span >= whole:
            return self.fit()
        return self._moved(at - (at - self.t0) * span // self.span, span, "zoom")

    def pan(self, numerator: int, denominator: int) -> Viewport:
        """The window moved by a fraction of its length, at least 1 ns; positive is later."""
        shift = self.span * numerator // denominator
        shift = shift or (1 if numerator > 0 else -1)
        return self._moved(self.t0 + shift, self.span, "pan")

    def fit(self) -> Viewport:
        """Everything."""
        return self._moved(self.lo, max(self.hi - self.lo, MIN_SPAN_NS), "fit")

    def centre(self, t0: int, t1: int) -> Viewport:
        """The window moved so that [t0, t1) is in its middle."""
        return self._moved((t0 + t1) // 2 - self.span // 2, self.span, "centre")

    def show(self, t0: int, t1: int, margin_percent: int = 10) -> Viewport:
        """A window around [t0, t1) with a margin on both sides."""
        margin = max((t1 - t0) * margin_percent // 100, 1)
        return self._moved(t0 - margin, t1 - t0 + 2 * margin, "show")

    def back(self) -> Viewport:
        """The window before this one."""
        if not self.past:
            return self
        t0, t1 = self.past[-1]
        future = (*self.future, (self.t0, self.t1))
        return replace(self, t0=t0, t1=t1, past=self.past[:-1], future=future, gesture="")

    def forward(self) -> Viewport:
        """The window that ``back`` left."""
        if not self.future:
            return self
        t0, t1 = self.future[-1]
        past = (*self.past, (self.t0, self.t1))
        return replace(self, t0=t0, t1=t1, past=past, future=self.future[:-1], gesture="")

    def _clamped(self, t0: int, span: int) -> tuple[int, int]:
        t0 = max(min(t0, self.hi - span), self.lo)
        return t0, t0 + span

    def _moved(self, t0: int, span: int, gesture: str) -> Viewport:
        t0, t1 = self._clamped(t0, min(max(span, MIN_SPAN_NS), max(self.hi - self.lo, MIN_SPAN_NS)))
        if (t0, t1) == (self.t0, self.t1):
            return self
        past = self.past
        if gesture != "pan" or self.gesture != "pan":
            past = (*past, (self.t0, self.t1))[-MAX_PAST:]
        return replace(self, t0=t0, t1=t1, past=past, future=(), gesture=gesture)

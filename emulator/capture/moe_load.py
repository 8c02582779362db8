"""How many tokens go to which expert, where no data can say it? A load is chosen: uniform, Zipf's law, or shares from a file.

Without a seed: the same load gives the same choices. Expert e of a Zipf load of exponent S has a share in proportion to (e + 1) ** -S, so
that the first expert is the busiest, on rank 0 where experts are placed in order. A token goes to no expert twice, so that none gets
more than all tokens; what is cut off there goes to the others in proportion.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from trnprof.tracer.errors import CaptureError

UNIFORM: Final = "uniform"
ROUTING_NOTE: Final = "expert routing"
"""How the note on what was assumed begins."""
_ZIPF: Final = "zipf:"
_FORMS: Final = "uniform, zipf:EXPONENT (zipf:1.1) or a file with the shares of the experts"
_GOLDEN: Final = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class MoeLoad:
    """A load of experts.

    Attributes:
        text: as it was asked for.
        exponent: of Zipf's law; 0 is uniform.
        layers: shares of the experts from a file, one row for all layers or one for each; empty without a file.
    """

    text: str = UNIFORM
    exponent: float = 0.0
    layers: tuple[tuple[float, ...], ...] = ()

    def shares(self, layer: int, experts: int) -> np.ndarray:
        """Shares of the experts of a layer, their sum 1.

        Args:
            layer: layers are counted from 0 in the order in which their routers first run.
            experts: so many are chosen among.

        Raises:
            CaptureError: the file has shares for other numbers of layers or experts.
        """
        if not self.layers:
            weights = np.arange(1, experts + 1, dtype=np.float64) ** -self.exponent
            return np.asarray(weights / weights.sum())
        if len(self.layers) == 1:
            layer = 0
        if layer >= len(self.layers):
            raise CaptureError(
                f"--moe-load {self.text}: shares for {len(self.layers)} layers, but the program has more"
            )
        found = np.array(self.layers[layer])
        if len(found) != experts:
            raise CaptureError(
                f"--moe-load {self.text}: shares for {len(found)} experts, but the program chooses among {experts}"
            )
        return np.asarray(found / found.sum())


def read_moe_load(text: str) -> MoeLoad:
    """What ``--moe-load`` asks for.

    A file is JSON (a list of shares, or a list of such lists, one a layer) or text: a line a layer, shares between commas; a
    single column is one layer. Shares are proportions of any sum.

    Raises:
        CaptureError: an unknown form, or a file that is not there or holds no shares.
    """
    if text == UNIFORM:
        return MoeLoad()
    if text.startswith(_ZIPF):
        try:
            exponent = float(text.removeprefix(_ZIPF))
        except ValueError:
            exponent = math.nan
        if not 0 <= exponent < math.inf:
            raise CaptureError(
                f"--moe-load {text}: the exponent is a number from 0, such as zipf:1.1"
            )
        return MoeLoad(text, exponent)
    path = Path(text)
    if not path.is_file():
        raise CaptureError(f"--moe-load {text}: no such file; expected {_FORMS}")
    try:
        content = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise CaptureError(f"--moe-load {text}: cannot be read: {reason}") from error
    return MoeLoad(text, layers=_checked(text, _rows(text, content)))


def _rows(text: str, content: str) -> list[Any]:
    if content.lstrip().startswith(("[", "{")):
        try:
            found = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise CaptureError(f"--moe-load {text}: no valid JSON: {error}") from error
        if not isinstance(found, list):
            raise CaptureError(
                f"--moe-load {text}: expected a list of shares, or a list of such lists, one a layer"
            )
        return found if found and isinstance(found[0], list) else [found]
    rows = []
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                rows.append([float(share) for share in line.split(",")])
            except ValueError:
                raise CaptureError(
                    f"--moe-load {text}, line {number}: expected shares between commas, got {line.strip()[:40]!r}"
                ) from None
    if rows and all(len(row) == 1 for row in rows):
        return [[row[0] for row in rows]]
    return rows


def _checked(text: str, rows: Sequence[Any]) -> tuple[tuple[float, ...], ...]:
    if not rows or not all(rows):
        raise CaptureError(f"--moe-load {text}: it holds no shares")
    for number, row in enumerate(rows, 1):
        is_row = isinstance(row, list) and all(
            isinstance(s, int | float) and not isinstance(s, bool) and 0 <= s < math.inf
            for s in row
        )
        if not is_row:
            raise CaptureError(
                f"--moe-load {text}, layer {number}: shares are numbers from 0, one an expert"
            )
        if not sum(row) > 0:
            raise CaptureError(f"--moe-load {text}, layer {number}: all shares are 0")
    return tuple(tuple(map(float, row)) for row in rows)


def tokens_per_expert(shares: np.ndarray, tokens: int, choices: int) -> np.ndarray:
    """How many of the tokens each expert gets, their sum ``tokens * choices``.

    Args:
        shares: [experts], their sum 1.
        tokens: that are routed.
        choices: experts that each token goes to, at most all.

    Returns:
        int64 [experts]: the largest remainders are rounded up; of equal ones, those that lie spread over the experts.
    """
    quota, is_full = shares * tokens * choices, np.zeros(len(shares), bool)
    while (over := ~is_full & (quota > tokens)).any():
        is_full |= over
        rest = tokens * (choices - int(is_full.sum()))
        free = shares[~is_full]
        quota[is_full] = tokens
        quota[~is_full] = rest * (free / free.sum() if free.sum() else 1 / max(1, len(free)))
    counts = np.floor(quota + 1e-9).astype(np.int64)
    remainder = np.where(counts < tokens, quota - counts, -1.0).round(9)
    spread = np.argsort(np.arange(len(shares)) * stride_of(len(shares)) % len(shares))
    first = np.lexsort((np.argsort(spread), -remainder))
    counts[first[: tokens * choices - int(counts.sum())]] += 1
    return np.asarray(counts)


def chosen_experts(counts: np.ndarray, tokens: int, choices: int) -> np.ndarray:
    """Experts that each token goes to, all different, so that each expert gets its count: int64 [tokens, choices].

    The tokens of an expert, and the places among a token's choices, are spread evenly.
    """
    position = np.arange(tokens * choices)
    token = position % tokens * stride_of(tokens) % tokens
    place = (position // tokens + token) % choices
    chosen = np.empty((tokens, choices), np.int64)
    chosen[token, place] = np.repeat(np.arange(len(counts)), counts)
    return chosen


def stride_of(count: int) -> int:
    """A step that visits all of so many places, far from those visited before: near the golden section, without common divisor."""
    step = max(1, round(count * _GOLDEN))
    while math.gcd(step, count) != 1:
        step += 1
    return step

"""How are the operators lowered that choose: the largest of a row, a draw, membership in a few values?

* ``topk``: VectorE finds the 8 largest of a row, their places, and strikes them out, 8 at a time (max8, find_index8 and
  match_replace8 of the NKI instruction set);
* ``multinomial``: noise, quotient, and the place of the maximum, as PyTorch draws one sample; further draws do the same again;
* ``isin``: a comparison with each of the values and, from the second on, a union with what was found.
"""

from __future__ import annotations

import math

from trnprof.emulator.core import Core
from trnprof.emulator.lowering.elementwise import elementwise_plan
from trnprof.emulator.lowering.plan import OpPlan, numel, rows_and_columns
from trnprof.emulator.lowering.rowwise import row_plan
from trnprof.emulator.workload import Operation

_AT_ONCE = 8
"""Largest values that one max8 finds."""
_MOST_VALUES = 64
"""More values than these are sorted rather than compared one by one: left to the fallback."""


def plan_selection(core: Core, op: Operation) -> OpPlan | None:
    """The plan of topk, multinomial and isin, or None for other operators."""
    if op.name not in ("topk", "multinomial", "isin") or not op.inputs or not op.outputs:
        return None
    source = op.inputs[0]
    rows, columns = rows_and_columns(source)
    if op.name == "topk":
        chosen = op.outputs[0].shape[-1] if op.outputs[0].shape else 1
        return row_plan(core, op, "RR1" * max(1, math.ceil(chosen / _AT_ONCE)), rows, columns)
    if op.name == "multinomial":
        draws = op.outputs[0].shape[-1] if op.outputs[0].shape else 1
        return row_plan(core, op, "12RR" * draws, rows, columns)
    values = numel(op.inputs[1]) if len(op.inputs) > 1 else 1
    if values > _MOST_VALUES:
        return None
    code = "1" + "12" * (max(1, values) - 1)
    return elementwise_plan(core, op, code, numel(source), rows, columns)

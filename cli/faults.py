"""Which ranks, chips and links does the user want slow, late or gone? ``--slow``, ``--skew``, ``--degrade`` and ``--fail`` of a program's run."""

from __future__ import annotations

from collections.abc import Sequence

from trnprof.cli.collective_options import read_fault, read_named, read_skew, read_slow
from trnprof.emulator.ranks.faults import Faults


def read_faults(
    slow: Sequence[str], skew: Sequence[str], degrade: Sequence[str], fail: Sequence[str]
) -> Faults:
    """What the options say.

    Raises:
        TrnprofError: another form than they have, or a rank or chip twice.
    """
    ranks = [text for text in slow if text.partition("=")[0].strip() == "rank"]
    chips = [text for text in slow if text not in ranks]
    return Faults(
        slow_ranks=read_slow(ranks, "rank"),
        slow_chips=read_slow(chips, "chip"),
        late_ns={rank: ps // 1000 for rank, ps in read_skew(skew).items()},
        degraded=tuple(read_fault(text, "--degrade", "link") for text in degrade),
        failed=tuple(read_named(text, "--fail", "link") for text in fail),
    )

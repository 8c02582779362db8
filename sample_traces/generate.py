"""Record the sample traces again: ``python sample_traces/generate.py [FOLDER]``.

Each is a script of examples/ recorded with ``--reproducible`` and compacted; the same version of trnprof and PyTorch gives the
same tables, which a test checks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"

SAMPLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "mlp-trn2": ("mlp.py", ("--system", "trn2")),
    "transformer-trn2": ("transformer.py", ("--system", "trn2")),
    "convnet-trn2-eager": ("convnet.py", ("--system", "trn2", "--execution", "eager")),
}
"""Name of the trace: script and options."""


def generate(name: str, folder: Path) -> Path:
    """Record one sample into a folder; returns its path."""
    script, options = SAMPLES[name]
    path = folder / f"{name}.trnprof"
    trnprof = [sys.executable, "-m", "trnprof.cli.main"]
    record = [*trnprof, "record", "--reproducible", "--force", *options, "-o", str(path)]
    subprocess.run([*record, "--", sys.executable, str(EXAMPLES / script)], check=True)
    subprocess.run([*trnprof, "compact", str(path)], check=True)
    return path


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for sample in SAMPLES:
        print(generate(sample, target))

"""Makes ``tests.emulator.programs`` importable however pytest was started."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = str(Path(__file__).parents[2])
if _ROOT not in sys.path:
    sys.path.append(_ROOT)

"""Where is each pane on a screen of a given size?"""

from __future__ import annotations

from dataclasses import dataclass

MIN_WIDTH, MIN_HEIGHT = 40, 10
PERCENT_WIDTH = 8
"""Columns of the figure at the right of a row, the space before it included."""


@dataclass(frozen=True)
class Layout:
    """Places in cells. Header, minimap and ruler are lines 0, 1, 2; status and keys are the last two.

    Attributes:
        width: of the screen.
        height: of the screen.
        gutter: columns of the track names.
        columns: columns of time.
        figures: columns of the busy percentage; 0 on a narrow screen.
        tracks: lines of tracks.
        drawer: lines of details, the title included; 0 when closed.
    """

    width: int
    height: int
    gutter: int
    columns: int
    figures: int
    tracks: int
    drawer: int

    @property
    def tracks_y(self) -> int:
        """First line of the tracks."""
        return 3

    @property
    def drawer_y(self) -> int:
        """First line of the drawer."""
        return 3 + self.tracks

    @property
    def fits(self) -> bool:
        """Whether the screen is large enough to draw on."""
        return self.width >= MIN_WIDTH and self.height >= MIN_HEIGHT


def lay_out(width: int, height: int, label_width: int, rows: int, has_selection: bool) -> Layout:
    """The layout of a screen.

    Args:
        width: of the screen, in cells.
        height: likewise.
        label_width: of the longest track name with its indent.
        rows: visible tracks.
        has_selection: on a low screen the drawer is open only for a selected event.
    """
    gutter = 8 if width < 60 else min(max(label_width + 3, 14), 28 if width >= 100 else 20)
    figures = 0 if width < 60 else PERCENT_WIDTH
    middle = max(height - 5, 0)
    if height >= 24:
        drawer = min(max(height // 3, 8), 14) if has_selection else 5
        drawer = max(drawer, min(middle - rows, 14 if has_selection else 7))
    else:
        drawer = min(6, middle // 2) if has_selection else 0
    return Layout(
        width, height, gutter, max(width - gutter - figures, 1), figures, middle - drawer, drawer
    )

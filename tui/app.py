"""How does a person browse a trace? The Textual application around the timeline."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType

from trnprof.tui.frame import Options
from trnprof.tui.palette import BACKGROUND
from trnprof.tui.scene import Scene, open_scene
from trnprof.tui.widgets.timeline import Timeline

if TYPE_CHECKING:
    from trnprof.tracer.reader import Trace


class TimelineApp(App[None]):
    """The viewer of one trace.

    Args:
        trace: what to browse.
        ascii: only ASCII characters.
        colour: False for none; by default NO_COLOR decides.

    Raises:
        TraceError: times that cannot be drawn on one axis.
    """

    TITLE = "trnprof"
    ENABLE_COMMAND_PALETTE = False
    CSS = f"Screen, Timeline {{ background: {BACKGROUND}; overflow: hidden; width: 100%; height: 100%; }}"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave", "quit", id="app.quit", show=False),
        Binding("ctrl+q", "quit", "quit", id="app.quit_always", show=False, priority=True),
    ]

    def __init__(self, trace: Trace, *, ascii: bool = False, colour: bool | None = None) -> None:
        colour = not os.environ.get("NO_COLOR") if colour is None else colour
        super().__init__(ansi_color=not colour)
        self.scene: Scene = open_scene(trace)
        self.options = Options(ascii=ascii, colour=colour)

    def compose(self) -> ComposeResult:
        """The timeline, alone on the screen."""
        yield Timeline(self.scene, self.options)

    def on_mount(self) -> None:
        """Keys go to the timeline; without colour the background is the terminal's own."""
        timeline = self.query_one(Timeline)
        timeline.focus()
        if not self.options.colour:
            self.screen.styles.background = timeline.styles.background = "ansi_default"

    def action_leave(self) -> None:
        """Close the help, or else quit."""
        timeline = self.query_one(Timeline)
        if timeline.view.is_help:
            timeline.action_act("help")
        else:
            self.exit()


def run_app(trace: Trace, *, ascii: bool = False) -> int:
    """Browse until the person quits; the exit code.

    The garbage collector is told to leave the trace alone, which otherwise costs frames of 25 ms now and then.
    """
    app = TimelineApp(trace, ascii=ascii)
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    app.run()
    return app.return_code or 0

"""tmux through libtmux, as a careful user drives it: the end of a command is told by `tmux wait-for`, not guessed."""

from __future__ import annotations

import importlib
import itertools
import os
import shutil
import tempfile
from typing import Any

from engines.base import Engine
from measuring.engine import Answer

__all__ = ["Tmux"]

_HISTORY = "200000"
"""Lines that a pane keeps; what is longer is lost."""


class Tmux(Engine):
    """A server of our own, a window for each key. The answer is what the pane shows, so tabs and colours are gone."""

    threads = True

    def __init__(self) -> None:
        if shutil.which("tmux") is None:
            raise LookupError("there is no program tmux")
        self.directory = tempfile.mkdtemp(prefix="swx-tmux-")
        make: Any = importlib.import_module("libtmux").Server
        self.server = make(socket_path=os.path.join(self.directory, "s"), config_file=os.devnull)
        self.panes: dict[str, Any] = {}
        self.names = itertools.count()

    async def open(self, key: str) -> None:
        name = f"s{next(self.names)}"
        session = self.server.new_session(session_name=name, x=200, y=50, window_command="bash --norc --noprofile")
        session.set_option("history-limit", _HISTORY)
        self.panes[key] = session.active_window.split(shell="bash --norc --noprofile")
        self.run_now(key, "PS1=")

    async def close(self, key: str) -> None:
        self.server.kill_session(self.panes.pop(key).session.session_name)
        if not self.panes:
            self.server.kill()

    def run_now(self, key: str, text: str) -> Answer:
        pane, channel = self.panes[key], f"c{next(self.names)}"
        socket = os.path.join(self.directory, "s")
        pane.send_keys("clear; tmux -S " + socket + " clear-history", enter=True, suppress_history=False)
        pane.send_keys(f"{text}; echo F$?; tmux -S {socket} wait-for -S {channel}", suppress_history=False)
        self.server.cmd("wait-for", channel)
        lines = pane.cmd("capture-pane", "-pJ", "-S", "-").stdout
        for end in range(len(lines) - 1, -1, -1):
            if lines[end].startswith("F") and lines[end][1:].isdigit():
                begin = max((i for i in range(end) if f"wait-for -S {channel}" in lines[i]), default=-1)
                return "\n".join(lines[begin + 1 : end]), int(lines[end][1:])
        raise RuntimeError("the end of the command is not on the screen")

"""Loggers that print to standard error, in colour if it is a terminal that supports it.

`SWE_REX_LOG_STREAM_LEVEL` is the minimum level to print, as a name or a number; its default is INFO.
`SWE_AGENT_LOG_TIME` adds the time to each line. Where the package stands in for SWE-ReX, lines go to standard output
and the default is DEBUG, as there. Of this package only `visible` is imported, and rich at the first line.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from swerex_c.utils.visible import visible

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable

__all__ = ["get_logger", "register_thread_name"]

_SET_UP_LOGGERS: set[str] = set()
_ADDITIONAL_HANDLERS: list[logging.Handler] = []
_THREAD_NAME_TO_LOG_SUFFIX: dict[str, str] = {}
_set_up_lock = threading.Lock()


def _stands_in() -> bool:
    """Check whether this process has imported the package by the name of SWE-ReX."""
    return "swerex" in sys.modules


def _interpret_level_from_env(level: str | None, *, default: int | None = None) -> int:
    """Return the number of a level that is given by number or by name, or the default if it is neither."""
    if default is None:
        default = logging.DEBUG if _stands_in() else logging.INFO
    if not level:
        return default
    if level.isdecimal():
        return int(level)
    return logging.getLevelNamesMapping().get(level.upper(), default)


def register_thread_name(name: str) -> None:
    """Set the suffix, by default the thread's name, of the loggers that this thread gets from now on."""
    _THREAD_NAME_TO_LOG_SUFFIX[threading.current_thread().name] = name


def get_logger(name: str, *, emoji: str = "🦖") -> logging.Logger:
    """Return the logger of this name, set up to print lines unless it has handlers.

    In threads other than the main thread, the logger's name gets the thread's name as a suffix.

    Args:
        emoji: prefix of the lines.
    """
    thread = threading.current_thread().name
    if thread != "MainThread":
        name = f"{name}-{_THREAD_NAME_TO_LOG_SUFFIX.get(thread, thread)}"
    logger = logging.getLogger(name)
    with _set_up_lock:
        if logger.hasHandlers():
            return logger
        level = _interpret_level_from_env(os.environ.get("SWE_REX_LOG_STREAM_LEVEL"))
        handler = _TerminalHandler(emoji)
        handler.setLevel(level)
        logger.setLevel(level)
        logger.addHandler(handler)
        for additional in _ADDITIONAL_HANDLERS:
            logger.addHandler(additional)
        logger.propagate = False
        _SET_UP_LOGGERS.add(name)
    return logger


class _TerminalHandler(logging.Handler):
    """Handler that imports rich for its first record: most loggers never have one."""

    def __init__(self, emoji: str):
        super().__init__()
        self._emoji = emoji.rstrip() + " "
        self._printer: logging.Handler | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._printer is None:
            self._printer = _rich_handler(self._emoji)
        if self.formatter is not None:
            self._printer.setFormatter(self.formatter)
        self._printer.emit(record)


class _PlainHandler(logging.StreamHandler[Any]):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def _rich_handler(emoji: str) -> logging.Handler:
    try:
        from rich.console import Console
        from rich.logging import RichHandler
        from rich.text import Text
    except ImportError:  # `swerex-c run` with a Python that has its own packages
        return _PlainHandler(sys.stdout if _stands_in() else sys.stderr)

    class EmojiHandler(RichHandler):
        def get_level_text(self, record: logging.LogRecord) -> Text:
            return Text.styled((emoji + record.levelname).ljust(10), f"logging.level.{record.levelname.lower()}")

        def render_message(self, record: logging.LogRecord, message: str) -> ConsoleRenderable:
            return super().render_message(record, visible(message))

    console = Console(stderr=not _stands_in())
    return EmojiHandler(console=console, show_time=bool(os.environ.get("SWE_AGENT_LOG_TIME")), show_path=False)

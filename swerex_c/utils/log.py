"""Loggers that print to the terminal, in colour where it has any.

`SWE_REX_LOG_STREAM_LEVEL` sets what is printed: a level's name or number, DEBUG unless set. `SWE_AGENT_LOG_TIME` adds
the time to each line. This module imports no other part of the package, and rich only for the first line it prints.
"""

from __future__ import annotations

import logging
import os
import threading

__all__ = ["get_logger", "register_thread_name"]

_SET_UP_LOGGERS: set[str] = set()
_ADDITIONAL_HANDLERS: list[logging.Handler] = []
_THREAD_NAME_TO_LOG_SUFFIX: dict[str, str] = {}
_set_up_lock = threading.Lock()


def _interpret_level_from_env(level: str | None, *, default: int = logging.DEBUG) -> int:
    """The number of a level that is given by number or by name; the default if it is neither."""
    if not level:
        return default
    if level.isdecimal():
        return int(level)
    return logging.getLevelNamesMapping().get(level.upper(), default)


_STREAM_LEVEL = _interpret_level_from_env(os.environ.get("SWE_REX_LOG_STREAM_LEVEL"))


def register_thread_name(name: str) -> None:
    """Have the loggers that this thread asks for from now on end in `name` instead of in the thread's own name."""
    _THREAD_NAME_TO_LOG_SUFFIX[threading.current_thread().name] = name


def get_logger(name: str, *, emoji: str = "🦖") -> logging.Logger:
    """The logger of this name, set up to print its lines behind `emoji` unless somebody has set it up already.

    Off the main thread the name is extended by that of the thread, so that parallel work can be told apart.
    """
    thread = threading.current_thread().name
    if thread != "MainThread":
        name = f"{name}-{_THREAD_NAME_TO_LOG_SUFFIX.get(thread, thread)}"
    logger = logging.getLogger(name)
    with _set_up_lock:
        if logger.hasHandlers():
            return logger
        handler = _TerminalHandler(emoji)
        handler.setLevel(_STREAM_LEVEL)
        logger.setLevel(_STREAM_LEVEL)
        logger.addHandler(handler)
        for additional in _ADDITIONAL_HANDLERS:
            logger.addHandler(additional)
        logger.propagate = False
        _SET_UP_LOGGERS.add(name)
    return logger


class _TerminalHandler(logging.Handler):
    """Prints through rich, which it imports for its first record: most loggers never have one."""

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


def _rich_handler(emoji: str) -> logging.Handler:
    from rich.logging import RichHandler
    from rich.text import Text

    class EmojiHandler(RichHandler):
        def get_level_text(self, record: logging.LogRecord) -> Text:
            return Text.styled((emoji + record.levelname).ljust(10), f"logging.level.{record.levelname.lower()}")

    return EmojiHandler(show_time=bool(os.environ.get("SWE_AGENT_LOG_TIME")), show_path=False)

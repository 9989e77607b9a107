"""What a server writes into its log: lines for people, or one JSON object a line for programs.

Everything goes to standard error. A request that succeeded is logged at debug, one that failed and a client that
connected at info. Keys are never logged, and what clients send and get is not either, at info and above.
"""

from __future__ import annotations

import logging
import sys

from swerex_c.exceptions import NotAvailableError

__all__ = ["FORMATS", "LOGGER", "connected", "listening", "request_done", "set_up"]

FORMATS = ("text", "json")

LOGGER = logging.getLogger("rex-server")


def set_up(log_format: str = "text", level: str = "info") -> None:
    """Have the whole process log to standard error.

    Args:
        log_format: "text" or "json".
        level: the least severe level that is logged, by name.

    Raises:
        NotAvailableError: if the format is "json" and python-json-logger is not installed.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_json_formatter() if log_format == "json" else _text_formatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # What strangers send to a port is not worth a warning each.
    logging.getLogger("uvicorn.error").setLevel(max(root.level, logging.ERROR) if root.level > logging.DEBUG else 0)
    logging.getLogger("asyncio").setLevel(max(root.level, logging.WARNING))


def _text_formatter() -> logging.Formatter:
    return logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")


def _json_formatter() -> logging.Formatter:
    try:
        from pythonjsonlogger.json import JsonFormatter
    except ImportError:
        msg = "--log-format json needs the package python-json-logger: pip install 'swerex-c[logs]'"
        raise NotAvailableError(msg) from None
    names = {"asctime": "time", "levelname": "level", "name": "logger"}
    formatter: logging.Formatter = JsonFormatter(
        "%(asctime)s %(levelname)s %(name)s %(message)s", rename_fields=names, datefmt="%Y-%m-%dT%H:%M:%S%z"
    )
    return formatter


def listening(places: str) -> None:
    """Log where the server listens, whatever the level: there may be no other way to know the port."""
    record = LOGGER.makeRecord(LOGGER.name, logging.INFO, __file__, 0, "Listening on %s", (places,), None)
    LOGGER.handle(record)


def connected(client: str, wire: str) -> None:
    """Log that a client has connected. `wire`: what it speaks."""
    LOGGER.info("%s connected (%s)", client, wire, extra={"client": client, "wire": wire})


def request_done(method: str, seconds: float, outcome: str, client: str, request_id: str, failed: bool) -> None:
    """Log that a request was answered. `outcome`: a status, or the name of an exception."""
    level = logging.INFO if failed else logging.DEBUG
    if not LOGGER.isEnabledFor(level):
        return
    method, request_id = _one_line(method), _one_line(request_id[:100])
    facts = {"method": method, "seconds": round(seconds, 6), "outcome": outcome, "client": client}
    if request_id:
        facts["request_id"] = request_id
    LOGGER.log(level, "%s from %s: %s in %.6f s", method, client, outcome, seconds, extra=facts)


def _one_line(text: str) -> str:
    """What a stranger named, without what could end a line or move a terminal's cursor."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()

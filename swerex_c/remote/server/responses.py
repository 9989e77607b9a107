"""Responses of the HTTP/JSON server."""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from swerex_c.remote.wire.exceptions import to_wire

__all__ = ["failure", "json_response"]


def json_response(status: int, value: Any, headers: dict[str, str] | None = None) -> Response:
    """Return a response in ASCII JSON, in which lone surrogates are escapes."""
    return Response(json.dumps(value).encode(), status, headers, "application/json")


def failure(error: Exception, headers: dict[str, str] | None = None) -> Response:
    """Return the response that carries an exception, or that says why a request is refused: an HTTPException."""
    if isinstance(error, HTTPException):
        return json_response(error.status_code, {"detail": error.detail}, dict(error.headers or headers or {}))
    return json_response(511, {"swerexception": to_wire(error)}, headers)

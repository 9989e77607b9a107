"""Encode exceptions as dictionaries for the wire, and decode them.

An exception is sent as a dictionary with the fields of SWE-ReX's `_ExceptionTransfer`: `message`, `class_path`,
`traceback` and `extra_info`. A SWE-ReX client creates an exception of the class at `class_path` from `message` alone,
and attaches `extra_info`. Further data for a swerex_c client to recreate the exception is in `extra_info` at `DETAILS`.

Decoding chooses the class from an allow-list of names: a peer cannot cause any other import, lookup or call.
`from_wire` does not fail for any dictionary.
"""

from __future__ import annotations

import base64
import builtins
import traceback
from typing import Any

from swerex_c import exceptions
from swerex_c.exceptions import ProtocolError, SwerexException
from swerex_c.utils.visible import visible

__all__ = ["from_wire", "to_wire"]

DETAILS = "swerex_c"
"""Key in `extra_info` for the data that only this package reads."""

_MOST_TRACEBACK = 64 << 10
"""Maximum characters of a traceback to send. The end is sent, because it matters most."""

_MOST_OBJECT = 1 << 20
"""Maximum length of a Unicode error's object to send whole; of a longer object, the part around the error is sent."""

_AROUND = 64
"""Bytes or characters of such a part before and after the error."""

_OURS: dict[str, type[SwerexException]] = {name: getattr(exceptions, name) for name in exceptions.__all__}

_ATTRIBUTES: dict[str, tuple[type, ...]] = {
    "output": (str,),
    "exit_code": (int, type(None)),
    "signal": (int, type(None)),
    "errno": (int, type(None)),
}
"""Attributes of this package's exceptions to send and set, with their allowed types."""

_ORIGINAL = {
    "BashIncorrectSyntaxError",
    "CommandTimeoutError",
    "DeploymentNotStartedError",
    "DeploymentStartupError",
    "DockerPullError",
    "DummyOutputsExhaustedError",
    "NoExitCodeError",
    "NonZeroExitCodeError",
    "SessionDoesNotExistError",
    "SessionExistsError",
    "SessionNotInitializedError",
    "SwerexException",
}
"""Names of the exceptions that SWE-ReX defines too."""

_BUILTINS: dict[str, type[Exception]] = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and not issubclass(kind, Warning | StopIteration | StopAsyncIteration | ExceptionGroup | UnicodeTranslateError)
}
"""Exceptions of Python that report a failure, and can be made from scalars and bytes."""


# Encoding


def to_wire(error: BaseException) -> dict[str, Any]:
    """Return the dictionary to send for an exception.

    JSON and msgpack can encode it, except for lone surrogates.
    """
    kind, text = type(error), _text(error)
    name, class_path = kind.__name__, f"{kind.__module__}.{kind.__qualname__}"
    extra = getattr(error, "extra_info", None)
    extra_info = _plain(extra) if isinstance(extra, dict) else {}
    details: dict[str, Any] = {}
    if _OURS.get(name) is kind:
        # A SWE-ReX client knows fewer classes: send the nearest base class that it knows, unless that is the root.
        known = next(c.__name__ for c in kind.__mro__ if c.__name__ in _ORIGINAL)
        class_path = f"swerex.exceptions.{name if known == 'SwerexException' else known}"
        if known not in (name, "SwerexException"):
            details["class"] = name
        for attribute, types in _ATTRIBUTES.items():
            value = getattr(error, attribute, None)
            if value is not None and isinstance(value, types):
                details[attribute] = value
    if kind in (_OURS.get(name), _BUILTINS.get(name)):
        arguments = _arguments(error)
        if arguments != (text,) and all(_is_scalar(value) or isinstance(value, bytes) for value in arguments):
            details["args"] = [[base64.b64encode(v).decode()] if isinstance(v, bytes) else v for v in arguments]
    if details:
        extra_info[DETAILS] = details
    return {
        "message": text,
        "class_path": class_path,
        "traceback": "".join(traceback.format_exception(error))[-_MOST_TRACEBACK:],
        "extra_info": extra_info,
    }


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return f"a {type(error).__name__} that has no text"


def _arguments(error: BaseException) -> tuple[Any, ...]:
    """Return the arguments of an exception; the object of a Unicode error is cut to the part around the error."""
    if not isinstance(error, UnicodeDecodeError | UnicodeEncodeError) or len(error.object) <= _MOST_OBJECT:
        arguments: tuple[Any, ...] = error.__reduce__()[1]  # type: ignore[assignment]
        return arguments  # unlike `args`, those of an OSError include the file names
    begin, end = max(0, error.start - _AROUND), min(error.end, error.start + _AROUND)
    reason = f"{error.reason} (position {error.start} of {len(error.object)}; only what is around it was sent)"
    return error.encoding, error.object[begin : end + _AROUND], error.start - begin, end - begin, reason


def _is_scalar(value: Any) -> bool:
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    return value is None or isinstance(value, str | float)


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value in types that JSON and msgpack have; any other value becomes its `repr`."""
    if _is_scalar(value):
        return value
    if depth < 8:
        if isinstance(value, dict):
            return {str(key): _plain(member, depth + 1) for key, member in value.items()}
        if isinstance(value, list | tuple):
            return [_plain(member, depth + 1) for member in value]
    return repr(value)[:1000]


# Decoding


def from_wire(data: Any) -> Exception:
    """Return the exception for a received dictionary.

    It has the attributes `extra_info`, and `remote_traceback` if a traceback was sent. If `data` is not a dictionary,
    return a `ProtocolError`.
    """
    if not isinstance(data, dict):
        return ProtocolError(f"The other end sent an invalid error: {repr(data)[:200]}")
    message = visible(_string(data.get("message")))
    class_path = _string(data.get("class_path"))[:500]
    extra = data.get("extra_info")
    extra_info = dict(extra) if isinstance(extra, dict) else {}
    details = extra_info.pop(DETAILS, None)
    error = _make(class_path, message, details if isinstance(details, dict) else {})
    vars(error)["extra_info"] = extra_info
    if remote := _string(data.get("traceback")):
        vars(error)["remote_traceback"] = visible(remote)
    return error


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _make(class_path: str, message: str, details: dict[str, Any]) -> Exception:
    module, _, name = class_path.rpartition(".")
    kind: type[Exception] | None = None
    if module in ("swerex.exceptions", "swerex_c.exceptions"):
        exact = details.get("class")
        kind = _OURS.get(exact if isinstance(exact, str) else name) or _OURS.get(name)
    elif module == "builtins":
        kind = _BUILTINS.get(name)
    error = None if kind is None else _from_arguments(kind, details.get("args"), message) or _from_text(kind, message)
    if error is None:
        name = name if module == "builtins" else class_path
        error = SwerexException(f"{name}: {message}" if name else message)
    elif isinstance(error, SwerexException):
        for name, types in _ATTRIBUTES.items():
            value = details.get(name)
            if hasattr(error, name) and isinstance(value, types) and not isinstance(value, bool):
                setattr(error, name, value)
    return error


def _from_arguments(kind: type[Exception], sent: Any, message: str) -> Exception | None:
    """Return the exception with the arguments that were sent, or None if its class or text would differ."""
    if not isinstance(sent, list) or len(sent) > 16:
        return None
    try:
        arguments: list[Any] = [base64.b64decode(v[0], validate=True) if isinstance(v, list) else v for v in sent]
        if issubclass(kind, UnicodeDecodeError | UnicodeEncodeError) and not (
            0 <= arguments[2] < arguments[3] <= len(arguments[1])  # Python does not check this
        ):
            return None
        error = kind(*arguments)
        text = visible(str(error)) if isinstance(error, UnicodeError) else message  # which may name another place
        return error if type(error) is kind and str(error) == text else None
    except Exception:
        return None


def _from_text(kind: type[Exception], message: str) -> Exception | None:
    try:
        return kind(message) if message else kind()
    except TypeError:  # it needs more arguments
        return None

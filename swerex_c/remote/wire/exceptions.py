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

__all__ = ["DETAILS", "from_wire", "to_wire"]

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

_OTHERS = (Warning, StopIteration, StopAsyncIteration, BaseExceptionGroup, UnicodeTranslateError)
"""Exceptions of Python that report no failure, or have more than a message."""

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
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _OTHERS)
}
"""Exceptions of Python that can be made from a message."""

_UNICODE: dict[str, type[UnicodeDecodeError] | type[UnicodeEncodeError]] = {
    "UnicodeDecodeError": UnicodeDecodeError,
    "UnicodeEncodeError": UnicodeEncodeError,
}


# Encoding


def to_wire(error: BaseException) -> dict[str, Any]:
    """Return the dictionary to send for an exception.

    JSON and msgpack can encode it, except for lone surrogates.
    """
    extra = getattr(error, "extra_info", None)
    extra_info = _plain(extra) if isinstance(extra, dict) else {}
    details = _details(error)
    if details:
        extra_info[DETAILS] = details
    return {
        "message": _text(error),
        "class_path": _class_path(error),
        "traceback": _traceback(error),
        "extra_info": extra_info,
    }


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return f"a {type(error).__name__} that has no text"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))[-_MOST_TRACEBACK:]
    except Exception:
        return ""


def _class_path(error: BaseException) -> str:
    kind = type(error)
    if _OURS.get(kind.__name__) is not kind:
        return f"{kind.__module__}.{kind.__qualname__}"
    # A SWE-ReX client knows fewer classes: send the nearest base class that it knows, unless that is SwerexException.
    known = next(c.__name__ for c in kind.__mro__ if c.__name__ in _ORIGINAL)
    return f"swerex.exceptions.{kind.__name__ if known == 'SwerexException' else known}"


def _details(error: BaseException) -> dict[str, Any]:
    kind = type(error)
    details: dict[str, Any] = {}
    if isinstance(error, SwerexException):
        if _class_path(error).rpartition(".")[2] != kind.__name__:
            details["class"] = kind.__name__
        for name, types in _ATTRIBUTES.items():
            value = getattr(error, name, None)
            if value is not None and isinstance(value, types):
                details[name] = value
    if isinstance(error, OSError) and isinstance(error.errno, int) and isinstance(error.strerror, str):
        details |= {"errno": error.errno, "strerror": error.strerror}
        for name in ("filename", "filename2"):
            if (value := _file(getattr(error, name))) is not None:
                details[name] = value
    elif isinstance(error, UnicodeDecodeError | UnicodeEncodeError):
        details |= _unicode_details(error)
    elif _BUILTINS.get(kind.__name__) is kind and error.args and all(_is_scalar(value) for value in error.args):
        details["args"] = list(error.args)
    return details


def _file(name: Any) -> Any:
    """Return a file name in encodable form: bytes become base64 in a list, to distinguish them from text."""
    if isinstance(name, bytes):
        return [base64.b64encode(name).decode()]
    return name if _is_scalar(name) else None


def _unicode_details(error: UnicodeDecodeError | UnicodeEncodeError) -> dict[str, Any]:
    whole, start, end, reason = error.object, error.start, error.end, error.reason
    if len(whole) > _MOST_OBJECT:
        begin = max(0, start - _AROUND)
        end = min(end, start + _AROUND)
        reason += f" (position {start} of {len(whole)}; only what is around it was sent)"
        whole = whole[begin : end + _AROUND]
        start, end = start - begin, end - begin
    data = whole if isinstance(whole, bytes) else whole.encode("utf-8", "surrogatepass")
    object_ = base64.b64encode(data).decode()
    return {"encoding": error.encoding, "object": object_, "start": start, "end": end, "reason": reason}


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
            return {_key(key): _plain(member, depth + 1) for key, member in value.items()}
        if isinstance(value, list | tuple):
            return [_plain(member, depth + 1) for member in value]
    return repr(value)[:1000]


def _key(key: Any) -> str:
    return str(key).encode("utf-8", "backslashreplace").decode()


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
    if module in ("swerex.exceptions", "swerex_c.exceptions"):
        exact = details.get("class")
        kind = _OURS.get(exact if isinstance(exact, str) else name) or _OURS.get(name)
        if kind is not None:
            return _own(kind, message, details)
    elif module == "builtins":
        if name in _UNICODE:
            return _unicode(_UNICODE[name], details) or _unknown(class_path, message)
        if (builtin := _BUILTINS.get(name)) is not None:
            return _with_errno(builtin, message, details) or _builtin(builtin, message, details)
    return _unknown(class_path, message)


def _unknown(class_path: str, message: str) -> SwerexException:
    name = class_path.rpartition(".")[2] if class_path.startswith("builtins.") else class_path
    return SwerexException(f"{name}: {message}" if name else message)


def _own(kind: type[SwerexException], message: str, details: dict[str, Any]) -> SwerexException:
    error: SwerexException | None = _with_errno(kind, message, details)
    if error is None:
        error = kind(message)
        for name, types in _ATTRIBUTES.items():
            value = details.get(name)
            if hasattr(error, name) and isinstance(value, types) and not isinstance(value, bool):
                setattr(error, name, value)
    return error


def _with_errno(kind: type[Any], message: str, details: dict[str, Any]) -> Any:
    """Return an OSError created from its fields, or None if its class or message differs from those sent."""
    number, text = details.get("errno"), details.get("strerror")
    if (
        not issubclass(kind, OSError)
        or not isinstance(number, int)
        or isinstance(number, bool)
        or not isinstance(text, str)
    ):
        return None
    names = [_unfile(details.get(key)) for key in ("filename", "filename2")]
    arguments: list[Any] = [number, text]
    if names[0] is not None:
        arguments.append(names[0])
        if names[1] is not None:
            arguments += [None, names[1]]
    try:
        error = kind(*arguments)
        return error if type(error) is kind and str(error) == message else None
    except Exception:
        return None


def _unfile(name: Any) -> Any:
    """Return the file name that `_file` encoded, or None if it is invalid."""
    if isinstance(name, list) and len(name) == 1 and isinstance(name[0], str):
        try:
            return base64.b64decode(name[0], validate=True)
        except ValueError:
            return None
    return name if isinstance(name, str | int) else None


def _unicode(kind: type[UnicodeDecodeError] | type[UnicodeEncodeError], details: dict[str, Any]) -> Exception | None:
    encoding, encoded, reason = (details.get(name) for name in ("encoding", "object", "reason"))
    start, end = details.get("start"), details.get("end")
    if not (isinstance(encoding, str) and isinstance(encoded, str) and isinstance(reason, str)):
        return None
    if type(start) is not int or type(end) is not int:
        return None
    try:
        data = base64.b64decode(encoded, validate=True)
        if not 0 <= start < end <= len(data):
            return None
        if kind is UnicodeDecodeError:
            return UnicodeDecodeError(visible(encoding), data, start, end, visible(reason))
        text = data.decode("utf-8", "surrogatepass")
        return UnicodeEncodeError(visible(encoding), text, start, end, visible(reason))
    except (ValueError, TypeError, OverflowError):
        return None


def _builtin(kind: type[Exception], message: str, details: dict[str, Any]) -> Exception:
    plain = kind(message) if message else kind()
    arguments = details.get("args")
    if isinstance(arguments, list) and 0 < len(arguments) <= 16 and all(_is_scalar(value) for value in arguments):
        try:
            error = kind(*arguments)
            return error if str(error) == message else plain
        except Exception:
            return plain
    return plain

"""Exceptions on the wire, as JSON and as frames, and dictionaries from hostile peers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swerex_c import exceptions
from swerex_c.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    ProtocolError,
    ResourceError,
    SessionBusyError,
    SessionDiedError,
    SwerexException,
    UploadError,
)
from swerex_c.remote.wire.exceptions import from_wire, to_wire
from swerex_c.remote.wire.protocol import decode_payload, encode

FORMATS = {"json": lambda wire: json.loads(json.dumps(wire)), "frames": lambda wire: decode_payload(encode(wire))}


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as same:
        return same


ERRORS = [
    *(getattr(exceptions, name)("what happened") for name in exceptions.__all__),
    CommandTimeoutError("too long", output="so far"),
    SessionBusyError("busy", output="x"),
    SessionDiedError("gone", exit_code=3),
    SessionDiedError("gone", signal=9),
    ResourceError("no more", errno=24),
    BashIncorrectSyntaxError("bad", extra_info={"bash_stdout": "a", "bash_stderr": "b"}),
    FileNotFoundError(2, "No such file or directory", "/a 'b'"),
    PermissionError(13, "Permission denied", b"/bytes"),
    FileExistsError(17, "File exists", "a", None, "b"),
    OSError(28, "No space left on device"),
    OSError("no number"),
    IsADirectoryError(21, "Is a directory", 5),
    TimeoutError("late"),
    TimeoutError(),
    ConnectionResetError(104, "Connection reset by peer"),
    UnicodeDecodeError("utf-8", b"ab\xffcd", 2, 3, "invalid start byte"),
    UnicodeEncodeError("utf-8", "ab\udcffcd", 2, 3, "surrogates not allowed"),
    ValueError("no"),
    ValueError(),
    KeyError("key"),
    KeyError(3),
    TypeError("a", "b"),
    RuntimeError("x"),
    NotImplementedError("y"),
    MemoryError(),
    RecursionError("deep"),
    ZeroDivisionError("z"),
    AssertionError(),
    Exception("plain"),
]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_exception_arrives_as_it_was_raised(error: Exception, form: str) -> None:
    arrived = from_wire(FORMATS[form](to_wire(raised(error))))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert arrived.args == error.args or isinstance(error, OSError)
    for name in ("output", "exit_code", "signal", "errno", "strerror", "filename", "filename2"):
        assert getattr(arrived, name, None) == getattr(error, name, None), name
    for name in ("encoding", "object", "start", "end", "reason"):
        assert getattr(arrived, name, None) == getattr(error, name, None), name
    assert arrived.extra_info == getattr(error, "extra_info", {})  # type: ignore[attr-defined]
    assert f"{type(error).__name__}" in arrived.remote_traceback  # type: ignore[attr-defined]


def test_a_long_undecodable_text_is_cut_around_the_place() -> None:
    with pytest.raises(UnicodeDecodeError) as caught:
        (b"x" * 3_000_000 + b"\xff" + b"y" * 3_000_000).decode()
    wire = to_wire(caught.value)
    assert len(json.dumps(wire["extra_info"])) < 10_000
    arrived = from_wire(wire)
    assert isinstance(arrived, UnicodeDecodeError)
    assert arrived.object[arrived.start : arrived.end] == b"\xff"
    assert "3000000" in arrived.reason


def test_a_traceback_is_cut_at_its_begin() -> None:
    wire = to_wire(raised(SwerexException("x" * 1_000_000 + "end")))
    assert len(wire["traceback"]) <= 64 << 10 and wire["traceback"].endswith("end\n")
    assert wire["message"].endswith("end")


NOT_ALLOWED = "SystemExit KeyboardInterrupt BaseException StopIteration StopAsyncIteration ExceptionGroup UserWarning"
NOT_ALLOWED += " UnicodeTranslateError eval exit __import__"
NO_NAMES = ["os.system", *(f"builtins.{name}" for name in NOT_ALLOWED.split()), "swerex.exceptions.Any", "", "."]
NO_NAMES += ["swerex.exceptions.__builtins__", "swerex_c.exceptions.annotations", "no_such_module.Error", "x" * 100_000]


@pytest.mark.parametrize("path", NO_NAMES, ids=lambda path: path[:40])
def test_nothing_is_made_of_a_name_that_is_not_allowed(path: str) -> None:
    arrived = from_wire({"message": "echo", "class_path": path, "traceback": "", "extra_info": {}})
    assert type(arrived) is SwerexException
    name = path.removeprefix("builtins.")[:400]
    assert name in str(arrived) and "echo" in str(arrived) and len(str(arrived)) < 1000


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
PATHS = st.sampled_from(
    [f"builtins.{n}" for n in ("OSError", "FileNotFoundError", "UnicodeDecodeError", "KeyError", "UnicodeEncodeError")]
    + [f"builtins.{n}" for n in ("SyntaxError", "ImportError", "BlockingIOError", "UnicodeTranslateError")]
    + [f"swerex.exceptions.{n}" for n in exceptions.__all__]
)
ARGUMENT = st.none() | st.integers(-2, 9) | st.text(max_size=9) | st.sampled_from([["YWJj"], ["!"], [5], [], 1 << 70])
DETAIL = st.fixed_dictionaries(
    {}, optional={"args": st.lists(ARGUMENT, max_size=6) | JSON} | dict.fromkeys(("class", "errno", "output"), JSON)
)


@given(
    st.fixed_dictionaries(
        {"class_path": PATHS | JSON, "extra_info": st.fixed_dictionaries({"swerex_c": DETAIL | JSON}) | JSON},
        optional={"message": JSON, "traceback": JSON},
    )
    | JSON
)
def test_no_dictionary_makes_it_fail(wire: Any) -> None:
    arrived = from_wire(wire)
    assert isinstance(arrived, Exception)
    str(arrived), repr(arrived)
    assert isinstance(arrived, ProtocolError) or isinstance(arrived.extra_info, dict)  # type: ignore[attr-defined]


def test_encoded_exceptions_have_plain_values() -> None:
    odd = SwerexException("odd")
    odd.extra_info = {1: object(), "deep": [[[[[[[[[[[1]]]]]]]]]]], "big": 1 << 70, b"k": {2: (3, {4})}}  # type: ignore[attr-defined]
    wire = to_wire(odd)
    assert FORMATS["json"](wire) == wire and FORMATS["frames"](wire) == wire


@pytest.mark.parametrize(
    ("error", "path"),
    [
        (SessionBusyError("busy"), "swerex.exceptions.CommandTimeoutError"),
        (exceptions.SessionDoesNotExistError("no"), "swerex.exceptions.SessionDoesNotExistError"),
        (UploadError("no"), "swerex.exceptions.UploadError"),  # of which it makes a SwerexException
        (FileNotFoundError(2, "No such file or directory", "x"), "builtins.FileNotFoundError"),
    ],
)
def test_an_originals_client_gets_the_nearest_class_that_it_has(error: Exception, path: str) -> None:
    assert to_wire(error)["class_path"] == path

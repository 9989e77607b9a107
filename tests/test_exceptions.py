"""The exceptions are the original's, cross processes whole, and are caught by what callers write."""

from __future__ import annotations

import copy
import pickle

import pytest

from swerex_c import exceptions
from tests.support.original import original_python, python_json

DUMP = """
import inspect, json
from swerex import exceptions
print(json.dumps({
    name: [base.__name__ for base in thing.__mro__]
    for name, thing in vars(exceptions).items()
    if inspect.isclass(thing) and issubclass(thing, Exception)
}))
"""

EVERY = [getattr(exceptions, name) for name in exceptions.__all__]


def test_bases_are_the_originals() -> None:
    theirs = python_json(original_python(), DUMP)
    assert len(theirs) == 12
    for name, bases in theirs.items():
        assert [base.__name__ for base in getattr(exceptions, name).__mro__] == bases, name


ATTRIBUTES: list[tuple[type[Exception], dict]] = [
    *((kind, {}) for kind in EVERY),
    (exceptions.BashIncorrectSyntaxError, {"extra_info": {"bash_stdout": "", "bash_stderr": "bash: line 1"}}),
    (exceptions.CommandTimeoutError, {"output": "so far\n"}),
    (exceptions.SessionDiedError, {"exit_code": 3, "signal": None}),
    (exceptions.SessionDiedError, {"exit_code": None, "signal": 9}),
    (exceptions.ResourceError, {"errno": 24}),
]


@pytest.mark.parametrize(("kind", "attributes"), ATTRIBUTES)
def test_every_exception_survives_pickling_with_all_it_tells(kind: type[Exception], attributes: dict) -> None:
    error = kind("the message\nof two lines", **attributes)
    assert not attributes or vars(error) == attributes
    error.__dict__["more"] = 1
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert str(again) == "the message\nof two lines"
        assert vars(again) == vars(error)
    assert isinstance(error, exceptions.SwerexException)
    assert kind.__doc__


def test_attributes_have_defaults_of_their_own() -> None:
    exceptions.BashIncorrectSyntaxError("a").extra_info["x"] = 1
    assert exceptions.BashIncorrectSyntaxError("m").extra_info == {}
    assert exceptions.CommandTimeoutError("m").output == ""
    advice = "Deployment not started: call `await deployment.start()` first"
    assert str(exceptions.DeploymentNotStartedError()) == advice
    error = exceptions.SessionDiedError()
    assert (error.exit_code, error.signal) == (None, None)


def test_callers_handlers_catch_them_in_their_order() -> None:
    assert issubclass(exceptions.CommandTimeoutError, TimeoutError)
    known = {"CommandTimeoutError", "ConnectionLostError", "PoolTimeoutError", "StartupTimeoutError", "UploadError"}
    for kind in EVERY:
        assert not issubclass(kind, OSError) or known & {base.__name__ for base in kind.__mro__}
    assert not issubclass(exceptions.ResourceError, OSError)
    assert issubclass(exceptions.DockerPullError, exceptions.DeploymentStartupError)
    assert issubclass(exceptions.InvalidInputError, ValueError)

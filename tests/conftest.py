"""What all tests share: the fixtures, options and markers of the behaviour tests, a limit of time, and a home."""

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings


def _own_home() -> None:
    """A home directory for this run, with no startup files: those of whoever runs the tests are theirs.

    Some make each shell slow, and some take a lock that a shell which is killed leaves behind for all later ones.
    Workers of the same run share their parent's.
    """
    if Path(os.environ.get("HOME", "/"), ".swx-tests-home").exists():
        return
    before = os.environ.get("HOME")
    home = tempfile.mkdtemp(prefix="swx-home-")
    Path(home, ".swx-tests-home").touch()
    if before:
        os.environ.setdefault("PIP_CACHE_DIR", os.path.join(before, ".cache", "pip"))
    os.environ["HOME"] = home
    atexit.register(shutil.rmtree, home, ignore_errors=True)


_own_home()
os.umask(0o022)  # the modes that tests expect of new files
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it and SIGQUIT in what it runs with `&`
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by nohup
    signal.signal(signal.SIGHUP, lambda *_: None)  # which programs do not inherit

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("search")
settings.load_profile("repeatable")  # `--hypothesis-profile search` looks for new examples
pytest.register_assert_rewrite("tests.support")  # so that a failure there shows the values too
pytest_plugins = ["tests.support.results", "tests.support.plugin", "tests.support.engine_fixtures"]

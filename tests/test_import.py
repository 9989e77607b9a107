"""Importing is quick, and brings in only what is used."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import swerex_c
from swerex_c._version import __version__ as own
from tests.support.original import original_python, our_environment, python_json, python_output

TIME = """if True:
    import time
    began = time.perf_counter()
    from {}.runtime.local import LocalRuntime{}
    print(time.perf_counter() - began)
"""
AND_MODELS = "; from {}.runtime.abstract import BashAction, CreateBashSessionRequest"

ROUNDS = 9

HEAVY = "pydantic rich typer starlette uvicorn aiohttp httpx requests asyncio regex json".split()


def loaded(code: str) -> set[str]:
    show = f"import sys; {code}; names = sorted(sys.modules); import json; print(json.dumps(names))"
    return set(python_json(sys.executable, show, env=our_environment()))


def seconds(python: str, package: str, more: str) -> float:
    return float(python_output(python, TIME.format(package, more.format(package)), env=our_environment()))


@pytest.mark.idle
@pytest.mark.slow
@pytest.mark.parametrize(("more", "share"), [("", 1 / 3), (AND_MODELS, 1.0)])
def test_importing_takes_a_share_of_the_originals_time(more: str, share: float) -> None:
    original = original_python()
    seconds(sys.executable, "swerex_c", more), seconds(original, "swerex", more)
    pairs = [(seconds(sys.executable, "swerex_c", more), seconds(original, "swerex", more)) for _ in range(ROUNDS)]
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"ours {ours * 1000:.1f} ms, theirs {theirs * 1000:.1f} ms")
    assert ours < theirs * share


LOCAL = "from swerex_c.runtime.local import LocalRuntime"
REMOTE = "from swerex_c.runtime.remote import RemoteRuntime"
UTILITIES = "import swerex_c.utils.log, swerex_c.exceptions, swerex_c.files.local"
MODELS = "import swerex_c.runtime.abstract, swerex_c.runtime.config"
MATCHER = "import swerex_c.engine.session as it; it.make_matcher([{!r}])"


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import swerex_c; swerex_c.install()", set()),
        (LOCAL, set()),
        (REMOTE, set()),
        ("from swerex_c.interfaces import AbstractRuntime", set()),
        (UTILITIES, set()),
        (MODELS, {"pydantic"}),
        (MATCHER.format(r"\$ $"), {"asyncio", "pydantic"}),
        (MATCHER.format("(?<!a)b"), {"asyncio", "pydantic", "regex"}),
    ],
)
def test_nothing_heavy_is_imported_that_is_not_used(code: str, heavy: set[str]) -> None:
    by_pydantic = {"json"} if "pydantic" in heavy else set()  # of Python 3.13: its importlib.metadata needs json
    assert (loaded(code) & set(HEAVY)) - by_pydantic == heavy


def test_the_package_itself_imports_nothing() -> None:
    new = loaded("import swerex_c") - loaded("pass")
    allowed = {"swerex_c", "swerex_c._version", "__future__"}  # an editable installation has the last already
    assert "swerex_c" in new and new <= allowed


def test_the_package_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = swerex_c.no_such_name


def test_the_version_is_the_apis() -> None:
    theirs = python_output(
        original_python(), "import swerex as s; print(s.__version__, s.PACKAGE_NAME, s.REMOTE_EXECUTABLE_NAME)"
    )
    assert theirs.split() == [swerex_c.__version__, swerex_c.PACKAGE_NAME, swerex_c.REMOTE_EXECUTABLE_NAME]
    assert tuple(map(int, swerex_c.__version__.split("."))) >= (1, 2, 0)
    assert own != swerex_c.__version__


@pytest.mark.parametrize("way", [["-c", "from swerex_c import LocalRuntime; LocalRuntime()"], ["-m", "swerex_c", "-V"]])
def test_a_checkout_that_was_not_built_says_so(tmp_path: Path, way: list[str]) -> None:
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(Path(swerex_c.__file__).parent, tmp_path / "swerex_c", ignore=ignored)
    done = subprocess.run([sys.executable, *way], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"{tmp_path} is a checkout whose C extension was not built: run `pip install -e .`" in done.stderr
    assert way[0] == "-c" or done.stderr.count("\n") == 1

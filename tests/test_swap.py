"""The swap in its three reaches, each in processes of its own."""

from __future__ import annotations

import functools
import json
import os
import pickle
import subprocess
import sys
import sysconfig
import textwrap
import venv
from pathlib import Path

import pytest

from swerex_c import swap
from tests.support.cli import cli
from tests.support.original import ROOT, original_python, our_environment, python_output
from tests.support.processes import ran

WHERE = "import swerex; print(swerex.__file__)"
OURS = str(ROOT / "swerex_c" / "__init__.py")


def ours(code: str, *arguments: str, python: str = sys.executable) -> str:
    """What a piece of Python prints that can import this tree's package."""
    return python_output(python, textwrap.dedent(code), *arguments, env=our_environment()).strip()


run = functools.partial(cli, "run", "--")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A venv of its own in which this tree is importable, as an editable installation would make it."""
    place = tmp_path / "venv"
    venv.create(place, with_pip=False, symlinks=True)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "__editable__.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    return place


def in_environment(place: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SWEREX_C_SWAP")}
    return ran(place / "bin" / "python", *arguments, env={**clean, **env})


# install()

INSTALLED: dict[str, tuple[str, str]] = {
    "both names are one module": ("""
        import importlib, pkgutil, sys
        import swerex_c
        swerex_c.install()
        swerex_c.install()
        count = 0
        for module in pkgutil.walk_packages(swerex_c.__path__, "swerex_c."):
            if module.name.endswith((".sitecustomize", "._core", ".local", ".__main__")):
                continue
            alias = importlib.import_module(module.name.replace("swerex_c", "swerex", 1))
            real = importlib.import_module(module.name)
            named = real.__name__ if module.name.startswith("swerex_c.deployment.") else module.name
            assert alias is real and real.__name__ == real.__spec__.name == named, module.name
            count += 1
        import swerex.runtime.abstract as a
        from swerex import exceptions as b, __version__
        from swerex.deployment import get_deployment
        from swerex.deployment.docker import DeploymentNotStartedError, DockerDeployment, find_free_port, get_logger
        from swerex.deployment.hooks.status import DeploymentHook
        from swerex.deployment.modal import PACKAGE_NAME, REMOTE_EXECUTABLE_NAME
        from swerex.server import UploadResponse, runtime
        from swerex.runtime.local import Command, LocalRuntime, SessionExistsError  # callers import them from there
        assert Command is a.Command and SessionExistsError is b.SessionExistsError
        assert a is swerex_c.runtime.abstract and b is swerex_c.exceptions
        assert swerex_c.runtime.abstract is sys.modules["swerex.runtime.abstract"]
        assert len([f for f in sys.meta_path if type(f).__name__ == "AliasFinder"]) == 1
        print(count > 15, __version__)
    """, "True 1.4.0"),
    "threads that import at the same time get whole modules": ("""
        import importlib, sys, threading
        import swerex_c; swerex_c.install()
        sys.setswitchinterval(1e-6)
        names = ["exceptions", "runtime.abstract", "runtime.config", "runtime.dummy", "utils.wait", "deployment.config"]
        gate, wrong = threading.Barrier(16), []
        def work(n):
            gate.wait()
            for name in names[n % 6:] + names[:n % 6]:
                package = ("swerex", "swerex_c")[n % 2]
                module = importlib.import_module(f"{package}.{name}")
                if module.__name__ != f"swerex_c.{name}" or not hasattr(module, "__all__"):
                    wrong.append(module)
        threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
        [t.start() for t in threads]; [t.join() for t in threads]
        print(wrong)
    """, "[]"),
    "reloading and finding work under the alias": ("""
        import importlib, importlib.util, inspect
        import swerex_c; swerex_c.install()
        print(importlib.util.find_spec("swerex.utils.wait").name)
        import swerex.utils.wait as wait
        importlib.reload(wait)
        print(inspect.getsource(wait._wait_until_alive).startswith("async def"))
    """, "swerex.utils.wait\nTrue"),
}  # fmt: skip
"""Pieces of Python, and what they print."""


@pytest.mark.parametrize("name", INSTALLED)
def test_installed(name: str) -> None:
    code, printed = INSTALLED[name]
    assert ours(code) == printed


def test_it_wins_over_an_original_that_is_installed_and_can_be_taken_back() -> None:
    said = ours(
        """
        import swerex_c; swerex_c.install()
        import swerex, swerex.runtime.abstract
        print(swerex.__file__)
        swerex_c.uninstall()
        import swerex, swerex.exceptions
        print(swerex.__file__)
        print(swerex.exceptions is swerex_c.exceptions)
        """,
        python=original_python(),
    )
    first, second, same = said.splitlines()
    assert first == OURS
    assert second.endswith("site-packages/swerex/__init__.py")
    assert same == "False"


@pytest.mark.parametrize("early", ["swerex", "swerex.exceptions", "swerex.runtime.config"])
def test_it_is_refused_after_the_original_was_imported(early: str) -> None:
    said = ours(
        f"""
        import {early}, swerex_c
        from swerex_c.exceptions import SwapError
        try:
            swerex_c.install()
        except SwapError as error:
            print(error)
        import swerex.exceptions
        print(swerex.exceptions.__file__)
        print(swerex_c.swap.status().active)
        """,
        python=original_python(),
    )
    error, still, active = said.splitlines()
    assert "of the original SWE-ReX is already imported" in error and "before the first import" in error
    assert "site-packages/swerex/" in error and "site-packages/swerex/" in still and active == "False"


def test_without_the_swap_nothing_changes() -> None:
    said = ours(
        """
        import sys, swerex_c
        try:
            import swerex
        except ModuleNotFoundError as error:
            print(error)
        swerex_c.install()
        try:
            import swerex.no.such.module
        except ModuleNotFoundError as error:
            print(error, error.name)
        swerex_c.uninstall()
        swerex_c.uninstall()
        print([name for name in sys.modules if name.partition(".")[0] == "swerex"])
        """
    )
    without, missing, left = said.splitlines()
    assert without == "No module named 'swerex'"
    assert "No module named 'swerex.no'" in missing and "swerex_c" in missing and missing.endswith(" swerex.no")
    assert left == "[]"


def test_the_version_of_the_distribution_is_known() -> None:
    code = """
        import importlib.metadata as metadata, sys
        import swerex_c
        before = [d.metadata["Name"] for d in metadata.distributions()]
        swerex_c.install()
        print(metadata.version("swe-rex"), metadata.version("SWE_ReX"), metadata.requires("swe-rex") != [])
        print(before == [d.metadata["Name"] for d in metadata.distributions()])
        try:
            metadata.version("no-such-distribution")
        except metadata.PackageNotFoundError:
            print("ok")
        """
    assert ours(code).split() == ["1.4.0", "1.4.0", "True", "True", "ok"]
    assert ours(code, python=original_python()).split() == ["1.4.0", "1.4.0", "True", "True", "ok"]


def test_pickles_load_in_both_directions(tmp_path: Path) -> None:
    make = "import pickle, sys; {}; from swerex.exceptions import CommandTimeoutError as E; "
    make += "from swerex.runtime.abstract import BashAction as B; "
    make += "pickle.dump((E('m'), B(command='x')), open(sys.argv[1], 'wb'))"
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    python_output(original_python(), make.format("0"), str(theirs))
    ours(make.format("import swerex_c; swerex_c.install()"), str(mine))
    error, action = pickle.loads(mine.read_bytes())
    assert (type(error).__module__, str(error), action.command) == ("swerex_c.exceptions", "m", "x")
    load = "import pickle, sys, swerex_c; swerex_c.install(); print(type(pickle.load(open(sys.argv[1], 'rb'))[0]))"
    assert ours(load, str(theirs)) == "<class 'swerex_c.exceptions.CommandTimeoutError'>"


# swerex-c run


def test_run_reaches_the_command_and_what_it_starts() -> None:
    child = "import subprocess, sys; {}; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    done = run(sys.executable, "-c", child.format("pass"), WHERE)
    assert done.stdout.strip() == OURS, done.stderr
    done = run("sh", "-c", f"exec {sys.executable} -c '{WHERE}'")
    assert done.stdout.strip() == OURS, done.stderr


def test_run_reaches_an_environment_without_this_package() -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = WHERE + "; import swerex.runtime.abstract, pydantic; print(pydantic.__file__)"
    done = ran(sys.executable, "-m", "swerex_c", "run", "--", original_python(), "-c", code, env=env, cwd=ROOT)
    where, pydantic = done.stdout.split()
    assert where == OURS
    assert Path(pydantic).is_relative_to(Path(original_python()).parent.parent)


def test_run_runs_modules_of_the_alias_as_main() -> None:
    done = run(sys.executable, "-W", "error", "-m", "swerex.deployment.hooks.status")
    assert (done.returncode, done.stderr) == (0, "")
    done = run(sys.executable, "-m", "swerex")
    assert done.returncode == 2
    assert done.stderr.startswith("swerex-remote: The server needs a key") and "Traceback" not in done.stderr


def test_run_keeps_what_was_there(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import os; os.environ['SEEN'] = __file__\n")
    path = os.pathsep.join([str(hidden), str(ROOT)])
    show = "import os, sys, sitecustomize; print(os.environ['SEEN'], sitecustomize.__file__, *sys.path, sep='\\n')"
    done = run(sys.executable, "-c", show, PYTHONPATH=path)
    seen, module, *entries = done.stdout.splitlines()
    assert seen == module == str(hidden / "sitecustomize.py")
    assert entries[1:3] == [str(hidden), str(ROOT)]
    assert not [entry for entry in entries if "startup" in entry]


def test_a_broken_sitecustomize_is_reported_as_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import no_such_module\n")
    done = run(sys.executable, "-c", WHERE, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert done.stdout.strip() == OURS
    assert "no_such_module" in done.stderr


def test_run_passes_arguments_streams_and_exit_codes_on() -> None:
    code = "import sys; print(sys.argv[1:], sys.stdin.read()); sys.exit(7)"
    done = run(sys.executable, "-c", code, "--timeout", "a b", "--", "-x", input="in")
    assert (done.stdout, done.returncode) == ("['--timeout', 'a b', '--', '-x'] in\n", 7)
    assert run("sh", "-c", "kill -9 $$").returncode == -9
    missing = run("no-such-command-anywhere")
    assert (missing.returncode, missing.stderr) == (127, "swerex-c: no-such-command-anywhere: command not found\n")
    assert run("/etc/passwd").returncode == 126


def test_run_within_run_changes_nothing_more() -> None:
    once = swap.run_environment({"PYTHONPATH": "/a"})
    assert swap.run_environment(once) == once
    assert once["PYTHONPATH"].split(os.pathsep)[1:] == ["/a"]
    assert swap.run_environment({})["PYTHONPATH"] == once["PYTHONPATH"].split(os.pathsep)[0]


def test_run_costs_a_python_that_does_not_import_swerex_little() -> None:
    code = "import sys; print([m for m in ('typing', 'importlib.util', 'pydantic', 'dataclasses') if m in sys.modules])"
    done = run(sys.executable, "-I", "-c", code)
    baseline = done.stdout
    assert run(sys.executable, "-c", code).stdout == baseline


def test_run_can_be_switched_off_below() -> None:
    done = run("env", "SWEREX_C_SWAP=0", sys.executable, "-c", "import swerex")
    assert "No module named 'swerex'" in done.stderr


# enable, disable, status


@pytest.mark.slow
def test_enable_is_for_one_environment_until_disable(environment: Path) -> None:
    status = json.loads(in_environment(environment, "-m", "swerex_c", "status", "--json").stdout)
    assert status == {
        "active": False, "enabled": [], "run": False, "switched_off": False,
        "original_version": None, "original_path": None,
    }  # fmt: skip
    assert "No module named 'swerex'" in in_environment(environment, "-c", WHERE).stderr
    for _ in range(2):
        done = in_environment(environment, "-m", "swerex_c", "enable")
        assert done.returncode == 0 and str(environment) in done.stdout, done.stderr
    for options in ([], ["-I"], ["-E"], ["-W", "error"]):
        done = in_environment(environment, *options, "-c", WHERE)
        assert (done.stdout.strip(), done.stderr) == (OURS, "")
    status = json.loads(in_environment(environment, "-m", "swerex_c", "status", "--json").stdout)
    assert status["active"] and len(status["enabled"]) == 1
    assert "import swerex:  swerex_c" in in_environment(environment, "-m", "swerex_c", "status").stdout
    off = in_environment(environment, "-c", WHERE, SWEREX_C_SWAP="0")
    assert "No module named 'swerex'" in off.stderr
    done = in_environment(environment, "-m", "swerex_c", "disable")
    assert done.stdout.startswith("Removed ")
    assert "No module named 'swerex'" in in_environment(environment, "-c", WHERE).stderr
    assert not [path for path in environment.rglob("*") if "swap" in path.name]
    again = in_environment(environment, "-m", "swerex_c", "disable")
    assert (again.returncode, again.stdout.split(" in ")[0]) == (0, "It was not enabled")


def test_enable_wins_over_the_original_and_status_shows_both(environment: Path) -> None:
    (editable,) = environment.rglob("__editable__.pth")
    (theirs,) = Path(original_python()).parent.parent.glob("lib/python*/site-packages")
    editable.write_text(editable.read_text() + f"{theirs}\n")
    assert str(theirs) in in_environment(environment, "-c", WHERE).stdout
    assert in_environment(environment, "-m", "swerex_c", "enable").returncode == 0
    assert in_environment(environment, "-c", WHERE).stdout.strip() == OURS
    status = json.loads(in_environment(environment, "-m", "swerex_c", "status", "--json").stdout)
    assert (status["active"], status["original_version"]) == (True, "1.4.0")
    assert status["original_path"] == str(theirs / "swerex" / "__init__.py")
    in_environment(environment, "-m", "swerex_c", "disable")
    assert str(theirs) in in_environment(environment, "-c", WHERE).stdout


def test_removing_the_package_leaves_an_enabled_environment_quiet(environment: Path) -> None:
    assert in_environment(environment, "-m", "swerex_c", "enable").returncode == 0
    (editable,) = environment.rglob("__editable__.pth")
    editable.unlink()
    done = in_environment(environment, "-c", "print('fine')")
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_enable_for_a_user(environment: Path, tmp_path: Path) -> None:
    base = tmp_path / "user"
    code = """if True:
        import site
        site.ENABLE_USER_SITE = True
        from swerex_c import swap
        print(swap.enable(user=True))
        print(len(swap.disable()))
    """
    done = in_environment(environment, "-c", code, PYTHONUSERBASE=str(base))
    path, removed = done.stdout.split()
    assert Path(path).is_relative_to(base) and removed == "1", done.stderr
    assert not Path(path).exists()


def test_an_environment_that_cannot_be_written_is_an_error(environment: Path) -> None:
    code = "import sys, sysconfig; sysconfig.get_path = lambda name: '/proc/none'; sys.argv = ['swerex-c', 'enable']\n"
    code += "from swerex_c.cli.main import main; main()"
    done = in_environment(environment, "-c", code)
    assert done.returncode == 1
    assert done.stderr.startswith("swerex-c: Cannot write /proc/none/zz_swerex_c_swap.pth: ")
    assert "Traceback" not in done.stderr

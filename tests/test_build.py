"""The build: what it says when something is missing, what it exports, what goes into the source distribution."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swerex_c._version import __version__
from tests.support.harness import write_script

ROOT = Path(__file__).resolve().parent.parent
SWITCHES = ("SWX_", "CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "LDSHARED", "PKG_CONFIG", "LD_PRELOAD", "ASAN_OPTIONS")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build reads, so that nothing is built into the tree under test."""
    copy = tmp_path_factory.mktemp("build") / "tree"
    ignore = shutil.ignore_patterns(
        "build", "dist", "__pycache__", "*.so", "*.egg-info", ".*_cache", ".cache", ".venv", ".git"
    )
    shutil.copytree(ROOT, copy, ignore=ignore, symlinks=True)
    return copy


def run(where: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(SWITCHES)}
    return subprocess.run(command, cwd=where, env=clean | environment, text=True, capture_output=True, timeout=100)


def python(tree: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(tree, sys.executable, *arguments, **environment)


def build(tree: Path, to: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return python(tree, "setup.py", "build_ext", f"--build-lib={to}", f"--build-temp={to}/tmp", **environment)


def compiler(path: Path, rule: str) -> dict[str, str]:
    """A compiler that looks at each of its arguments first: `rule` are branches of a case on "$a"."""
    real = shutil.which("cc")
    text = f'for a do shift; case "$a" in {rule} esac; set -- "$@" "$a"; done\nexec {real} "$@"\n'
    wrapper = write_script(path / "wrapped-cc", text)
    return {"CC": wrapper, "LDSHARED": f"{wrapper} -shared"}


def hidden_msgpack(path: Path) -> dict[str, str]:
    (path / "msgpack.h").write_text("#error hidden\n")
    return {"CPPFLAGS": f"-I{path}"}


NO_HEADER = '-I*) [ -e "${a#-I}/Python.h" ] && continue ;;'
MISSING: dict[str, tuple[Callable[[Path], dict[str, str]], tuple[str, ...]]] = {
    "no such compiler": (
        lambda _: {"CC": "/nonexistent/cc", "LDSHARED": "/nonexistent/cc"},
        ("a working C compiler (/nonexistent/cc does not", "gcc and libc6-dev", "xcode-select --install"),
    ),
    "compiler that fails": (lambda _: {"CC": "false", "LDSHARED": "false"}, ("a working C compiler (false does not",)),
    "no compiler on PATH": (lambda path: {"PATH": str(path)}, ("a working C compiler", "gcc")),
    "Python.h": (lambda path: compiler(path, NO_HEADER), ("Python.h", "python3-dev", "python3-devel", "brew install")),
    "msgpack.h": (hidden_msgpack, ("msgpack.h", "libmsgpack-c-dev", "libmsgpack-dev", "msgpack-devel", "brew install")),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_is_told_in_one_sentence(tree: Path, tmp_path: Path, name: str) -> None:
    lack, words = MISSING[name]
    result = build(tree, tmp_path, **lack(tmp_path))
    assert result.returncode != 0 and "Traceback" not in result.stderr
    said = result.stderr.strip().splitlines()[-1]
    assert said.startswith("swerex-c cannot be built without ")
    for word in (*words, "on Debian or Ubuntu", "on Fedora", "on macOS"):
        assert word in said


def test_the_library_of_msgpack_is_not_needed(tree: Path, tmp_path: Path) -> None:
    """All that is used of it is in its headers, so that a wheel brings all it needs."""
    hidden = compiler(tmp_path, "-lmsgpack*) exit 1 ;;")
    result = build(tree, tmp_path, **hidden)
    assert result.returncode == 0, result.stderr


def test_a_compiler_that_fails(tree: Path, tmp_path: Path) -> None:
    failing = compiler(tmp_path, "*swx_frame.c) echo 'swx_frame.c:9: error: hidden'; seq 99; exit 1 ;;")
    result = build(tree, tmp_path, **failing)
    assert result.returncode != 0
    (said,) = (result.stdout + result.stderr).strip().splitlines()
    log = tree / "build" / "compiler.log"
    assert said.startswith(f"swerex-c cannot be built because {failing['CC']} fails (swx_frame.c:9: error: hidden): ")
    assert str(log) in said and "\n99\n" in log.read_text()


@pytest.mark.parametrize(
    "rule, sentence",
    [("*) exit 1 ;;", "without a working C compiler"), ("*swx_frame.c) seq 99; exit 1 ;;", "because .* fails")],
)
def test_pip_shows_the_sentence(tree: Path, tmp_path: Path, rule: str, sentence: str) -> None:
    arguments = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={tmp_path}", ".")
    result = python(tree, *arguments, **compiler(tmp_path, rule))
    assert result.returncode != 0
    assert re.search(f"swerex-c cannot be built {sentence}", result.stdout + result.stderr)
    assert len(result.stderr.splitlines()) < 16, result.stderr


def test_setup_shows_the_sentence_only(tree: Path, tmp_path: Path) -> None:
    """.ci/setup, in an environment that has the needed libraries."""
    copy = tmp_path / "copy"
    shutil.copytree(tree, copy, symlinks=True)
    (copy / ".venv" / "bin").mkdir(parents=True)
    write_script(copy / ".venv" / "bin" / "python", f'exec {sys.executable} "$@" --no-deps --no-build-isolation\n')
    result = run(copy, "bash", ".ci/setup", **compiler(tmp_path, "*swx_frame.c) seq 99; exit 1 ;;"))
    assert result.returncode == 1
    building, said = result.stderr.splitlines()
    assert "swerex-c cannot be built because" in said and said.count(".log") == 2


def setup_module() -> dict[str, Any]:
    """What setup.py defines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return runpy.run_path(str(ROOT / "setup.py"))


@pytest.mark.parametrize("known", ["msgpack", "msgpack-c"])
def test_msgpack_is_asked_for_under_both_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: str) -> None:
    answer = f'[ "$1 $2" = "--cflags {known}" ] || exit 1\necho -Ianswer\n'
    monkeypatch.setenv("PKG_CONFIG", write_script(tmp_path / "pkg-config", answer))
    assert setup_module()["msgpack_candidates"]() == [["-Ianswer"], []]


def test_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SWX_DEBUG", "SWX_SANITIZE", "SWX_WERROR"):
        monkeypatch.delenv(name, raising=False)
    switches = setup_module()["switches"]
    assert switches() == (["-O2", "-falign-functions=64"], [])
    monkeypatch.setenv("SWX_WERROR", "1")
    assert switches() == (["-O2", "-falign-functions=64", "-Werror"], [])
    monkeypatch.setenv("SWX_DEBUG", "1")
    assert switches()[0][:3] == ["-O0", "-g", "-UNDEBUG"]
    monkeypatch.setenv("SWX_SANITIZE", "thread")
    compile_args, link_args = switches()
    assert "-fsanitize=thread" in compile_args
    assert "-UNDEBUG" in compile_args
    assert link_args == ["-fsanitize=thread"]


def test_a_free_threaded_python_is_refused(tree: Path) -> None:
    """By every command, since pip asks for the metadata first."""
    says = "import runpy, sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1;"
    result = python(tree, "-c", f"{says} runpy.run_path('setup.py', run_name='__main__')", "egg_info")
    assert result.returncode == 1
    (said,) = result.stderr.splitlines()
    assert said.startswith(f"swerex-c cannot be built for {sys.executable}, a free-threaded Python: ")


@pytest.fixture(scope="module")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The extension in an installed wheel, built with warnings as errors, stripped, and without pkg-config."""
    dist, to = (tmp_path_factory.mktemp(name) for name in ("dist", "lib"))
    command = ("setup.py", "bdist_wheel", f"--dist-dir={dist}")
    result = python(tree, *command, SWX_WERROR="1", LDFLAGS="-s", PKG_CONFIG="/nonexistent/pkg-config")
    assert result.returncode == 0, result.stderr
    (wheel,) = dist.iterdir()
    result = python(tree, "-m", "pip", "install", "--no-deps", "--no-index", f"--target={to}", str(wheel))
    assert result.returncode == 0, result.stderr
    (path,) = to.glob("swerex_c/_core*.so")
    return path


def test_extension_serves_every_python_and_exports_nothing_but_its_init(built: Path) -> None:
    assert built.name == "_core.abi3.so"
    listing = subprocess.run(["nm", "-D", "--defined-only", str(built)], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in listing.stdout.splitlines()] == ["PyInit__core"]


def test_supervisor_is_beside_the_extension(built: Path) -> None:
    """Without an end to wait for, and with a mark that nothing has, it ends at once."""
    subprocess.run([built.parent / "_supervisor", "0"], stdin=subprocess.DEVNULL, check=True, timeout=20)


@pytest.mark.parametrize("name", ["_core*.so", "_supervisor"])
def test_ldflags_reach_both_programs(built: Path, name: str) -> None:
    (path,) = built.parent.glob(name)
    listing = subprocess.run(["nm", str(path)], capture_output=True, text=True, check=True)
    assert "no symbols" in listing.stderr


def test_wheel_has_all_that_is_not_python(built: Path) -> None:
    for pattern in ("docs/*.md", "**/*.bash", "**/*.sh", "*.pyi", "py.typed"):
        expected = {str(path.relative_to(ROOT)) for path in (ROOT / "swerex_c").glob(pattern)}
        assert expected
        assert expected == {str(path.relative_to(built.parents[1])) for path in built.parent.glob(pattern)}


def test_wheel_names_the_msgpack_that_is_compiled_in(built: Path) -> None:
    macros = "MSGPACK_VERSION_MAJOR.MSGPACK_VERSION_MINOR.MSGPACK_VERSION_REVISION"
    source = f"#include <msgpack.h>\n{macros}"
    command = ["cc", "-E", "-P", "-x", "c", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    (folder,) = built.parents[1].glob("swerex_c-*.dist-info")
    bill = json.loads((folder / "sboms" / "swerex-c.cdx.json").read_text())
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/swerex-c@{__version__}"
    (msgpack,) = bill["components"]
    assert (msgpack["name"], msgpack["version"]) == ("msgpack-c", "".join(done.stdout.splitlines()[-1].split()))
    assert f"{folder.name}/sboms/swerex-c.cdx.json,sha256=" in (folder / "RECORD").read_text()


def test_source_distribution_is_complete(tree: Path, tmp_path: Path) -> None:
    result = python(tree, "setup.py", "sdist", f"--dist-dir={tmp_path}")
    assert result.returncode == 0, result.stderr
    with tarfile.open(tmp_path / f"swerex_c-{__version__}.tar.gz") as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    sources = ("csrc/*", "swerex_c/**/*.py*", "swerex_c/**/*.bash", "swerex_c/**/*.sh", "tests/**/*.py")
    for pattern in ("setup.py", "pyproject.toml", "*.md", "LICENSE", *sources):
        expected = {str(path.relative_to(tree)) for path in tree.glob(pattern)}
        assert expected
        assert expected <= held
    assert {"tests/c/Makefile", "tests/c/harness.h", ".ci/run"} <= held
    assert not [name for name in held if name.startswith(("tests/c/build", "swerex_c/_core.abi3"))]


def test_version_is_kept_in_one_place() -> None:
    assert importlib.metadata.version("swerex-c") == __version__
    text = {path.name: path.read_text() for path in (ROOT / "setup.py", ROOT / "pyproject.toml")}
    assert [name for name, content in text.items() if f'"{__version__}"' in content] == []


def test_the_base_has_few_requirements() -> None:
    requires = importlib.metadata.requires("swerex-c") or []
    base = sorted(line.split(">")[0] for line in requires if "extra ==" not in line)
    web = ["aiohappyeyeballs", "aiohttp", "python-multipart", "starlette", "uvicorn"]
    assert base == sorted([*web, "pydantic", "rich", "typer"])

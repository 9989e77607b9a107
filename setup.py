"""Builds the extension `swerex_c._core` from csrc/; everything else about the package is in pyproject.toml.

Switches, read from the environment:
  SWX_SANITIZE=address,undefined (or thread)  instruments the extension (gcc)
  SWX_DEBUG=1    no optimisation, debug information, assert() on
  SWX_WERROR=1   warnings stop the build, as in CI
CC, CFLAGS, CPPFLAGS, LDFLAGS and PKG_CONFIG mean what they mean everywhere.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

NEEDS = (
    "swerex-c cannot be built without {what}: "
    "install {debian} on Debian or Ubuntu, {fedora} on Fedora, {macos} on macOS"
)
NO_COMPILER = NEEDS.format(
    what="a working C compiler ({compiler} does not compile an empty program)",
    debian="gcc and libc6-dev",
    fedora="gcc and glibc-devel",
    macos="the command line tools (xcode-select --install)",
)
NO_PYTHON_H = NEEDS.format(
    what="the headers of this Python (Python.h was not found)",
    debian="python3-dev",
    fedora="python3-devel",
    macos="python (brew install python)",
)
NO_MSGPACK_H = NEEDS.format(
    what="the headers of msgpack-c (msgpack.h was not found)",
    debian="libmsgpack-c-dev (libmsgpack-dev up to Debian 12 and Ubuntu 22.04)",
    fedora="msgpack-devel",
    macos="msgpack (brew install msgpack)",
)

FREE_THREADED = (
    "swerex-c cannot be built for {python}, a free-threaded Python: no test has run with one, "
    "so use a Python with the GIL, such as python{version}"
)

NOT_COMPILED = (
    "swerex-c cannot be built because {compiler} fails ({error}): "
    "try CC=gcc or another compiler, or report this with {log}, which has all that it said"
)
LOG = Path("build", "compiler.log")

# Where functions begin moves with every change elsewhere, and with it the time of short ones by up to an eighth.
ALIGNED = "-falign-functions=64"

COMPILE_ARGS = ["-std=c11", "-D_GNU_SOURCE", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"]


def switches() -> tuple[list[str], list[str]]:
    """Compiler and linker arguments that the environment asks for."""
    compile_args, link_args = ["-O2", ALIGNED], []
    if os.environ.get("SWX_DEBUG", "0") not in ("", "0"):
        compile_args = ["-O0", "-g", "-UNDEBUG", "-U_FORTIFY_SOURCE"]
    sanitizers = os.environ.get("SWX_SANITIZE", "")
    if sanitizers:
        flag = f"-fsanitize={sanitizers}"
        compile_args = ["-O1", "-g", "-UNDEBUG", "-U_FORTIFY_SOURCE", "-fno-omit-frame-pointer"]
        compile_args += [flag, "-fno-sanitize-recover=all"]
        link_args += [flag]
    if os.environ.get("SWX_WERROR", "0") not in ("", "0"):
        compile_args += ["-Werror"]
    return compile_args, link_args


def pkg_config(name: str) -> list[str] | None:
    """Return pkg-config's compiler arguments for a library, or None if it does not know the library."""
    tool = shlex.split(os.environ.get("PKG_CONFIG", "pkg-config"))
    try:
        done = subprocess.run([*tool, "--cflags", name], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return shlex.split(done.stdout)


def msgpack_candidates() -> list[list[str]]:
    """Return compiler arguments that may lead to the headers of msgpack-c, best first. Nothing of it is linked.

    Its pkg-config name was msgpack up to version 5; from 6 on it is msgpack-c.
    """
    return [flags for name in ("msgpack-c", "msgpack") if (flags := pkg_config(name)) is not None] + [[]]


class Build(build_ext):
    """build_ext that looks for what it needs first, says in one sentence what is missing, and uses every core."""

    msgpack_version = ""  # of the headers that were compiled in

    def finalize_options(self) -> None:
        super().finalize_options()
        # The switches above change the result without changing a file's date.
        self.force = True

    def build_extensions(self) -> None:
        (extension,) = self.extensions
        self.require_compiler()
        self.require_python_headers()
        msgpack_cflags = self.require_msgpack()
        compile_args, link_args = switches()
        extension.extra_compile_args = COMPILE_ARGS + compile_args + msgpack_cflags
        extension.extra_link_args = ["-pthread", *link_args, "-lutil"]
        self.compile_in_parallel()
        self.compiler.spawn = self.compiler.call = self.run_compiler  # by its name up to some release, and after it
        super().build_extensions()
        self.link_supervisor(compile_args, link_args)

    def link_supervisor(self, compile_args: list[str], link_args: list[str]) -> None:
        """Links the executable that `csrc/swx_supervisor.c` starts, beside the extension."""
        names = ("buf", "child", "proc", "supervisor", "tree")
        sources = ["csrc/supervisor.c", *(f"csrc/swx_{name}.c" for name in names)]
        objects = self.compiler.compile(sources, self.build_temp, extra_postargs=COMPILE_ARGS + compile_args)
        # setuptools gives LDFLAGS to shared libraries only.
        link_args = ["-pthread", *link_args, *shlex.split(os.environ.get("LDFLAGS", ""))]
        self.compiler.link_executable(objects, self.supervisor(), extra_postargs=link_args)

    def supervisor(self) -> str:
        return os.path.join(os.path.dirname(self.get_ext_fullpath("swerex_c._core")), "_supervisor")

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        self.copy_file(os.path.join(self.build_lib, "swerex_c", "_supervisor"), self.supervisor())

    def run_compiler(self, command: list[str], **_: object) -> None:
        """Runs the compiler or the linker; of what it says when it fails one line is shown."""
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if not done.returncode:
            sys.stderr.write(done.stdout)
            return
        LOG.parent.mkdir(exist_ok=True)
        LOG.write_text(f"{shlex.join(command)}\n{done.stdout}")
        error = next((line for line in done.stdout.splitlines() if "error" in line), f"exit code {done.returncode}")
        raise SystemExit(NOT_COMPILED.format(compiler=command[0], error=error.strip(), log=LOG.resolve()))

    def attempt(self, source: str, cflags: list[str], *, link: bool = False) -> bool:
        """Check whether a source text compiles, and links if `link` is true."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "attempt.c")
            path.write_text(source)
            commands = [[*self.compiler.compiler_so, *cflags, "-c", str(path), "-o", f"{folder}/attempt.o"]]
            if link:
                commands.append([*self.compiler.linker_so, f"{folder}/attempt.o", "-o", f"{folder}/attempt.so"])
            try:
                return all(subprocess.run(command, capture_output=True).returncode == 0 for command in commands)
            except OSError:
                return False

    def require_compiler(self) -> None:
        program = "#include <stdlib.h>\nint attempt(void);\nint attempt(void) { return abs(-1); }\n"
        if not self.attempt(program, [], link=True):
            raise SystemExit(NO_COMPILER.format(compiler=self.compiler.compiler_so[0]))

    def require_python_headers(self) -> None:
        if not self.attempt("#include <Python.h>\n", [f"-I{folder}" for folder in self.compiler.include_dirs]):
            raise SystemExit(NO_PYTHON_H)

    def require_msgpack(self) -> list[str]:
        """Return the compiler arguments of the first candidate that works."""
        for cflags in msgpack_candidates():
            if self.attempt("#include <msgpack.h>\n", cflags):
                self.msgpack_version = self.version_of_msgpack(cflags)
                return cflags
        raise SystemExit(NO_MSGPACK_H)

    def version_of_msgpack(self, cflags: list[str]) -> str:
        macros = " ".join(f"MSGPACK_VERSION_{part}" for part in ("MAJOR", "MINOR", "REVISION"))
        command = [*self.compiler.compiler_so, *cflags, "-E", "-P", "-x", "c", "-"]
        source = f"#include <msgpack.h>\n{macros}\n"
        done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
        return ".".join(done.stdout.splitlines()[-1].split())

    def compile_in_parallel(self) -> None:
        compile_some = self.compiler.compile

        def compile_all(sources: list[str], *args: object, **options: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                done = pool.map(lambda source: compile_some([source], *args, **options), sources)
                return [path for objects in done for path in objects]

        self.compiler.compile = compile_all


def bill_of_materials(version: str, msgpack_version: str) -> dict[str, object]:
    """Describe in CycloneDX what a wheel contains of others: without a date, so that two builds give the same bytes."""

    def component(name: str, version: str, license: str, purl: str) -> dict[str, object]:
        named = {"type": "library", "bom-ref": name, "name": name, "version": version, "purl": purl}
        return {**named, "licenses": [{"license": {"id": license}}]}

    source = "vcs_url=git%2Bhttps://github.com/msgpack/msgpack-c"
    msgpack = component("msgpack-c", msgpack_version, "BSL-1.0", f"pkg:generic/msgpack-c@{msgpack_version}?{source}")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component("swerex-c", version, "MIT", f"pkg:pypi/swerex-c@{version}")},
        "components": [msgpack],
        "dependencies": [{"ref": "swerex-c", "dependsOn": ["msgpack-c"]}, {"ref": "msgpack-c"}],
    }


class Wheel(bdist_wheel):
    """bdist_wheel with a software bill of materials in its metadata (PEP 770)."""

    def write_wheelfile(self, wheelfile_base: str, *args: object, **options: object) -> None:
        super().write_wheelfile(wheelfile_base, *args, **options)
        msgpack_version = self.get_finalized_command("build_ext").msgpack_version
        if msgpack_version:  # an editable install writes its metadata before it compiles
            path = Path(wheelfile_base, "sboms", "swerex-c.cdx.json")
            path.parent.mkdir()
            bill = bill_of_materials(self.distribution.get_version(), msgpack_version)
            path.write_text(json.dumps(bill, indent=2) + "\n")


class SourceDistribution(sdist):
    """sdist with the tests, the benchmarks and CI in it, so that it can be checked where it is built."""

    EXTRA = ("CHANGELOG.md", "LICENSE", "csrc/**/*", "tests/**/*", "benchmarks/**/*", ".ci/**/*")
    LEFT_OUT = ("tests/c/build/", "__pycache__", ".hypothesis/", ".pytest_cache/")

    def make_distribution(self) -> None:
        for pattern in self.EXTRA:
            for path in sorted(glob(pattern, recursive=True, include_hidden=True)):
                if Path(path).is_file() and not any(part in path for part in self.LEFT_OUT):
                    self.filelist.append(path)
        self.filelist.remove_duplicates()
        super().make_distribution()


def extension() -> Extension:
    return Extension(
        "swerex_c._core",
        sources=sorted(glob("csrc/swx_*.c") + glob("csrc/py_*.c")),
        depends=sorted(glob("csrc/*.h")),
        include_dirs=["csrc"],
        define_macros=[("Py_LIMITED_API", "0x030b0000")],
        py_limited_api=True,
    )


if __name__ == "__main__":
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise SystemExit(FREE_THREADED.format(python=sys.executable, version=sysconfig.get_python_version()))
    logging.disable(logging.INFO)  # a list of what is copied, in which pip would show a sentence of ours at the end
    setup(
        ext_modules=[extension()],
        cmdclass={"bdist_wheel": Wheel, "build_ext": Build, "sdist": SourceDistribution},
        options={"bdist_wheel": {"py_limited_api": "cp311"}},  # one wheel serves every CPython from 3.11 on
    )

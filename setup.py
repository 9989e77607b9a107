"""Builds the extension `swerex_c._core` from csrc/; everything else about the package is in pyproject.toml.

Switches, read from the environment:
  SWX_SANITIZE=address,undefined (or thread)  instruments the extension (gcc)
  SWX_DEBUG=1    no optimisation, debug information, assert() on
  SWX_WERROR=1   warnings stop the build, as in CI
CC, CFLAGS, CPPFLAGS, LDFLAGS and PKG_CONFIG mean what they mean everywhere.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

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
NO_MSGPACK = NEEDS.format(
    what="{part}",
    debian="libmsgpack-c-dev (libmsgpack-dev up to Debian 12 and Ubuntu 22.04)",
    fedora="msgpack-devel",
    macos="msgpack (brew install msgpack)",
)
NO_MSGPACK_H = NO_MSGPACK.format(part="the headers of msgpack-c (msgpack.h was not found)")
NO_MSGPACK_LIB = NO_MSGPACK.format(part="the library of msgpack-c (linking with it failed)")

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


def pkg_config(name: str) -> tuple[list[str], list[str]] | None:
    """What pkg-config says about a library, or None when it is missing or does not know it."""
    tool = shlex.split(os.environ.get("PKG_CONFIG", "pkg-config"))
    try:
        cflags, libs = (
            shlex.split(subprocess.run([*tool, option, name], capture_output=True, text=True, check=True).stdout)
            for option in ("--cflags", "--libs")
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return cflags, libs


def msgpack_candidates() -> list[tuple[list[str], list[str]]]:
    """Ways to compile and link with msgpack-c, best first.

    Its pkg-config name and its library were called msgpack and msgpackc up to version 5; from 6 on both are msgpack-c.
    """
    asked = [found for name in ("msgpack-c", "msgpack") if (found := pkg_config(name))]
    return asked + [([], ["-lmsgpack-c"]), ([], ["-lmsgpackc"])]


class Build(build_ext):
    """build_ext that looks for what it needs first, says in one sentence what is missing, and uses every core."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # The switches above change the result without changing a file's date.
        self.force = True

    def build_extensions(self) -> None:
        (extension,) = self.extensions
        self.require_compiler()
        self.require_python_headers()
        msgpack_cflags, msgpack_libs = self.require_msgpack()
        compile_args, link_args = switches()
        extension.extra_compile_args = COMPILE_ARGS + compile_args + msgpack_cflags
        extension.extra_link_args = ["-pthread", *link_args, *msgpack_libs, "-lutil"]
        self.compile_in_parallel()
        super().build_extensions()

    def attempt(self, source: str, cflags: list[str], libs: list[str] | None = None) -> bool:
        """Whether a source text compiles (and links, when `libs` is given)."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "attempt.c")
            path.write_text(source)
            commands = [[*self.compiler.compiler_so, *cflags, "-c", str(path), "-o", f"{folder}/attempt.o"]]
            if libs is not None:
                commands.append([*self.compiler.linker_so, f"{folder}/attempt.o", "-o", f"{folder}/attempt.so", *libs])
            try:
                return all(subprocess.run(command, capture_output=True).returncode == 0 for command in commands)
            except OSError:
                return False

    def require_compiler(self) -> None:
        if not self.attempt("#include <stdlib.h>\nint attempt(void);\nint attempt(void) { return abs(-1); }\n", [], []):
            raise SystemExit(NO_COMPILER.format(compiler=self.compiler.compiler_so[0]))

    def require_python_headers(self) -> None:
        if not self.attempt("#include <Python.h>\n", [f"-I{folder}" for folder in self.compiler.include_dirs]):
            raise SystemExit(NO_PYTHON_H)

    def require_msgpack(self) -> tuple[list[str], list[str]]:
        """The flags of the first way that works."""
        include = "#include <msgpack.h>\n"
        program = include + "const char *attempt(void);\nconst char *attempt(void) { return msgpack_version(); }\n"
        candidates = msgpack_candidates()
        for cflags, libs in candidates:
            if self.attempt(program, cflags, libs):
                return cflags, libs
        has_header = any(self.attempt(include, cflags) for cflags, _ in candidates)
        raise SystemExit(NO_MSGPACK_LIB if has_header else NO_MSGPACK_H)

    def compile_in_parallel(self) -> None:
        compile_some = self.compiler.compile

        def compile_all(sources: list[str], *args: object, **options: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                done = pool.map(lambda source: compile_some([source], *args, **options), sources)
                return [path for objects in done for path in objects]

        self.compiler.compile = compile_all


class SourceDistribution(sdist):
    """sdist with the tests, the benchmarks and CI in it, so that it can be checked where it is built."""

    EXTRA = ("CHANGELOG.md", "LICENSE", "csrc/**/*", "tests/**/*", "benchmarks/**/*", ".ci/**/*")
    LEFT_OUT = ("tests/c/build/", "__pycache__", ".hypothesis/", ".pytest_cache/")

    def make_distribution(self) -> None:
        for pattern in self.EXTRA:
            for path in sorted(glob(pattern, recursive=True)):
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
        define_macros=[] if FREE_THREADED else [("Py_LIMITED_API", "0x030b0000")],
        py_limited_api=not FREE_THREADED,
    )


if __name__ == "__main__":
    setup(
        ext_modules=[extension()],
        cmdclass={"build_ext": Build, "sdist": SourceDistribution},
        # One wheel serves every CPython from 3.11 on; a free-threaded one has no stable ABI and gets its own.
        options={} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp311"}},
    )

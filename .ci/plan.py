"""The steps of `.ci/run` (GATE) and of `.ci/full` (FULL).

A step is a script for bash at the top of the tree. `$WORK` is build/ci; environments of a step are in .cache/ci.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

CLOUDS = ("kubernetes", "modal", "daytona", "fargate")
README = re.findall(r"^```\w*\n(.*)\n```$", Path("README.md").read_text(), re.MULTILINE)  # blocks of a single line
PYTEST = "python -m pytest -q -p no:cacheprovider -rfE"
OURS = f".venv/bin/{PYTEST}"
TESTS = "--ignore tests/providers --ignore tests/compatibility"  # those folders need engines, or extras


@dataclass(frozen=True)
class Step:
    """A step of a plan.

    Args:
        limit: seconds until it is ended.
        needs: names of the steps that must be OK before it starts.
        rerun: command that a test's id is appended to, to run the test alone; without it the step is run again whole.
        alone: run while no other step runs.
    """

    name: str
    command: str
    limit: int
    needs: tuple[str, ...] = ("setup",)
    rerun: str = ""
    alone: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def tests(name: str, arguments: str, limit: int, **options: object) -> Step:
    """Return a step of pytest in .venv."""
    return Step(name, f"{OURS} {arguments}", limit, rerun=OURS, **options)  # type: ignore[arg-type]


def extra(name: str, extra: str, arguments: str, limit: int, **options: object) -> Step:
    """Return a step of pytest in an environment of its own: .venv and what an extra of the package requires besides."""
    venv = f".cache/ci/{name}"
    pytest = f"PATH=$PWD/{venv}/bin:$PWD/.venv/bin:$PATH PYTHONPATH=$PWD {PYTEST}"
    script = f"""
        [ -d {venv} ] || .venv/bin/python -m venv --without-pip {venv}
        ls -d $PWD/.venv/lib/python3*/site-packages >$(ls -d {venv}/lib/python3*/site-packages)/shared.pth
        .venv/bin/python .ci/requirements {extra} >{venv}/requirements.txt
        .venv/bin/python -m pip --python {venv}/bin/python install --quiet --no-compile -r {venv}/requirements.txt
        {pytest} {arguments}"""
    return Step(name, script, limit, rerun=pytest, **options)  # type: ignore[arg-type]


def needing(*names: str, besides: str = "") -> str:
    """Return pytest's arguments for the contracts and the tests of providers that need one of these."""
    needed = " or ".join(f"needs(name='{name}')" for name in names)
    folders = [folder for name in names if Path(folder := f"tests/providers/{name}").is_dir()]
    return f'-m "({needed}){besides}" tests/contracts {" ".join(folders)}'


def slices(*names: str) -> str:
    """Return pytest's arguments for the few of them that the gate runs."""
    return needing(*names, besides=" and slice")


ENTRIES = ".ci .github .gitignore CHANGELOG.md LICENSE README.md benchmarks csrc pyproject.toml setup.py swerex_c tests"
STATIC = f"""
    git ls-files | cut -d/ -f1 | LC_ALL=C sort -u | xargs | tee /dev/stderr |
        grep -qx '{ENTRIES}'
    .venv/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*
    .venv/bin/zizmor --offline --no-progress .github/workflows
    .venv/bin/ruff check .
    .venv/bin/lint-imports
    .venv/bin/mypy --strict
    .venv/bin/python -m mypy.stubtest swerex_c._core
    git ls-files -z 'swerex_c/*.bash' 'swerex_c/*.sh' .ci/{{run,full,setup,debian,test,wheels,try_wheel}} |
        xargs -0 shellcheck -x -P SCRIPTDIR -e SC1007,SC2015,SC2016,SC2031
"""
PACKAGE = """
    rm -rf build/ci/dist
    .venv/bin/python -m build --outdir build/ci/dist .
    .venv/bin/python -m twine check --strict build/ci/dist/*
    .venv/bin/python -m venv --clear .cache/ci/package
    .cache/ci/package/bin/python -m pip install --quiet build/ci/dist/*.whl
    smoke=$PWD/tests/support/smoke.py bin=$PWD/.cache/ci/package/bin
    cd /
    "$bin/python" -m swerex_c.cli.demo
    [ "$("$bin/swerex-c" exec 'echo "$((6 * 7))"')" = 42 ]
    "$bin/python" "$smoke"
"""
AUDIT = """
    cd "$OLDPWD"
    .venv/bin/python -m abi3audit --strict --summary build/ci/dist/*.whl
"""
PYTHONS = """
    for version in %s; do
        python=
        for each in "python$version" "$OWNERS_HOME"/.pyenv/versions/"$version".*/bin/python; do
            ! "$each" -c 'import ensurepip, venv' 2>/dev/null || python=$each
        done
        if [ -z "$python" ]; then
            echo "this machine has no Python $version"
            continue
        fi
        venv=.cache/ci/python$version
        "$python" -m venv --clear "$venv"
        "$venv/bin/python" -m pip install --quiet build/ci/dist/*.whl
        (cd / && "$OLDPWD/$venv/bin/python" "$OLDPWD/tests/support/smoke.py")
    done
"""
ANSWERS = ".venv/bin/python -m benchmarks --answers"

GATE_SECONDS = 1200
RERUN_SECONDS = 120  # of them, for the second runs of failed tests
GATE = [
    Step("session", README[0], 300, ()),
    Step("setup", "bash .ci/setup gate", 300, ("session",)),
    Step("tests", README[1], 960, rerun=OURS),
    Step("package", PACKAGE, 240),
    tests("contracts", f"-n 2 --dist loadgroup {needing('server', besides=' and not slow')}", 300),
    extra("clouds", "test-clouds", f"-n 2 --dist loadgroup {slices(*CLOUDS)}", 300),
    extra("ray", "test-ray", slices("ray"), 240),
    tests("docker", slices("docker"), 180),
    tests("ssh-bwrap", slices("ssh", "isolated"), 120),
    tests("callers", "-m slice -n 2 --dist loadgroup tests/compatibility tests/remote/test_compatibility.py", 240),
    Step("static", STATIC, 240),
    Step("original", ".venv/bin/python tests/compatibility/run_original_tests.py --term xterm", 200),
    Step("pythons", PYTHONS % "3.12 3.13", 180, ("package",)),
    Step("answers", ANSWERS, 180),
]

# Without a test that uses a forked child: the sanitizer's allocator may be locked there.
ASAN = """
    tree=$PWD/.cache/ci/asan python=$PWD/.venv/bin/python
    rm -rf "$tree"
    mkdir -p "$tree"
    git ls-files -z | tar --null -T - -cf - | tar -C "$tree" -xf -
    cd "$tree"
    SWX_SANITIZE=address,undefined "$python" setup.py -q build_ext --inplace
    export SWX_ASAN_PYTHON=$tree/python-under-asan
    printf '#!/bin/sh\\nLD_PRELOAD=%s PYTHONMALLOC=${PYTHONMALLOC:-malloc} exec %s "$@"\\n' \\
        "$(gcc -print-file-name=libasan.so)" "$python" >"$SWX_ASAN_PYTHON"
    chmod +x "$SWX_ASAN_PYTHON"
    export PYTHONPATH=$tree:$tree/tests/support/asan PATH=${python%/*}:$PATH
    export ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0:allocator_may_return_null=1
    export UBSAN_OPTIONS=print_stacktrace=1
    "$SWX_ASAN_PYTHON" -c 'import swerex_c._core as c; assert "/ci/asan/" in c.__file__, c.__file__'
    "$SWX_ASAN_PYTHON" -m pytest -q -p no:cacheprovider -rfE -n 2 --dist loadgroup --timeout 600 \\
        -m "not slow and not idle and not needs" --ignore tests/providers --ignore tests/compatibility \\
        --ignore tests/remote --ignore tests/bench --ignore tests/sandbox/test_behaviour.py \\
        --deselect tests/core/test_supervisor.py::test_a_forked_child_keeps_its_own \\
        --ignore tests/core/test_c_programs.py tests
"""
DEPENDENCIES = """
    for which in lowest newest; do
        venv=.cache/ci/$which lowest=
        [ $which = newest ] || lowest=--lowest
        .venv/bin/python -m venv --clear $venv
        .venv/bin/python .ci/requirements $lowest fast metrics logs patterns >$venv/bounds.txt
        .venv/bin/python .ci/requirements test >$venv/requirements.txt
        $venv/bin/python -m pip install --quiet -r $venv/bounds.txt -r $venv/requirements.txt
        $venv/bin/python -m pip check
        PYTHONPATH=$PWD PATH=$PWD/$venv/bin:$PATH python -m pytest -q -p no:cacheprovider -rfE -n 2 --dist loadgroup \\
            -m "not slow and not idle" tests/remote tests/cli tests/test_models.py tests/test_exceptions.py
    done
"""
# What another Python or another Debian could change.
ELSEWHERE = "-n 2 --dist loadgroup -m 'not slow and not idle' tests/{core,remote,pool,files,examples}"
NEWER = f"""
    for python in python3.12 python3.13 python3.14 "$OWNERS_HOME"/.pyenv/versions/3.1[2-9].*/bin/python; do
        "$python" -c 'import ensurepip, venv' 2>/dev/null || continue
        venv=.cache/ci/tests-$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        [ -d "$venv" ] || "$python" -m venv "$venv"
        "$venv/bin/python" -m pip install --quiet "$(ls build/ci/dist/*.whl)[test]"
        PATH=$PWD/$venv/bin:$PATH {PYTEST} {ELSEWHERE}
    done
"""
# The README's two commands in a fresh Debian: the first as root, the second as a user who owns the clone.
DEBIAN = f"""
    bash .ci/debian %s {README[0]!r}' && bash .ci/setup test && useradd -m ordinary && rm -r .venv &&
        mv /root/swerex_c /home/ordinary && chown -R ordinary: /home/ordinary &&
        su ordinary -c "cd /home/ordinary/swerex_c && {README[1]}"'
"""
ORDINARY = f"""
    root=$(mktemp -d /tmp/ordinary-XXXXXX)
    trap 'cp "$root/results" "$CI_RESULTS"; rm -rf "$root"; userdel swx-ordinary || :' EXIT
    git clone -q . "$root/swerex_c"
    id swx-ordinary >/dev/null 2>&1 || useradd swx-ordinary
    chown -R swx-ordinary: "$root"
    cd "$root/swerex_c"
    setpriv --reuid swx-ordinary --regid swx-ordinary --clear-groups \\
        env PATH=/usr/local/bin:/usr/bin:/bin HOME="$root" CI_RESULTS="$root/results" {README[1]}
"""
WHEELS = """
    bash .ci/wheels
    bash .ci/debian bookworm 'bash .ci/try_wheel'
    bash .ci/debian trixie 'bash .ci/try_wheel'
    bash .ci/debian bookworm:arm64 'bash .ci/try_wheel'
"""
FLAKY = f"""
    grep -ho '^FLAKY ([a-z]*) [a-z-]*: .*' build/ci/*report.md | sed 's/^[^:]*: //' | sort -u >$WORK/flaky.txt || exit 0
    for one in 1 2; do (while :; do :; done) & done
    while read -r test; do for _ in $(seq 50); do {OURS} "$test" || exit; done; done <$WORK/flaky.txt
"""
NO_PROC = "tests/engine/test_without_proc_syscall.py tests/sandbox/test_behaviour.py"
ALL = "-n 2 --dist loadgroup --timeout 600"
MUST = {"SWX_MUST": "1"}

FULL_SECONDS = 6 * 3600
FULL = [
    Step("setup", "bash .ci/setup full", 900, ()),
    Step("package", PACKAGE + AUDIT, 400),
    tests(
        "slow",
        f"{ALL} {TESTS} {NO_PROC.replace('tests/', '--ignore tests/')} -m 'slow and not idle and not needs' tests",
        2400,
    ),
    tests("no-proc", f"{ALL} {NO_PROC}", 3000),
    Step("answers", """
        tester=".venv/bin/python -m tests.engine.random_tester --seconds 60"
        $tester --sessions 24 --busy 1
        $tester --threads 4
        $tester --sessions 24 --server
        $tester --closed
        $tester --place here
        """, 900),
    Step("original", ".venv/bin/python tests/compatibility/run_original_tests.py", 300),
    Step("clang", "make -k -C tests/c -j2 check CC=$(basename $(command -v clang-14 || command -v clang))", 900),
    Step("tsan", "make -k -C tests/c -j2 tsan", 600),
    Step("fuzz", "make -k -C tests/c -j2 fuzz", 900),
    Step("asan-python", ASAN, 5400),
    tests("docker", f"{ALL} {needing('docker', 'docker-server', 'podman')}", 2400, environment=MUST),
    tests("ssh", f"{ALL} {needing('ssh')}", 1200, environment=MUST),
    tests("isolated", f"{ALL} {needing('isolated')}", 1200, environment=MUST),
    tests("kubectl", f"{ALL} {needing('kubectl')}", 1200, environment=MUST),
    tests("original-contracts", f"{ALL} {needing('original')}", 600, environment=MUST),
    tests("sandboxes", f"{ALL} -m 'not needs' tests/providers", 2400, environment=MUST),
    *(extra(name, "test-clouds", f"{ALL} {needing(name)}", 1800, environment=MUST) for name in CLOUDS),
    extra("ray", "test-ray", f"{ALL} {needing('ray')}", 1800, environment=MUST),
    tests("callers", f"{ALL} tests/compatibility", 1200, environment=MUST),
    Step("pythons", PYTHONS % "3.12 3.13 3.14" + NEWER, 3000, ("package",)),
    Step("debian13", DEBIAN % "trixie", 3000),
    Step("sid", DEBIAN % "sid", 3000),
    Step("ordinary-user", ORDINARY, 1200),
    Step("dependencies", DEPENDENCIES, 2400),
    Step("wheels", WHEELS, 3600),
    tests("idle", f"{TESTS} --timeout 600 -m idle tests", 3000, alone=True),
    Step("instructions", ".venv/bin/python -m benchmarks --instructions", 400, alone=True),
    Step("large-answers", ".venv/bin/python -m benchmarks --answers --only 'docker-*,sessions-1000,output-1000'", 600),
    Step("benchmarks", ".venv/bin/python -m benchmarks --seconds 600 --no-record", 1200, alone=True),
    Step("flaky", FLAKY, 3000),
]  # fmt: skip

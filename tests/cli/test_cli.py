"""The command `swerex-c`, run as a user runs it."""

from __future__ import annotations

import array
import fcntl
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from swerex_c import __version__
from swerex_c._version import __version__ as own_version
from swerex_c.cli.main import app
from swerex_c.models import STARTUP_SECONDS
from tests.support.cli import COMMAND, cli, results, start
from tests.support.closed_syscall import build_preload
from tests.support.harness import write_script
from tests.support.original import our_environment
from tests.support.processes import Family, ran
from tests.support.wait import DEADLINE, doubled, until


def test_the_version() -> None:
    assert results(cli("--version")) == (f"swerex-c {own_version} (SWE-ReX API {__version__})\n", "", 0)


COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_a_terminal_and_has_no_types_of_python(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = CliRunner().invoke(app, [*command.split(), "--help"])
    assert told.exit_code == 0
    assert "Usage: " in told.stdout or "usage: " in told.stdout
    assert max(map(len, told.stdout.splitlines())) <= 80
    assert told.stdout.isascii()
    assert command or all(f" {name} " in told.stdout for name in COMMANDS)
    assert command != "exec" or f"startup files (default: {STARTUP_SECONDS:g})" in " ".join(told.stdout.split())
    assert not re.search(r"<\w*(str|bool|int|float|path|list)\b|\b(TEXT|FLOAT|INTEGER|RANGE)", told.stdout)


@pytest.mark.parametrize(
    "arguments, says, code",
    [
        (["no-such-command"], "no-such-command", 2),
        (["run"], "COMMAND", 2),
        (["shell"], "needs a terminal", 2),
        (["exec", "--no-such-option"], "--no-such-option", 2),
        (["exec", "-t", "-1", "true"], "--timeout", 2),
        (["exec", "-s", "build", "true"], "-s", 2),  # no option promises a session that lasts
        (["exec", "-f", "/no/such/file"], "/no/such/file: No such file", 127),
        (["exec", "-f", "/bin/sh"], "not UTF-8", 2),
        (["exec", "-f", "x", "true"], "not both", 2),
        (["exec", "-e", "NOVALUE", "true"], "NAME=VALUE", 2),
        (["exec", "--startup-source", "/no/such/start.sh", "true"], "/no/such/start.sh", 1),
        (["exec", "echo before; if true; then echo"], "syntax error", 2),
        (["exec", "--deployment", '{"type": []}', "true"], 'needs a "type"', 2),
        (["prune", "--namespace", "ci"], "--cloud kubernetes", 2),
    ],
)
def test_what_is_wrong_is_told(arguments: list[str], says: str, code: int) -> None:
    done = cli(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr and "Traceback" not in done.stderr


def test_completion_in_bash(tmp_path: Path) -> None:
    """It installs into the startup file of whoever calls it, and completes commands and options."""
    write_script(tmp_path / "swerex-c", "from swerex_c.cli.main import main\nmain()", sys.executable)
    asks = """
        swerex-c --show-completion; swerex-c --install-completion >/dev/null; . ~/.bashrc
        complete -p swerex-c
        COMP_WORDS=(swerex-c ex) COMP_CWORD=1; _swerex_c_completion swerex-c; echo "${COMPREPLY[*]}"
        COMP_WORDS=(swerex-c exec --im) COMP_CWORD=2; _swerex_c_completion swerex-c; echo "${COMPREPLY[*]}"
    """
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = {**our_environment(), "HOME": str(tmp_path), "PATH": path}
    done = ran("bash", "-c", asks, env=environment)
    assert done.stderr == ""
    assert "_SWEREX_C_COMPLETE=complete_bash" in done.stdout
    expected = ["complete -o default -F _swerex_c_completion swerex-c", "exec", "--image"]
    assert done.stdout.splitlines()[-3:] == expected


# exec


@pytest.mark.parametrize(
    ("arguments", "script", "input", "output", "code"),
    [
        (["echo hi; cd /tmp && pwd"], "", "", "hi\n/tmp\n", 0),
        (["printf x; (exit 7)"], "", "", "x", 7),
        (["no_such_program_here 2>/dev/null"], "", "", "", 127),
        (["printf", "<%s>", "a b", "$HOME", "--timeout", "*"], "", "", "<a b><$HOME><--timeout><*>", 0),
        (["--file"], "x=1\ncat <<'END'\n$x\nEND\nfalse\necho $((x + 1))\n(exit 3)\n", "", "$x\n2\n", 3),
        (["-f", "-"], "", "echo a\necho b\n", "a\nb\n", 0),
        ([], "", "echo 'ä'\n", "ä\n", 0),
        (["echo bye; exit 3"], "", "", "bye\n", 3),
        (["set -e; echo a; false; echo b"], "", "", "a\n", 1),
        (["-f"], "trap 'echo last' EXIT\nexec sh -c 'exit 4'\n", "", "", 4),
        (["cat | wc -c"], "", "data\n", "5\n", 0),
        (['read x; echo "[$x]"'], "", "a b\nc\n", "[a b]\n", 0),
        (["cat"], "", "", "", 0),
        ([], "", "cat\necho end\n", "end\n", 0),
        (["-f"], "sort\n", "b\na\n", "a\nb\n", 0),
        pytest.param(["seq 1 200000"], "", "", "".join(f"{n}\n" for n in range(1, 200001)), 0, id="much"),
    ],
)
def test_exec(arguments: list[str], script: str, input: str, output: str, code: int, tmp_path: Path) -> None:
    """It prints the output and ends with the exit code of a command, of words, or of a script in a file or on stdin."""
    if script:
        (tmp_path / "script.sh").write_text(script)
        arguments = [*arguments, str(tmp_path / "script.sh")]
    assert results(cli("exec", *arguments, input=input)) == (output, "", code)


@pytest.mark.parametrize("as_json", [False, True])
def test_exec_prints_what_came_before_a_timeout(family: Family, as_json: bool) -> None:
    """All of it, if there was time for it; else what has come so far."""
    for timeout in doubled(0.5):
        done = cli("exec", "--timeout", str(timeout), *["--json"] * as_json, "echo early; sleep 1000")
        told = {"output": done.stdout, "error": done.stderr, **(json.loads(done.stdout) if as_json else {})}
        assert told["output"] in ("", "early\n") and done.returncode == 124
        assert told["error"].strip().endswith(f"timeout after {timeout} seconds")
        if told["output"]:
            break
    assert not family.left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_exec_leaves_nothing_behind_when_it_is_ended(number: signal.Signals, family: Family) -> None:
    with start("exec", "echo up; sleep 100 & setsid --wait sleep 100") as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.wait(DEADLINE) == 128 + number
        assert process.stderr.read() == ""
    assert not family.left()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_exec_ends_with_a_code_whenever_it_is_ended(number: signal.Signals) -> None:
    """While the command ends, the session, the loop and Python itself: never of the signal."""
    rounds = 20
    for step in range(rounds):
        with start("exec", "echo up") as process:
            assert process.stdout.readline() == "up\n"
            time.sleep(step * 0.2 / rounds)  # any moment of an end
            process.send_signal(number)
            assert (process.wait(DEADLINE) in (0, 128 + number), process.stderr.read()) == (True, ""), step


def test_exec_stops_quietly_when_nobody_reads(family: Family) -> None:
    with start("exec", "yes") as process:
        assert process.stdout.read(100) == "y\n" * 50
        process.stdout.close()
        assert process.wait(DEADLINE) == 141
        assert process.stderr.read() == ""
    assert not family.left()


def test_exec_hands_on_what_is_a_socket_or_a_terminal_or_cannot_be_opened_again() -> None:
    """It does not wait for the end of a socket that the command does not read."""
    ours, theirs = socket.socketpair()
    ours.sendall(b"over a socket\n")
    master, slave = pty.openpty()
    opened = os.memfd_create("opened")
    os.pwrite(opened, b"of another user\n", 0)
    os.fchmod(opened, 0)
    prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    for given, command, expected in (
        (theirs.fileno(), "head -n 1", "over a socket\n"),
        (theirs.fileno(), "echo hi", "hi\n"),
        (slave, "cat", ""),
        (opened, "cat", "of another user\n"),
    ):
        done = ran(*prefix, *COMMAND, "exec", command, stdin=given, env=our_environment())
        assert results(done) == (expected, "", 0)
    for end in (master, slave, opened, ours.detach(), theirs.detach()):
        os.close(end)


def test_exec_starts_where_and_with_what_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "start.sh").write_text("started=yes\n")
    done = cli(
        "exec", "-C", str(tmp_path), "-e", "A=1", "-e", "B=x=y z", "--startup-source", str(tmp_path / "start.sh"),
        'echo "$PWD $A $B $started"',
    )  # fmt: skip
    assert results(done) == (f"{tmp_path} 1 x=y z yes\n", "", 0)


@pytest.mark.parametrize(
    "arguments, fields, code",
    [
        (["printf 'a\\tb\\n'; exit 3"], {"output": "a\tb\n", "exit_code": 3}, 3),
        (["-t", "0.5", "sleep 100"], {"timed_out": True, "error": "timeout after 0.5 seconds"}, 124),
        (["--no-output-timeout", "0.5", "sleep 100"], {"timed_out": True, "error": "no output for 0.5 seconds"}, 124),
        (
            ["-C", "/no/such", "true"],
            {"error": "The directory '/no/such' that the session should start in does not exist"},
            1,
        ),
        (["kill -TERM $PPID; sleep 100"], {"error": "swerex-c was ended by signal 15"}, 143),
    ],
)
def test_exec_prints_one_json_object(arguments: list[str], fields: dict[str, object], code: int) -> None:
    done = cli("exec", "--json", *arguments)
    told = json.loads(done.stdout)
    seconds = told.pop("seconds")
    nothing = {"output": "", "exit_code": None, "timed_out": False, "failure_reason": "", "error": ""}
    assert (told, done.stderr, done.returncode) == ({**nothing, **fields}, "", code)
    assert list(told) == list(nothing) and seconds >= 0


def test_exec_prints_a_syntax_error_as_json() -> None:
    assert "syntax error" in json.loads(cli("exec", "--json", "if true; then").stdout)["error"]


# doctor


def doctor(code: int = 0, **environment: str) -> dict[str, dict[str, Any]]:
    """Return the findings of a doctor that ends with this code and prints nothing else."""
    done = cli("doctor", "--json", **environment)
    data = json.loads(done.stdout)
    assert (data["ok"], done.returncode, done.stderr) == (code == 0, code, "")
    return data["findings"]


def test_doctor_tells_programs(tmp_path: Path) -> None:
    """And finds no hook where the startup files set none."""
    found = doctor(HOME=str(tmp_path))
    names = {
        "swerex-c", "python", "core", "supervisor", "kernel", "bash", "terminals", "open files",
        "docker", "podman", "ssh", "bwrap", "kubectl", "original", "swap", "session", "completion",
        "msgpack-c",
    }  # fmt: skip
    assert names <= set(found)
    assert found["bash"]["value"][0].isdigit()
    assert found["swap"]["value"] == "off"
    assert found["msgpack-c"]["value"].split(".")[0].isdecimal()
    hooks = found["startup files"]
    assert hooks == {"value": "do not slow commands down", "good": True, "note": "", "needed": False}


def test_doctor_finds_that_the_kernel_does_not_tell(tmp_path: Path) -> None:
    found = doctor(LD_PRELOAD=build_preload(tmp_path))["completion"]
    assert (found["value"], found["good"]) == ("shown by the prompt only", False)
    assert "/proc/PID/syscall" in found["note"]


@pytest.mark.parametrize(
    "command, last",
    [("doctor", "Sessions can run."), ("status", "original: "), ("demo", "steps gave the expected result")],
)
def test_tables_fit_80_columns(command: str, last: str) -> None:
    """Except for long words, such as paths."""
    lines = cli(command).stdout.splitlines()
    assert last in lines[-1]
    assert not [line for line in lines if len(line) > 80 and len(line.split()[-1]) < 50]
    assert not [line for line in lines if line != line.rstrip() or "\u2026" in line]


@pytest.mark.parametrize(
    ("hook", "named"),
    [
        ("PROMPT_COMMAND=('sleep 0.01' x=1)", "PROMPT_COMMAND is 'sleep 0.01'; PROMPT_COMMAND is 'x=1'"),
        ("trap 'sleep 0.01' DEBUG", "trap -- 'sleep 0.01' DEBUG"),
    ],
)
def test_doctor_names_what_startup_files_add_to_each_command(hook: str, named: str, tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text(f"{hook}\n")
    found = doctor(HOME=str(tmp_path))["startup files"]
    assert found["good"] is False and found["note"].startswith(f"{named}: unset PROMPT_COMMAND in a file")
    assert float(re.fullmatch(r"add (\d+\.\d) ms to each command", found["value"])[1]) >= 5  # type: ignore[index]


def test_doctor_finds_that_bash_is_missing(tmp_path: Path) -> None:
    found = doctor(1, PATH=str(tmp_path))
    assert found["bash"] == {"value": "not found", "good": False, "note": "Install bash", "needed": True}
    assert found["session"]["good"] is False


def test_doctor_tells_of_programs_that_reach_other_places(tmp_path: Path) -> None:
    programs = {
        "bash": "echo 4.3.48",
        "docker": 'case $1 in --version) echo Docker 1;; *) echo "Is the daemon\nrunning?" >&2; exit 1;; esac',
        "ssh": "echo OpenSSH 9 >&2",
        "podman": "exit 3",
    }
    for name, text in programs.items():
        write_script(tmp_path / name, text)
    found = doctor(1, PATH=str(tmp_path))
    told = {name: (found[name]["value"], found[name]["good"], found[name]["note"]) for name in (*programs, "kubectl")}
    assert told == {
        "bash": ("4.3.48", False, f"{tmp_path}/bash: 4.4 or later is needed"),
        "docker": ("Docker 1", False, "Is the daemon running?"),
        "ssh": ("OpenSSH 9", None, f"{tmp_path}/ssh"),
        "podman": ("does not answer", None, f"{tmp_path}/podman"),
        "kubectl": ("not found", None, "required by KubectlBackend"),
    }


def test_doctor_shows_the_swap() -> None:
    done = cli("run", "--", *COMMAND, "doctor", "--json")
    swap = json.loads(done.stdout)["findings"]["swap"]
    assert (swap["value"], swap["note"]) == ("on", "swerex-c run")


def test_exec_says_that_its_input_cannot_be_read(tmp_path: Path) -> None:
    command = [*COMMAND, "exec", "--stdin", "--deployment", '{"type": "local"}', "cat"]
    with open(tmp_path / "file", "wb") as file:
        done = ran(*command, stdin=file, env=our_environment())
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be uploaded" in done.stderr and "Traceback" not in done.stderr


# prune


def test_prune_says_why_it_cannot(tmp_path: Path) -> None:
    done = cli("prune", "--container-runtime", "podman", PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("swerex-c: The command 'podman' cannot be run (No such file or directory)")
    done = cli("prune", "--container-runtime", "none")
    assert done.returncode == 2 and "'docker'" in done.stderr and "'podman'" in done.stderr


@pytest.mark.parametrize("cloud", ["kubernetes", "modal", "daytona"])
def test_prune_says_what_a_cloud_needs(cloud: str, tmp_path: Path) -> None:
    """Whether its library is here or not: there is no account and no cluster in this environment."""
    bare = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": our_environment()["PYTHONPATH"]}
    done = ran(*COMMAND, "prune", "--cloud", cloud, env=bare)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("swerex-c: ") and "Traceback" not in done.stderr
    assert re.search("pip install|kubeconfig|refuses the", done.stderr)


# Standard streams that are closed or full


@pytest.mark.parametrize(
    "arguments",
    [
        "exec 'echo hi'", "exec --json true", "status", "status --json", "-V", "--help", "bench --help", "doctor",
        "doctor --json", "demo", "serve --help", "serve --port 0", "remote --version", "remote --help",
    ],
)  # fmt: skip
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("output, why", [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")])
def test_output_that_cannot_be_written(arguments: str, unbuffered: str, output: str, why: str) -> None:
    """Also the key that a server makes: nobody would know it."""
    program, module = "swerex-c serve" if arguments.startswith("serve") else "swerex-c", f"swerex_c {arguments}"
    if arguments.startswith("remote"):
        program, module = "swerex-remote", f"swerex_c.server {arguments.removeprefix('remote')}"
    environment = {**our_environment(), "PYTHONUNBUFFERED": unbuffered}
    command = f"{sys.executable} -m {module} {output}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment)
    said = re.sub(r"(?m)^.* Listening on .*\n", "", done.stderr)
    assert (done.stdout, said, done.returncode) == ("", f"{program}: the output cannot be written: {why}\n", 1)


@pytest.mark.parametrize(
    "script, said, code",
    [
        ("swerex-c exec true >&-", "", 0),
        ("swerex-c exec 'cat; echo hi' <&-", "hi\n", 0),
        ("swerex-c exec 'exit 3' 2>&-", "", 3),
        ("swerex-c exec -f /no/such/file 2>&-", "", 127),
        ("swerex-c exec yes | head -1", "y\n", 141),
        ("seq 3 >lines; { read x; swerex-c exec cat; } <lines", "2\n3\n", 0),
    ],
)
def test_streams_that_are_closed_or_half_read(script: str, said: str, code: int, tmp_path: Path) -> None:
    script = f'set -o pipefail; swerex-c() {{ {sys.executable} -m swerex_c "$@"; }}; {script}'
    assert results(ran("bash", "-c", script, env=our_environment(), cwd=tmp_path)) == (said, "", code)


def test_a_write_that_is_short() -> None:
    """One without a buffer is, if the reader leaves while it waits for room in the pipe."""
    ours, theirs = os.pipe()
    script = "from swerex_c.cli.sessions import print_piece; print_piece('x' * 200000)"
    command = [sys.executable, "-u", "-c", script]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=our_environment()) as process:
        os.close(theirs)
        room = fcntl.fcntl(ours, fcntl.F_GETPIPE_SZ)
        until(lambda: array.array("i", fcntl.ioctl(ours, termios.FIONREAD, bytes(4)))[0] == room)
        os.close(ours)
        assert process.stderr is not None
        assert b"BrokenPipeError" in process.stderr.read()
        assert process.wait(10) == 1

"""Run SWE-agent itself on SWE-ReX and on this package, with a script instead of the model.

    git clone https://github.com/SWE-agent/SWE-agent
    python3.11 -m venv agent && agent/bin/pip install -e ./SWE-agent flake8      # also installs SWE-ReX
    python -m benchmarks.swe_agent --python agent/bin/python
    python -m benchmarks.swe_agent --python agent/bin/python --targets local --rounds 1

SWE-agent is not changed, and SWE-ReX stays installed: `swerex-c run` runs the same command on this package. The script
has tool bundles, a syntax error, a command that takes too long, here-documents, an edit that is linted, a program with
output, and the submission. Each run must submit the same patch, and each step must have the same answer with both
packages. The program then prints the times of whole runs, which were made in rounds of random order. They include the
8 seconds of the command that takes too long.

The program needs root, Linux and, for containers, the programs that tests/support needs. It uses a copy of the file
system, which is discarded, and a network of its own: SWE-agent in local mode writes into /root and /, and the Docker
engine has a bridge. That network leads nowhere, so the packages of the image have to be fetched before, by `python -m
benchmarks --only docker-true --no-record`.

The exit status is 0; 1 if an answer of this package was wrong; 2 if the program could not run.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import random
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swerex_c.bench.machine import first_line, machine

ROOT = Path(__file__).resolve().parents[1]
INSIDE = "SWX_SWE_AGENT_INSIDE"
REPOSITORY = "swx-agent-repository"
TOO_LONG = 8
RUN_SECONDS = 300
IMAGE = "swx-bench/swe-agent"
TARGETS = ("local", "container", "container-server")

START = """\
import sys
report = sys.argv.pop(1)
from sweagent.run.run import main
try:
    main()
finally:
    import swerex
    open(report, "w").write(swerex.__file__)
"""

# A fresh view of the file system: what is written outside of /tmp goes to memory and is gone with the process.
FRESH = """\
set -e
view=$1; shift
mount -t tmpfs none "$view"
mkdir "$view/upper" "$view/work" "$view/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$view/upper,workdir=$view/work" "$view/root"
for directory in /proc /sys /dev /tmp; do mount --rbind "$directory" "$view/root$directory"; done
mkdir -p "$view/root/root"
rm -rf "$view/root/root/tools"
: >"$view/root/root/.bashrc"
exec chroot "$view/root" /bin/bash -c 'cd "$1"; shift; exec "$@"' - "$PWD" "$@"
"""

CONFIG = """\
agent:
  templates:
    system_template: You are a script.
    instance_template: "{{problem_statement}}"
    next_step_template: "{{observation}}"
    next_step_no_output_template: Nothing was printed.
  tools:
    execution_timeout: TOO_LONG
    env_variables: {WINDOW: 20, OVERLAP: 2, PAGER: cat, GIT_PAGER: cat}
    bundles:
      - path: tools/registry
      - path: tools/windowed
      - path: tools/search
      - path: tools/windowed_edit_linting
      - path: tools/edit_anthropic
      - path: tools/diff_state
      - path: tools/submit
    parse_function: {type: thought_action}
"""

FILES = {
    ".gitignore": "__pycache__/\n",
    "package/__init__.py": "",
    "package/division.py": "def divide(a, b):\n    return a * b\n",
    "package/long.py": "".join(f"value_{number} = {number}\n" for number in range(200)),
    "test_division.py": "from package.division import divide\n\nassert divide(123, 15) == 8.2\nprint('passed')\n",
    "notes.md": "# Notes\n\nThe *division* is wrong.\n",
}

STEPS = [
    "ls -F",
    "pwd && git log --oneline | cat",
    "find_file division.py",
    'search_dir "def divide"',
    "open package/division.py",
    "python test_division.py 2>&1 | tail -1",
    "for i in 1 2 3; do echo $i",
    "for i in 1 2 3; do echo $i; done",
    "cat > reproduce.py << 'EOF'\nfrom package.division import divide\n\n# it's a \"quoted\" here-document\n"
    "for b in (1, 2, 4):\n    print(f'{b}: {divide(8, b)}')\nEOF",
    "python reproduce.py",
    "edit 2:2\n    return a /* b\nend_of_edit",
    "edit 2:2\n    return a / b\nend_of_edit",
    "python reproduce.py && python test_division.py",
    "echo before; sleep 100",
    "echo after",
    "goto 1",
    f"str_replace_editor view /{REPOSITORY}/notes.md",
    f"str_replace_editor str_replace /{REPOSITORY}/notes.md --old_str 'is wrong' --new_str 'was wrong; see `divide`'",
    "open package/long.py 100",
    "scroll_down",
    "cat package/long.py",
    "export GREETING='hällo' && cd package && echo \"$GREETING from $(basename $PWD)\"",
    'echo "$GREETING"; cd ..',
    "no_such_command; ls /no/such/directory",
    "cat << EOF | python -\nimport os\nprint('nested', os.path.basename('$PWD'))\nEOF",
    "seq 1 3000 | tail -2; printf 'no newline'",
    "rm reproduce.py && git status --short",
    "git diff",
    "submit",
]
"""Actions of the script. The seventh has a syntax error, and the eighth is the model's second attempt."""

WRONG_IN_ORIGINAL = {
    "cat << EOF | python -": "it cuts the here-document off a pipeline, and the command never ends",
}
"""Beginnings of the steps to which the original's answer is wrong, with the reason."""


@dataclass
class Outcome:
    """Result of one run."""

    patch: str
    steps: list[dict[str, Any]]
    seconds: float


def main() -> int:
    arguments = parse()
    if INSIDE not in os.environ:
        if os.geteuid() != 0:
            print("this needs root: a network and mounts of its own", file=sys.stderr)
            return 2
        os.environ[INSIDE] = "1"
        command = [sys.executable, "-m", "benchmarks.swe_agent", *sys.argv[1:]]
        os.execvp("unshare", ["unshare", "--net", "--mount", "--propagation", "private", *command])
    bring_up_loopback()
    try:
        with contextlib.ExitStack() as stack:
            return compare(arguments, stack)
    except (OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", required=True, help="the interpreter that SWE-agent is installed for")
    parser.add_argument("--targets", default="local,container", help=f"{', '.join(TARGETS)} (the last for ours only)")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if unknown := set(arguments.targets.split(",")) - set(TARGETS):
        parser.error(f"--targets knows {', '.join(TARGETS)}, not {', '.join(unknown)}")
    return arguments


def bring_up_loopback() -> None:
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as any_socket:
        request = struct.pack("16sh22x", b"lo", 0x1 | 0x40)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS


def compare(arguments: argparse.Namespace, stack: contextlib.ExitStack) -> int:
    python = Path(os.path.abspath(arguments.python))
    probe = "import sweagent, swerex; print(sweagent.REPO_ROOT)"
    done = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{python} cannot import sweagent and swerex: {done.stderr.strip()[-300:]}")
    agent = Path(done.stdout.split()[-1])
    targets = [target for target in arguments.targets.split(",") if target]
    here = stack.enter_context(tempfile.TemporaryDirectory(prefix="swx-swe-agent-", ignore_cleanup_errors=True))
    bench = Bench(python, agent, Path(here))
    if any(target.startswith("container") for target in targets):
        bench.start_engine(stack)
    runs = {
        (target, package): list[Outcome]()
        for target in targets
        for package in ("original", "ours")
        if (target, package) != ("container-server", "original")
    }
    for number in range(arguments.rounds):
        for target, package in random.sample(list(runs), len(runs)):
            outcome = bench.run(target, package, number)
            runs[target, package].append(outcome)
            print(f"{target:18} {package:9} {outcome.seconds:7.2f} s, {len(outcome.steps)} steps", flush=True)
    about, commit = machine(), first_line("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    print(f"\n{about['date']}, {about['cpu']}, {about['processors']} processors, {about['kernel']}, {commit}\n")
    for (target, package), each in runs.items():
        print(f"{target:18} {package:9} {statistics.median(run.seconds for run in each):8.2f} s")
    print()
    wrong = check(runs)
    for begin, why in WRONG_IN_ORIGINAL.items():
        print(f"Not compared: {begin!r}, in which the original is wrong: {why}.")
    print("\n".join(wrong) or "Every run submitted the same patch, and every other step was answered alike.")
    return 1 if wrong else 0


class Bench:
    """A repository and a script, and the runs of SWE-agent with them."""

    def __init__(self, python: Path, agent: Path, here: Path) -> None:
        self.python, self.agent, self.here = python, agent, here
        self.repository = here / REPOSITORY
        self.config, self.script = here / "config.yaml", here / "script.jsonl"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SWE_AGENT_", "GIT_"))},
            **{"HOME": "/root", "PATH": f"{python.parent}:{os.environ['PATH']}", "TERM": "dumb", "PIP_NO_INDEX": "1"},
            **{"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONPATH": ""},
        }
        self.config.write_text(CONFIG.replace("TOO_LONG", str(TOO_LONG)))
        actions = [{"message": f"Step {number}.\n```\n{action}\n```"} for number, action in enumerate(STEPS)]
        self.script.write_text(json.dumps({"script": actions}) + "\n")
        for name, text in FILES.items():
            path = self.repository / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        author = {f"GIT_{role}_{what}": "t" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        dates = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "2024-01-01T00:00:00 +0000")
        for words in ("init -q -b main", "add -A", "commit -q -m begin"):
            environment = {**self.environment, **author, **dates}
            subprocess.run(["git", *words.split()], cwd=self.repository, env=environment, check=True)

    def start_engine(self, stack: contextlib.ExitStack) -> None:
        """Start an engine of the tests, and build an image with SWE-ReX's server, git and flake8."""
        from tests.support import docker_engine, images, needs

        try:
            docker = stack.enter_context(docker_engine.Engine(network=True))
            base = images.provide(docker.docker, "debian-rex")
        except needs.Lacking as lack:
            raise RuntimeError(f"this machine lacks {lack}") from None
        context = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swx-swe-agent-image-")))
        where = subprocess.run(
            [self.python, "-c", "import flake8; print(flake8.__file__)"], capture_output=True, text=True, check=False
        ).stdout
        if not where:
            raise RuntimeError(f"{self.python} has no flake8")
        for pattern in ("flake8*", "pycodestyle*", "pyflakes*", "mccabe*"):
            for path in Path(where.strip()).parent.parent.glob(pattern):
                target = context / "packages" / path.name
                shutil.copytree(path, target) if path.is_dir() else shutil.copy2(path, target)
        (context / "flake8").write_text(
            "#!/usr/bin/python3\nfrom flake8.main.cli import main\nraise SystemExit(main())\n"
        )
        (context / "flake8").chmod(0o755)
        (context / "Dockerfile").write_text(
            f"FROM {base}\nCOPY packages /usr/local/lib/python3.11/dist-packages\nCOPY flake8 /usr/local/bin/\n"
            "RUN ln -sf python3 /usr/bin/python\nENV PIP_NO_INDEX=1 PIP_BREAK_SYSTEM_PACKAGES=1\n"
        )
        docker.docker("build", "-q", "--pull=false", "--network", "none", "-t", IMAGE, str(context))
        self.environment.update(
            {name: value for name, value in docker.environment.items() if name.startswith("DOCKER_")}
        )

    def run(self, target: str, package: str, number: int) -> Outcome:
        output = self.here / f"{target}-{package}-{number}"
        output.mkdir()
        used, view = output / "used", output / "view"
        view.mkdir()
        command = ["-c", START, str(used), "run", f"--config={self.config}", "--agent.model.name=replay"]
        command += [f"--agent.model.replay_path={self.script}", f"--env.repo.path={self.repository}"]
        command += ["--problem_statement.text=division", "--problem_statement.id=script", f"--output_dir={output}"]
        if target == "local":
            command += ["--env.deployment.type=local"]
        else:
            command += ["--env.deployment.type=docker", f"--env.deployment.image={IMAGE}"]
            command += ["--env.deployment.pull=never"]
        if target == "container-server":
            command += ["--env.deployment.server=True"]
        whole = [str(self.python), *command]
        if package == "ours":
            whole = [sys.executable, "-m", "swerex_c", "run", "--", *whole]
        environment = self.environment | ({"PYTHONPATH": str(ROOT)} if package == "ours" else {})
        fresh = ["unshare", "--mount", "--propagation", "private", "bash", "-c", FRESH, "fresh", str(view)]
        begin = time.perf_counter()
        with open(output / "log", "wb") as log:
            try:
                done = subprocess.run(
                    [*fresh, *whole], env=environment, cwd=self.agent, stdout=log, stderr=log, timeout=RUN_SECONDS
                )
            except subprocess.TimeoutExpired:
                raise RuntimeError(
                    f"{target}, {package}: not at its end after {RUN_SECONDS} s\n{tail(output)}"
                ) from None
        seconds = time.perf_counter() - begin
        try:
            imported = used.read_text()
            trajectory = json.loads((output / "script" / "script.traj").read_text())
        except OSError as error:
            raise RuntimeError(f"{target}, {package}: ended with {done.returncode}: {error}\n{tail(output)}") from None
        if ("swerex_c" in imported) != (package == "ours"):
            raise RuntimeError(f"{target}, {package}: ran with {imported}")
        steps = [{name: step[name] for name in ("action", "observation", "state")} for step in trajectory["trajectory"]]
        return Outcome(trajectory["info"].get("submission") or "", steps, seconds)


def tail(output: Path) -> str:
    return (output / "log").read_text(errors="replace")[-3000:]


def check(runs: dict[tuple[str, str], list[Outcome]]) -> list[str]:
    """Return a line for each wrong patch, missing step and different answer."""
    wrong = []
    patches = {run.patch for each in runs.values() for run in each}
    if len(patches) != 1 or "return a / b" not in patches.pop():
        wrong.append("WRONG: the patches differ, or have no fix")
    for (target, package), each in runs.items():
        reference = (runs.get((target, "original")) or runs.get(("container", "original")) or each)[0]
        for number, run in enumerate(each):
            if len(run.steps) != len(STEPS):
                wrong.append(f"WRONG: {target}, {package}, round {number}: {len(run.steps)} steps, not {len(STEPS)}")
            for theirs, own in zip(reference.steps, run.steps, strict=False):
                if any(own["action"].startswith(begin) for begin in WRONG_IN_ORIGINAL):
                    continue
                for name in own:
                    if theirs[name] != own[name]:
                        both = f"{str(theirs[name])[:300]!r}\n  {str(own[name])[:300]!r}"
                        wrong.append(f"DIFFERS: {target}, {package}, {name} of {own['action'][:60]!r}:\n  {both}")
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())

"""One run of SWE-agent itself, with a script in the place of the model, on the original and on ours.

    git clone https://github.com/SWE-agent/SWE-agent
    python3.11 -m venv agent && agent/bin/pip install -e ./SWE-agent flake8      # this brings the original, too
    python -m benchmarks.swe_agent --python agent/bin/python
    python -m benchmarks.swe_agent --python agent/bin/python --places local --rounds 1

SWE-agent is not changed, and the original stays installed: ours is what `swerex-c run` makes of the same command.  The
script has what a day has: tool bundles, a syntax error, a command that takes too long, here-documents, an edit that is
linted, a program with output, the submission.  Each run must submit the same patch, and each step must be answered
alike in the same place.  Then come the times of whole runs, made in rounds of changing order.  The command that takes
too long has its 8 seconds in them.

Needs root, Linux and, for containers, what tests/support needs.  All of it happens on a copy of the file system that is
thrown away, and in a network of its own: SWE-agent in local mode writes into /root and /, and the engine has a bridge.
The packages of the image have to be there before, since that network leads nowhere: `python -m benchmarks --only
docker-true --no-record` fetches them.

Exit status: 0; 1 if an answer of ours was wrong; 2 if it could not run.
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
PLACES = ("local", "container", "container-server")

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
"""Every one is an action; the seventh has a syntax error and the eighth is the model's second try at it."""

WRONG_IN_ORIGINAL = {
    "cat << EOF | python -": "it cuts the here-document off a pipeline, and the command never ends",
}
"""How steps begin that the original does not answer rightly, and why."""


@dataclass
class Outcome:
    """What one run did."""

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
    parser.add_argument("--places", default="local,container", help=f"{', '.join(PLACES)} (the last for ours only)")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if unknown := set(arguments.places.split(",")) - set(PLACES):
        parser.error(f"--places knows {', '.join(PLACES)}, not {', '.join(unknown)}")
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
    places = [place for place in arguments.places.split(",") if place]
    here = stack.enter_context(tempfile.TemporaryDirectory(prefix="swx-swe-agent-", ignore_cleanup_errors=True))
    bench = Bench(python, agent, Path(here))
    if any(place.startswith("container") for place in places):
        bench.start_engine(stack)
    runs = {
        (place, who): list[Outcome]()
        for place in places
        for who in ("original", "ours")
        if (place, who) != ("container-server", "original")
    }
    for number in range(arguments.rounds):
        for place, who in random.sample(list(runs), len(runs)):
            outcome = bench.run(place, who, number)
            runs[place, who].append(outcome)
            print(f"{place:18} {who:9} {outcome.seconds:7.2f} s, {len(outcome.steps)} steps", flush=True)
    about, commit = machine(), first_line("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    print(f"\n{about['date']}, {about['cpu']}, {about['processors']} processors, {about['kernel']}, {commit}\n")
    for (place, who), each in runs.items():
        print(f"{place:18} {who:9} {statistics.median(run.seconds for run in each):8.2f} s")
    print()
    wrong = check(runs)
    for begin, why in WRONG_IN_ORIGINAL.items():
        print(f"Not compared: {begin!r}, in which the original is wrong: {why}.")
    print("\n".join(wrong) or "Every run submitted the same patch, and every other step was answered alike.")
    return 1 if wrong else 0


class Bench:
    """A repository, a script, and a way to run SWE-agent with them."""

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
        author = {f"GIT_{who}_{what}": "t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        dates = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "2024-01-01T00:00:00 +0000")
        for words in ("init -q -b main", "add -A", "commit -q -m begin"):
            environment = {**self.environment, **author, **dates}
            subprocess.run(["git", *words.split()], cwd=self.repository, env=environment, check=True)

    def start_engine(self, stack: contextlib.ExitStack) -> None:
        """An engine of the tests, with an image that has the original's server, git and flake8."""
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

    def run(self, place: str, who: str, number: int) -> Outcome:
        output = self.here / f"{place}-{who}-{number}"
        output.mkdir()
        used, view = output / "used", output / "view"
        view.mkdir()
        command = ["-c", START, str(used), "run", f"--config={self.config}", "--agent.model.name=replay"]
        command += [f"--agent.model.replay_path={self.script}", f"--env.repo.path={self.repository}"]
        command += ["--problem_statement.text=division", "--problem_statement.id=script", f"--output_dir={output}"]
        if place == "local":
            command += ["--env.deployment.type=local"]
        else:
            command += ["--env.deployment.type=docker", f"--env.deployment.image={IMAGE}"]
            command += ["--env.deployment.pull=never"]
        if place == "container-server":
            command += ["--env.deployment.server=True"]
        whole = [str(self.python), *command]
        if who == "ours":
            whole = [sys.executable, "-m", "swerex_c", "run", "--", *whole]
        environment = self.environment | ({"PYTHONPATH": str(ROOT)} if who == "ours" else {})
        fresh = ["unshare", "--mount", "--propagation", "private", "bash", "-c", FRESH, "fresh", str(view)]
        begin = time.perf_counter()
        with open(output / "log", "wb") as log:
            try:
                done = subprocess.run(
                    [*fresh, *whole], env=environment, cwd=self.agent, stdout=log, stderr=log, timeout=RUN_SECONDS
                )
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"{place}, {who}: not at its end after {RUN_SECONDS} s\n{tail(output)}") from None
        seconds = time.perf_counter() - begin
        try:
            package = used.read_text()
            trajectory = json.loads((output / "script" / "script.traj").read_text())
        except OSError as error:
            raise RuntimeError(f"{place}, {who}: ended with {done.returncode}: {error}\n{tail(output)}") from None
        if ("swerex_c" in package) != (who == "ours"):
            raise RuntimeError(f"{place}, {who}: ran with {package}")
        steps = [{name: step[name] for name in ("action", "observation", "state")} for step in trajectory["trajectory"]]
        return Outcome(trajectory["info"].get("submission") or "", steps, seconds)


def tail(output: Path) -> str:
    return (output / "log").read_text(errors="replace")[-3000:]


def check(runs: dict[tuple[str, str], list[Outcome]]) -> list[str]:
    """What is not as it must be."""
    wrong = []
    patches = {run.patch for each in runs.values() for run in each}
    if len(patches) != 1 or "return a / b" not in patches.pop():
        wrong.append("WRONG: the patches differ, or have no fix")
    for (place, who), each in runs.items():
        reference = (runs.get((place, "original")) or runs.get(("container", "original")) or each)[0]
        for number, run in enumerate(each):
            if len(run.steps) != len(STEPS):
                wrong.append(f"WRONG: {place}, {who}, round {number}: {len(run.steps)} steps, not {len(STEPS)}")
            for theirs, own in zip(reference.steps, run.steps, strict=False):
                if any(own["action"].startswith(begin) for begin in WRONG_IN_ORIGINAL):
                    continue
                for name in own:
                    if theirs[name] != own[name]:
                        both = f"{str(theirs[name])[:300]!r}\n  {str(own[name])[:300]!r}"
                        wrong.append(f"DIFFERS: {place}, {who}, {name} of {own['action'][:60]!r}:\n  {both}")
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())

"""Run the steps of a plan, two at a time, and tell what came of them.

    python3 .ci/steps.py gate [NAME...]     the steps of `plan.GATE`: they decide whether a change is merged
    python3 .ci/steps.py full [NAME...]     those of `plan.FULL`, which never do

A step is judged by its exit status and by the file of results that tests/support/results.py writes, never by text that
it prints. A test that failed runs once more, alone, when all steps have ended: if it passes then, it is FLAKY, which is
reported and not fatal. Logs, results and the report are in build/ci/.
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import plan

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "ci"
TAIL = 30  # lines of a failure that are shown
RERUNS = 10  # with more failures than this, no test is run again
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass
class Failure:
    """A test, or a whole step, that failed."""

    id: str
    step: plan.Step
    kind: str  # assertion, answer, timeout or crash
    lines: list[str]
    verdict: str = "FAILED"


@dataclass
class Result:
    """State of a step, and the results of its tests."""

    step: plan.Step
    state: str = "WAITING"  # -> RUNNING -> OK, FAILED, TIMEOUT; or NOT RUN
    seconds: float = 0.0
    tests: list[dict] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def count(self, outcome: str) -> int:
        return sum(test["outcome"] == outcome for test in self.tests)


def descendants(pid: int) -> list[int]:
    """Return the children of a process and theirs, the nearest first."""
    found = [pid]
    for parent in found:
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, path.read_text().split())
            except OSError:
                continue
    return found[1:]


def supervise(limit: float, command: str) -> int:
    """Run a command, then end everything that it left, daemons included, and nothing else.

    Args:
        limit: seconds for the command.
        command: a script for bash.

    Returns:
        The exit status of the command, 128 and the number of the signal that ended it, or 124 at the limit.
    """
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)  # a run that is killed takes its steps along
    # What starts the gate in the background may ignore SIGINT, and Python ignores SIGPIPE.
    names = "SIGINT SIGQUIT SIGPIPE SIGXFSZ SIGHUP SIGTERM SIGCHLD"
    default = [signal.Signals[name] for name in names.split()]
    child = os.posix_spawnp(
        "bash", ["bash", "-euo", "pipefail", "-c", command], os.environ, setsigdef=default, setsigmask=[]
    )

    def ended(number: int, _frame: object) -> None:
        raise TimeoutError(number)

    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, ended)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        pid, status = 0, 0
        while pid != child:  # orphans are reaped too: tests wait until what they ended is gone
            pid, status = os.waitpid(-1, 0)
        status = os.waitstatus_to_exitcode(status)
    except TimeoutError as reason:
        status = 124 if reason.args[0] == signal.SIGALRM else 143
        for pid in descendants(os.getpid()):  # faulthandler says where a Python is
            signal_process(pid, signal.SIGABRT)
        time.sleep(1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    while left := descendants(os.getpid()):
        for pid in left:
            signal_process(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        time.sleep(0.01)
    return status if status >= 0 else 128 - status


def signal_process(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def tail(path: Path) -> list[str]:
    """Return the end of a log, or the top of the stack that faulthandler has written there."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    lines = [line[:400] for line in lines if line.strip()]
    stacks = [number for number, line in enumerate(lines) if line.startswith("Current thread 0x")]
    return lines[stacks[-1] :][:TAIL] if stacks else lines[-TAIL:]


def environment(step: plan.Step, name: str) -> dict[str, str]:
    """Return the environment of a step: a home of its own, and quiet tools."""
    home = WORK / "home" / step.name
    home.mkdir(parents=True, exist_ok=True)
    cache = os.environ.get("PIP_CACHE_DIR") or os.path.join(os.path.expanduser("~"), ".cache", "pip")
    return {
        **os.environ,
        "HOME": str(home),
        "OWNERS_HOME": os.environ.get("OWNERS_HOME") or os.path.expanduser("~"),
        "PIP_CACHE_DIR": cache,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # where it is set, each program of a test compiles all that it imports
        "PYTHONHASHSEED": "0",
        "PYTHONFAULTHANDLER": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "WORK": str(WORK),
        "CI_RESULTS": str(WORK / f"{name}.jsonl"),
        **step.environment,
    }


def start(step: plan.Step, command: str, limit: float, name: str) -> tuple[int, list[dict]]:
    """Run a command as the step would; return its exit status and the results of its tests."""
    log, results = WORK / f"{name}.log", WORK / f"{name}.jsonl"
    results.unlink(missing_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, __file__, "supervise", str(limit), command],
            cwd=ROOT,
            env=environment(step, name),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status = process.wait()
    tests = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    return status, tests


def judge(result: Result, status: int) -> None:
    """Set the state and the failures of a step from its exit status and its tests."""
    step, failed = result.step, [test for test in result.tests if test["outcome"] == "failed"]
    result.failures = [Failure(test["id"], step, test["kind"], test["lines"][-TAIL:]) for test in failed]
    lines = tail(WORK / f"{step.name}.log")
    if status == 124:
        result.state = "TIMEOUT"
        result.failures.append(Failure(step.name, step, "timeout", lines))
    elif status and not failed:
        result.failures.append(Failure(step.name, step, "crash" if status > 128 else "assertion", lines))
    elif not status and step.rerun and not result.tests:
        result.failures.append(Failure(step.name, step, "assertion", ["it collected no test", *lines]))
    if result.state != "TIMEOUT":
        result.state = "FAILED" if result.failures else "OK"


def run_steps(steps: list[plan.Step], seconds: float) -> list[Result]:
    """Run steps in two lanes, each as soon as what it needs is OK.

    Args:
        seconds: time for all steps; those that have not begun by then are NOT RUN.
    """
    results = {step.name: Result(step) for step in steps}
    changed, end = threading.Condition(), time.monotonic() + seconds

    def ready(result: Result) -> bool:
        busy = [other for other in results.values() if other.state == "RUNNING"]
        needs = [results[need].state for need in result.step.needs if need in results]
        if any(state not in ("OK", "RUNNING", "WAITING") for state in needs) or time.monotonic() > end:
            result.state = "NOT RUN"
            changed.notify_all()
            return False
        alone = result.step.alone or any(other.step.alone for other in busy)
        return all(state == "OK" for state in needs) and not (alone and busy)

    def lane() -> None:
        while True:
            with changed:
                waiting = [result for result in results.values() if result.state == "WAITING"]
                if not waiting:
                    return
                result = next((each for each in waiting if ready(each)), None)
                if result is None:
                    changed.wait(1)
                    continue
                result.state, begin = "RUNNING", time.monotonic()
            limit = min(result.step.limit, max(10.0, end - begin))
            print(f"== {result.step.name}", flush=True)
            status, result.tests = start(result.step, result.step.command, limit, result.step.name)
            with changed:
                judge(result, status)
                result.seconds = time.monotonic() - begin
                changed.notify_all()
            print(row(result), flush=True)

    lanes = [threading.Thread(target=lane) for _ in range(2)]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()
    return list(results.values())


def run_alone(results: list[Result], end: float) -> None:
    """Run failed tests again, one by one; what passes is FLAKY.

    What crashed stays FAILED, and so does everything where more than `RERUNS` failed.
    """
    failures = [failure for result in results for failure in result.failures]
    if len(failures) > RERUNS:
        return
    for number, failure in enumerate(failures):
        left = end - time.monotonic()
        if failure.kind == "crash" or left < 20:
            continue
        whole = failure.id == failure.step.name or not failure.step.rerun
        command = failure.step.command if whole else f"{failure.step.rerun} {shlex.quote(failure.id)}"
        print(f"== again, alone: {failure.id}", flush=True)
        status, tests = start(failure.step, command, min(failure.step.limit, left), f"again-{number}")
        passed = any(test["outcome"] == "passed" for test in tests)
        if status == 0 and (passed or whole):
            failure.verdict = "FLAKY"


def row(result: Result) -> str:
    counts = f"{result.count('passed'):5} passed {result.count('failed'):3} failed {result.count('skipped'):3} skipped"
    return f"{result.step.name:16} {result.state:8} {result.seconds:5.0f} s  {counts if result.tests else ''}".rstrip()


def summary(results: list[Result], seconds: float) -> tuple[list[str], int]:
    """Return the lines that tell everything, and the exit status: 0 if nothing failed and something passed."""
    tests = [test for result in results for test in result.tests]
    failures = [failure for result in results for failure in result.failures]
    lines = ["", *map(row, results)]
    slowest = sorted(tests, key=lambda test: -test["seconds"])[:10]
    lines += ["", "slowest tests:", *(f"  {test['seconds']:5.1f} s  {test['id']}" for test in slowest)] if tests else []
    skips: dict[str, int] = {}
    for test in tests:
        if test["outcome"] == "skipped":
            skips[test["lines"][-1]] = skips.get(test["lines"][-1], 0) + 1
    lines += ["", "skipped:", *(f"  {count} times: {why}" for why, count in skips.items())] if skips else []
    for title, chosen in (
        ("WRONG ANSWERS", [each for each in failures if each.kind == "answer"]),
        ("FLAKY: failed, then passed alone", [f for f in failures if f.kind != "answer" and f.verdict == "FLAKY"]),
        ("FAILED", [each for each in failures if each.kind != "answer" and each.verdict == "FAILED"]),
    ):
        for number, failure in enumerate(chosen):
            lines += ["", f"== {title}"] if number == 0 else [""]
            lines.append(f"{failure.verdict} ({failure.kind}) {failure.step.name}: {failure.id}")
            lines += [f"    {line}" for line in failure.lines]
    not_run = [result for result in results if result.state == "NOT RUN"]
    lines += [f"NOT RUN: {result.step.name}" for result in not_run]
    failed = sum(failure.verdict == "FAILED" for failure in failures) + len(not_run)
    passed = sum(result.count("passed") or (result.state == "OK") for result in results)
    flaky = sum(failure.verdict == "FLAKY" for failure in failures)
    lines += ["", f"{seconds:.0f} s in all, {flaky} flaky", f"{passed} passed, {failed} failed"]
    return lines, 0 if passed and not failed else 1


def main() -> int:
    if sys.argv[1] == "supervise":
        return supervise(float(sys.argv[2]), sys.argv[3])
    begin, which, names = time.monotonic(), sys.argv[1], sys.argv[2:]
    steps, seconds = (plan.GATE, plan.GATE_SECONDS) if which == "gate" else (plan.FULL, plan.FULL_SECONDS)
    if names:
        known = {step.name: step for step in steps}
        if unknown := sorted(set(names) - set(known)):
            print(f"there is no step {', '.join(unknown)}; there are {', '.join(sorted(known))}", file=sys.stderr)
            return 2
        for name in names:  # and what these need, and what that needs
            names += [need for need in known[name].needs if need not in names]
        steps = [step for step in steps if step.name in names]
    WORK.mkdir(parents=True, exist_ok=True)
    results = run_steps(steps, seconds - plan.RERUN_SECONDS)
    run_alone(results, begin + seconds)
    lines, status = summary(results, time.monotonic() - begin)
    (WORK / "report.md").write_text("\n".join([f"# {which} {' '.join(names)}", "```", *lines, "```", ""]))
    print("\n".join(lines), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())

"""Write the result of each test as a line of JSON to the file that `CI_RESULTS` names.

`.ci/steps.py` judges a step by this file. A line has `id`, `outcome` (passed, failed or skipped), `kind` of a failure
(assertion, answer, timeout or crash), `seconds`, and `lines`: the end of the traceback with the captured output, or the
reason of a skip.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict

import pytest

LINES = 30


class WrongAnswer(AssertionError):
    """A command's output or exit code is not its own: the worst defect, reported even if it happens once."""


class Results:
    """Collects the reports of each test's phases, and writes one line when the test has ended."""

    def __init__(self, path: str):
        self.file = open(path, "a", encoding="utf-8")
        self.reports: dict[str, list[pytest.TestReport]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports[report.nodeid].append(report)
        if report.when == "teardown" or report.when not in ("setup", "call"):  # a crashed worker's report has "???"
            self.write(report.nodeid, self.reports.pop(report.nodeid))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.line(report.nodeid or "collection", "failed", "assertion", 0.0, report.longreprtext.splitlines())

    def pytest_sessionfinish(self) -> None:
        self.file.close()

    def write(self, name: str, reports: list[pytest.TestReport]) -> None:
        seconds = sum(report.duration for report in reports)
        failed = next((report for report in reports if report.failed), None)
        if failed is not None:
            lines = failed.longreprtext.splitlines()
            for title, text in failed.sections:
                lines += [f"--- {title}", *text.splitlines()[-LINES // 3 :]]
            self.line(name, "failed", kind(failed), seconds, lines)
        elif skipped := next((report for report in reports if report.skipped), None):
            reason = skipped.longrepr[2] if isinstance(skipped.longrepr, tuple) else getattr(skipped, "wasxfail", "")
            self.line(name, "skipped", "", seconds, [str(reason)])
        else:
            self.line(name, "passed", "", seconds, [])

    def line(self, name: str, outcome: str, kind: str, seconds: float, lines: list[str]) -> None:
        if name.rfind("@") > name.rfind("]"):  # the group that pytest-xdist appends is no part of the id
            name = name.rpartition("@")[0]
        result = {"id": name, "outcome": outcome, "kind": kind, "seconds": round(seconds, 3)}
        shown = [line[:400] for line in lines][-2 * LINES :]
        self.file.write(json.dumps({**result, "lines": shown}) + "\n")
        self.file.flush()


def kind(report: pytest.TestReport) -> str:
    """Tell how a test failed, from the exception that its report names."""
    if report.when not in ("setup", "call", "teardown"):
        return "crash"
    crash = getattr(report.longrepr, "reprcrash", None)
    message = str(getattr(crash, "message", "")) or report.longreprtext
    if "WrongAnswer" in message.partition("\n")[0]:
        return "answer"
    return "timeout" if message.startswith("Failed: Timeout") else "assertion"


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get("CI_RESULTS")
    if path and not hasattr(config, "workerinput") and not os.environ.get("PYTEST_CURRENT_TEST"):
        config.pluginmanager.register(Results(path), "ci-results")

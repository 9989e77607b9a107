"""The random tester: its model alone, its minimiser, and the cases that are known to fail."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import SwerexException
from swerex_c.runtime.local import LocalRuntime
from tests.engine import random_model
from tests.engine.random_model import MAKERS, Model, Operation, Step, operations, plan
from tests.engine.random_tester import Finding, Refused, Run, Search

WANTED = argparse.Namespace(
    seed=1, seconds=60.0, sessions=1, server=False, closed=False, place="", only=None, tries=1, findings=1
)


def steps(history: list[Operation]) -> list[Step]:
    return plan(Model(), history, lambda _steps: False)


def test_a_seed_makes_one_history() -> None:
    first, second = (operations(random.Random("1 2"), 200) for _ in range(2))
    assert first == second
    assert steps(first) == steps(second)
    assert len(steps(first)) > 20
    assert first != operations(random.Random("1 3"), 200)


def test_every_operation_is_done_in_some_state() -> None:
    done = {each.name for number in range(60) for each in operations(random.Random(number), 40)}
    assert done == set(MAKERS)


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> list[Operation]:
    """A history with an operation whose answer the model does not know, if `v0` is set before it."""

    def lies(model: Model, _source: random.Random) -> Step:
        return Step('echo "${v0-}"', "\n")

    def sets(model: Model, _source: random.Random) -> Step | None:
        return random_model.compose(model, [random_model.Atom("v0=a")])

    monkeypatch.setitem(MAKERS, "lies", (lies, 1))
    monkeypatch.setitem(MAKERS, "sets", (sets, 1))
    names = ["here_documents", "sets", "runs_nothing", "aliases", "has_no_syntax", "lies", "here_documents"]
    return [Operation(name, seed) for seed, name in enumerate(names)]


async def test_a_wrong_answer_is_found_and_its_history_shortened(lying: list[Operation]) -> None:
    runtime = LocalRuntime()
    run = Run(runtime, "wrong")
    try:
        with pytest.raises(Finding, match="prints 'a.n'"):
            await run.replay(steps(lying))
        assert len(run.done) == 6
        short, found = await Search(WANTED, iter([]), 0).shortened(runtime, lying[:6])
    finally:
        await runtime.close()
    assert [step.command for step in short] == ["v0=a", 'echo "${v0-}"']
    assert "prints 'a" in str(found)


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (Step("echo a", "a\n", 1), Finding),
        (Step("echo a", "a\n", way="stream"), None),
        (Step("if", error="BashIncorrectSyntaxError"), None),
        (Step("if"), Refused),
        (Step(":", error="BashIncorrectSyntaxError"), Finding),
        (Step("echo a; exit 3", "a\n", 3, dies=True), None),
        (Step("echo a", "a\n", dies=True), Finding),
    ],
    ids=repr,
)
async def test_findings(step: Step, kind: type[Finding] | None) -> None:
    runtime = LocalRuntime()
    try:
        if kind is None:
            await Run(runtime, "one").replay([step])
        else:
            with pytest.raises(Finding) as caught:
                await Run(runtime, "one").replay([step])
            assert type(caught.value) is kind
    finally:
        await runtime.close()


async def test_what_cannot_be_tested_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any) -> None:
        raise SwerexException("no session")

    monkeypatch.setattr(LocalRuntime, "create_session", refuse)
    with pytest.raises(SwerexException, match="no session"):
        await Search(WANTED, iter([1]), 0).work_on()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", [[], ["--closed"], ["--place", "here"]], ids=" ".join)
def test_known_cases_fail(options: list[str]) -> None:
    """One that no longer fails is to be taken from the list."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.random_tester", "--known", *options],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr

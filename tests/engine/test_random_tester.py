"""The random tester: what it takes for wrong, and its minimiser."""

from __future__ import annotations

import argparse
import contextlib
import random

import pytest

from swerex_c.runtime.local import LocalRuntime
from tests.engine import random_model
from tests.engine.random_model import MAKERS, Model, Operation, Step, plan
from tests.engine.random_tester import Finding, Run, Search

WANTED = argparse.Namespace(seed=1, seconds=60.0, sessions=1, closed=False, place="")


def steps(history: list[Operation]) -> list[Step]:
    return plan(Model(), history, lambda _steps: False)


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
    ("step", "right"),
    [
        (Step("echo a", "a\n", 1), False), (Step("echo a", "a\n", way="stream"), True),
        (Step("if", error="BashIncorrectSyntaxError"), True), (Step("if"), False),
        (Step(":", error="BashIncorrectSyntaxError"), False), (Step("echo a; exit 3", "a\n", 3, dies=True), True),
        (Step("echo a", "a\n", dies=True), False),
    ],
    ids=repr,
)  # fmt: skip
async def test_findings(step: Step, right: bool) -> None:
    async with LocalRuntime() as runtime:
        with contextlib.nullcontext() if right else pytest.raises(Finding):
            await Run(runtime, "one").replay([step])

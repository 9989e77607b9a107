"""The random tester: what it takes for wrong, and its minimiser."""

from __future__ import annotations

import argparse
import contextlib

import pytest

from swerex_c.runtime.local import LocalRuntime
from tests.engine.random_model import MAKERS, Atom, Model, Operation, Step, compose, plan
from tests.engine.random_tester import Finding, Run, Search

WANTED = argparse.Namespace(seed=1, seconds=60.0, sessions=1, closed=False, place="")


async def test_a_wrong_answer_is_found_and_its_history_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model does not know the answer of an operation, if `v0` is set before it."""
    monkeypatch.setitem(MAKERS, "lies", (lambda model, source: Step('echo "${v0-}"', "\n"), 1))
    monkeypatch.setitem(MAKERS, "sets", (lambda model, source: compose(model, [Atom("v0=a")]), 1))
    names = ["here_documents", "sets", "runs_nothing", "aliases", "has_no_syntax", "lies", "here_documents"]
    history = [Operation(name, seed) for seed, name in enumerate(names)]
    async with LocalRuntime() as runtime:
        run = Run(runtime, "wrong")
        with pytest.raises(Finding, match="prints 'a.n'"):
            await run.replay(plan(Model(), history, lambda steps: False))
        assert len(run.done) == 6
        short, found = await Search(WANTED, iter([]), 0).shortened(runtime, history[:6])
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

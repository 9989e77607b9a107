"""The soak itself: it finds a wrong answer, shortens its history, and fails where it cannot test."""

from __future__ import annotations

import itertools
import time

import pytest

from swerex_c.exceptions import SwerexException
from swerex_c.runtime.local import LocalRuntime
from tests.soak import model
from tests.soak.__main__ import Run, Soak, Wrong, shortened

OPERATIONS = [model.Operation(name, seed) for seed, name in enumerate(["prints", "pipes", "lies", "aliases", "modes"])]


def _lies(_model: model.Model, _source: object) -> model.Step:
    return model.Step("echo a", "b\n")


async def test_a_wrong_answer_is_found_and_its_history_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model._MAKERS, "lies", (_lies, 1))
    runtime = LocalRuntime()
    try:
        with pytest.raises(Wrong, match="prints 'a.n', not 'b.n'") as caught:
            await Run(runtime, "wrong").replay(OPERATIONS)
        short, error = await shortened(runtime, OPERATIONS, caught.value, 1)
    finally:
        await runtime.close()
    assert [operation.name for operation in short] == ["lies"]
    assert "echo a" in str(error)


async def test_what_cannot_be_tested_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise SwerexException("no session")

    monkeypatch.setattr(LocalRuntime, "create_session", refuse)
    with pytest.raises(SwerexException, match="no session"):
        await Soak(1, time.monotonic() + 60, itertools.count(), None, 1).work_on(2)

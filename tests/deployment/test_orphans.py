"""Test how `prune` deletes orphans, and reports errors of a provider's library."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator

import pytest

from swerex_c.exceptions import DeploymentStartupError
from swerex_c.providers import orphans, ownership
from tests.support.wait import DEADLINE


@pytest.fixture
def dead() -> dict[str, str]:
    with subprocess.Popen(["true"]) as process:
        pass
    return ownership.labels("a", keep=False) | {"swerex_c.pid": str(process.pid)}


class Cloud:
    def __init__(self, **places: dict[str, str]) -> None:
        self.places = places
        self.ended: list[str] = []

    async def found(self) -> AsyncIterator[orphans.OwnedSandbox]:
        for name, facts in self.places.items():

            async def end(name: str = name) -> None:
                if name.startswith("stuck"):
                    raise KeyError(name)
                self.ended.append(name)

            yield orphans.OwnedSandbox(f"id-{name}", name, "a place", facts, end)

    def prune(self, dry_run: bool) -> list[orphans.OwnedSandbox]:
        return orphans.prune(self.found(), dry_run=dry_run, timeout=DEADLINE)


def test_what_is_left_is_ended_whatever_becomes_of_the_rest(dead: dict[str, str]) -> None:
    lives, elsewhere = ownership.labels("b", keep=False), dead | {"swerex_c.host": "another"}
    cloud = Cloud(lives=lives, stuck=dead, one=dead, elsewhere=elsewhere, two=dead)
    assert [it.name for it in cloud.prune(True)] == ["stuck", "one", "two"] and cloud.ended == []
    left = cloud.prune(False)
    assert cloud.ended == ["one", "two"]
    assert [(it.id, it.error) for it in left] == [("id-stuck", "'stuck'"), ("id-one", None), ("id-two", None)]
    assert {it.owner for it in left} == {f"process {dead['swerex_c.pid']}"}


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (KeyError("x"), DeploymentStartupError("'x'")),
        (TimeoutError("x"), TimeoutError("x")),
        (DeploymentStartupError("x"), DeploymentStartupError("x")),
    ],
)
def test_errors_of_a_library_become_ours_and_others_stay(raised: Exception, told: Exception) -> None:
    async def found() -> AsyncIterator[orphans.OwnedSandbox]:
        raise raised
        yield

    with pytest.raises(type(told)) as caught:
        orphans.prune(found(), dry_run=True, timeout=DEADLINE)
    assert str(caught.value) == str(told)
    assert (caught.value.__cause__ is raised) is isinstance(raised, KeyError)

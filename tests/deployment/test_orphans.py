"""What dead processes left is ended alike in every cloud, and what a library raises on the way is told alike."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator

import pytest

from swerex_c.exceptions import DeploymentStartupError
from swerex_c.providers import orphans, ownership


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

    def sweep(self, dry_run: bool) -> list[ownership.Orphan]:
        work = orphans.sweep(self.found(), dry_run=dry_run, sentence=lambda error: f"It says: {error}")
        return orphans.ask(work, 10, lambda error: None)


def test_what_is_left_is_ended_whatever_becomes_of_the_rest(dead: dict[str, str]) -> None:
    lives, elsewhere = ownership.labels("b", keep=False), dead | {"swerex_c.host": "another"}
    cloud = Cloud(lives=lives, stuck=dead, one=dead, elsewhere=elsewhere, two=dead)
    assert [it.name for it in cloud.sweep(True)] == ["stuck", "one", "two"] and cloud.ended == []
    left = cloud.sweep(False)
    assert cloud.ended == ["one", "two"]
    assert [(it.id, it.error) for it in left] == [("id-stuck", "It says: 'stuck'"), ("id-one", None), ("id-two", None)]
    assert {it.owner for it in left} == {f"process {dead['swerex_c.pid']}"}


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (KeyError("x"), DeploymentStartupError),
        (TimeoutError("x"), TimeoutError),
        (DeploymentStartupError("x"), DeploymentStartupError),
        (ZeroDivisionError("x"), ZeroDivisionError),
    ],
)
def test_errors_of_a_library_become_ours_and_others_stay(raised: Exception, told: type[Exception]) -> None:
    async def work() -> list[ownership.Orphan]:
        raise raised

    def failure(error: Exception) -> DeploymentStartupError | None:
        return DeploymentStartupError(f"The cloud says: {error}") if isinstance(error, KeyError) else None

    with pytest.raises(told, match="x") as caught:
        orphans.ask(work(), 10, failure)
    ours = isinstance(raised, KeyError)
    assert type(caught.value) is told
    assert (caught.value.__cause__ is raised) is ours

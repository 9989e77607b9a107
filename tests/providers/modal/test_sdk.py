"""Images, and what dead processes leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("modal")

import modal

from swerex_c.deployment.modal import ModalDeployment, _ImageBuilder, find_owned
from swerex_c.exceptions import DeploymentStartupError, SwerexException
from swerex_c.providers import orphans
from swerex_c.providers.modal.tags import new_tags
from tests.support.modal_fixtures import ModalWorld, modal_world, world
from tests.support.original import run_python

__all__ = ["modal_world", "world"]

ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/a:1"


# Images


def built(world: ModalWorld, image: Any) -> dict[str, Any]:
    """What Modal is asked to build."""
    world.begin()
    image.build(modal.App.lookup("swe-rex", create_if_missing=True))
    first, *others = (dict(request["image"]) for request in world.calls("ImageGetOrCreate"))
    assert all(it["dockerfile_commands"] == ["FROM base"] for it in others)  # what Modal adds to a Dockerfile
    return first


def test_an_image_of_a_dockerfile(world: ModalWorld, tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("FROM debian:12\nCOPY a /a\nRUN true")
    (tmp_path / "a").write_text("content of a")
    builder = _ImageBuilder(install_pipx=False)
    for image in (builder.auto(file), builder.auto(str(file)), builder.from_file(file, build_context=tmp_path)):
        asked = built(world, image)
        assert asked["dockerfile_commands"] == ["FROM debian:12", "COPY a /a", "RUN true"]
        assert asked["context_mount_id"]
    assert world.calls("MountGetOrCreate")[0]["files"][0]["filename"] == "/a"


def test_an_image_that_is_one() -> None:
    image = modal.Image.from_registry("debian:12")
    assert _ImageBuilder(install_pipx=False).auto(image) is image
    assert ModalDeployment(image=image)._image is image


@pytest.mark.parametrize(
    ("name", "kind", "variables", "secret"),
    [
        (
            "registry.example.org/a:1", "STATIC_CREDS",
            {"DOCKER_USERNAME": "somebody", "DOCKER_PASSWORD": "secret"},
            {"REGISTRY_USERNAME": "somebody", "REGISTRY_PASSWORD": "secret"},
        ),
        (
            ECR, "AWS",
            {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "SK", "AWS_SESSION_TOKEN": "ST"},
            {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "SK", "AWS_SESSION_TOKEN": "ST",
             "AWS_REGION": "eu-west-1"},
        ),
    ],
)  # fmt: skip
def test_an_image_of_a_registry_that_wants_credentials(
    world: ModalWorld, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, variables: dict[str, str],
    secret: dict[str, str],
) -> None:  # fmt: skip
    pytest.importorskip("boto3")
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    asked = built(world, _ImageBuilder(install_pipx=False).auto(name))
    assert asked["dockerfile_commands"] == [f"FROM {name}"]
    config = asked["image_registry_config"]
    assert config["registry_auth_type"] == f"REGISTRY_AUTH_TYPE_{kind}"
    assert world.secrets[config["secret_id"]] == secret


def test_ecr_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    boto3 = pytest.importorskip("boto3")
    monkeypatch.setattr(boto3.Session, "get_credentials", lambda self: None)
    with pytest.raises(ValueError, match="AWS credentials not found. Please configure your AWS credentials."):
        _ImageBuilder().auto(ECR)


def test_ecr_with_credentials_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_PROFILE", "nobodys")
    with pytest.raises(SwerexException, match="nobodys.*could not be found"):
        _ImageBuilder().auto(ECR)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for take in (_ImageBuilder().auto, lambda image: ModalDeployment(image=image)):
        with pytest.raises(FileNotFoundError, match="does not exist"):
            take(tmp_path / "Dockerfile")


# What dead processes leave


DYING = """
import asyncio, os
from swerex_c.deployment.modal import ModalDeployment
async def main():
    deployments = [ModalDeployment(image="debian:12") for _ in range(2)]
    await asyncio.gather(*(it.start() for it in deployments))
    os._exit(0)
asyncio.run(main())
"""


@pytest.mark.parametrize("v2", ["1", "0"])
def test_prune(world: ModalWorld, monkeypatch: pytest.MonkeyPatch, v2: str) -> None:
    """Of those that died, and of no others: those that live, and those of other machines."""
    monkeypatch.setenv("MODAL_SANDBOX_V2", v2)
    app = modal.App.lookup("swe-rex", create_if_missing=True)
    others = [
        modal.Sandbox.create("sleep", "1000", app=app, tags=new_tags() | of_another)
        for of_another in ({}, {"swerex_c": "0" * 16})
    ]
    try:
        assert run_python(DYING).returncode == 0
        dead = set(world.running()) - {it.object_id for it in others}
        for dry in (True, False):
            assert len(world.running()) == 4
            left = orphans.prune(find_owned(), dry_run=dry)
            assert {it.id for it in left} == dead
            assert all(it.owner.startswith("process ") and it.error is None for it in left)
        assert set(world.running()) == {it.object_id for it in others}
        assert orphans.prune(find_owned()) == []
    finally:
        for name in world.running():
            world.end(name, "TERMINATED")


def test_prune_says_why_it_cannot(world: ModalWorld) -> None:
    world.fault("AppGetOrCreate", status="PERMISSION_DENIED", message="not yours")
    with pytest.raises(DeploymentStartupError, match="not yours"):
        orphans.prune(find_owned())
    world.fault("AppGetOrCreate", status="NOT_FOUND")  # nobody has ever started one
    assert orphans.prune(find_owned()) == []

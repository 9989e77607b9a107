"""The original's names; images; what dead processes leave; and what is done without the SDK."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

modal = pytest.importorskip("modal")

from swerex_c.deployment.modal import ModalDeployment, _get_modal_user, _ImageBuilder, prune  # noqa: E402
from swerex_c.exceptions import DeploymentStartupError, SwerexException  # noqa: E402
from swerex_c.providers.modal import tags as modal_tags  # noqa: E402
from tests.support.modal_fixtures import ModalWorld, modal_world, world  # noqa: E402
from tests.support.wait import until  # noqa: E402

__all__ = ["modal_world", "world"]


def test_signatures_of_the_original() -> None:
    parameters = inspect.signature(ModalDeployment.__init__).parameters
    names = "logger image startup_timeout runtime_timeout modal_sandbox_kwargs install_pipx deployment_timeout".split()
    assert [it for it in parameters if it not in ("self", "server")] == names
    assert _get_modal_user() == modal.config._profile
    assert list(inspect.signature(_ImageBuilder.from_file).parameters) == ["self", "image", "build_context"]


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
    for spec in (file, str(file)):
        asked = built(world, _ImageBuilder(install_pipx=False).auto(spec))
        assert asked["dockerfile_commands"] == ["FROM debian:12", "COPY a /a", "RUN true"]
        assert asked["context_mount_id"]
    assert world.calls("MountGetOrCreate")[0]["files"][0]["filename"] == "/a"


def test_an_image_that_is_one() -> None:
    image = modal.Image.from_registry("debian:12")
    assert _ImageBuilder(install_pipx=False).auto(image) is image
    assert ModalDeployment(image=image)._image is image


def test_an_image_of_a_registry_that_wants_a_password(world: ModalWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_USERNAME", "somebody")
    monkeypatch.setenv("DOCKER_PASSWORD", "secret")
    asked = built(world, _ImageBuilder(install_pipx=False).auto("registry.example.org/a:1"))
    assert asked["dockerfile_commands"] == ["FROM registry.example.org/a:1"]
    secret = world.secrets[asked["image_registry_config"]["secret_id"]]
    assert secret == {"REGISTRY_USERNAME": "somebody", "REGISTRY_PASSWORD": "secret"}


def test_an_image_of_ecr(world: ModalWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3")
    for name, value in (("ACCESS_KEY_ID", "AK"), ("SECRET_ACCESS_KEY", "SK"), ("SESSION_TOKEN", "ST")):
        monkeypatch.setenv(f"AWS_{name}", value)
    name = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/a:1"
    asked = built(world, _ImageBuilder(install_pipx=False).auto(name))
    assert asked["dockerfile_commands"] == [f"FROM {name}"]
    assert asked["image_registry_config"]["registry_auth_type"] == "REGISTRY_AUTH_TYPE_AWS"
    secret = world.secrets[asked["image_registry_config"]["secret_id"]]
    assert secret == {
        "AWS_ACCESS_KEY_ID": "AK",
        "AWS_SECRET_ACCESS_KEY": "SK",
        "AWS_SESSION_TOKEN": "ST",
        "AWS_REGION": "eu-west-1",
    }


def test_ecr_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    boto3 = pytest.importorskip("boto3")
    monkeypatch.setattr(boto3.Session, "get_credentials", lambda self: None)
    with pytest.raises(ValueError, match="AWS credentials not found. Please configure your AWS credentials."):
        _ImageBuilder().auto("123456789012.dkr.ecr.eu-west-1.amazonaws.com/a:1")


def test_ecr_with_credentials_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_PROFILE", "nobodys")
    with pytest.raises(SwerexException, match="nobodys.*could not be found"):
        _ImageBuilder().auto("123456789012.dkr.ecr.eu-west-1.amazonaws.com/a:1")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        _ImageBuilder().auto(tmp_path / "Dockerfile")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        ModalDeployment(image=tmp_path / "Dockerfile")


# What dead processes leave


DYING = """
import asyncio, os, sys
from swerex_c.deployment.modal import ModalDeployment
async def main():
    deployment = ModalDeployment(image="debian:12")
    await deployment.start()
    print("made", deployment.sandbox.object_id, flush=True)
    sys.stdin.read()
asyncio.run(main())
"""


def made(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("made "):
            return line.split()[1]
    raise AssertionError("It did not start")


@pytest.mark.parametrize("v2", ["1", "0"])
def test_prune(world: ModalWorld, monkeypatch: pytest.MonkeyPatch, v2: str) -> None:
    """Of those that died, and of no others: those that live, and those of other machines."""
    monkeypatch.setenv("MODAL_SANDBOX_V2", v2)
    program = [sys.executable, "-c", DYING]
    processes = [subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    elsewhere = modal_tags.new_tags() | {"swerex_c": "0" * 16}
    app = modal.App.lookup("swe-rex", create_if_missing=True)
    try:
        names = [made(it) for it in processes]
        other = modal.Sandbox.create("sleep", "1000", app=app, tags=elsewhere)
        for each in processes[:2]:
            each.send_signal(signal.SIGKILL)
            each.wait()
        dead = [f"process {it.pid}" for it in processes[:2]]
        for dry in (True, False):
            assert len(world.running()) == 4
            left = prune(dry_run=dry)
            assert {it.id for it in left} == set(names[:2])
            assert sorted(it.owner for it in left) == sorted(dead) and not any(it.error for it in left)
        until(lambda: set(world.running()) == {names[2], other.object_id})
        assert prune() == []
        other.terminate()
    finally:
        for each in processes:
            each.kill()
            each.wait()
        for name in world.running():
            world.end(name, "TERMINATED")


def test_tags_can_be_read_again() -> None:
    from swerex_c.providers import ownership

    tags = modal_tags.new_tags()
    facts = modal_tags._facts(tags)
    assert facts == ownership.labels(tags["swerex_c-start"], keep=False)
    assert ownership.is_owner_alive(facts) is True
    assert all(len(text) <= 63 for it in tags.items() for text in it)
    assert ownership.is_owner_alive(modal_tags._facts({})) is None


def test_prune_says_why_it_cannot(world: ModalWorld) -> None:
    world.fault("AppGetOrCreate", status="PERMISSION_DENIED", message="not yours")
    with pytest.raises(DeploymentStartupError, match="not yours"):
        prune()


# Without the SDK

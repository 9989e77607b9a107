"""Deployments in containers, on a real Docker engine and a real podman."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import platform
import re
from pathlib import Path
from typing import Any

import pytest

from swerex_c.deployment import docker as docker_module
from swerex_c.deployment.docker import DockerDeployment
from swerex_c.deployment.hooks.status import SetStatusDeploymentHook
from swerex_c.exceptions import (
    DeploymentNotStartedError,
    DeploymentStartupError,
    DockerPullError,
    SandboxLostError,
    StartupTimeoutError,
    SwerexException,
)
from swerex_c.providers.docker import engine
from swerex_c.providers.docker.engine import Engine as Client
from swerex_c.runtime.abstract import BashAction, CreateBashSessionRequest
from tests.support import hosts, images, needs
from tests.support.docker_deployments import NO_NETWORK, Make, make, names, reach
from tests.support.docker_engine import Engine
from tests.support.harness import write_script
from tests.support.original import run_python
from tests.support.pages import check, shown
from tests.support.processes import command_line
from tests.support.session import says
from tests.support.wait import DEADLINE, until, until_async

__all__ = ["make", "reach"]

# A container that only waits


async def test_a_day(make: Make, reach: Engine, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("rex-deploy-of-this-test")
    caplog.set_level(logging.DEBUG, logger.name)
    deployment = make(logger=logger, startup_timeout=float("inf"))
    steps: list[tuple[str, str]] = []
    deployment.add_hook(SetStatusDeploymentHook("a", lambda *step: steps.append(step)))
    await deployment.start()
    name = deployment.container_name
    assert name and name.startswith("swx-testbash-only-") and names(reach) == [name]
    assert await says(deployment, 'printf %s "$PATH"') == "/bin"
    assert deployment._container_name == name and deployment._config.port is None
    await deployment.stop()
    assert steps == [("a", "Starting runtime")]
    assert f"Starting container {name} with image swx-test/bash-only" in caplog.messages
    assert any(re.match(r"Runtime started in \d+\.\d\ds", line) for line in caplog.messages)
    assert any(line.startswith("Command: 'docker run -a stdout ") for line in caplog.messages)


@pytest.mark.parametrize("server", [False, True])
async def test_the_log_shows_no_values_of_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, server: bool
) -> None:
    """The engine is a script that refuses."""
    write_script(tmp_path / "docker", "echo no >&2; exit 125")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    logger = logging.getLogger("rex-deploy-of-this-test")
    caplog.set_level(logging.DEBUG, logger.name)
    words = "-e A=secret -ite B=secret -Pe G=secret -eC=secret --env D=secret --env=E=secret -e F -v /a:/b".split()
    with pytest.raises(DeploymentStartupError):
        await DockerDeployment(docker_args=words, server=server, logger=logger).start()
    assert " -e A -ite B -Pe G -eC --env D --env=E -e F -v /a:/b " in caplog.text and "secret" not in caplog.text


@pytest.mark.parametrize("server", [False, True])
def test_what_a_day_logs(make: Make, bash_only: str, server: bool) -> None:
    """INFO shows no script, and no error for a requested stop."""
    code = """if True:
        import asyncio, sys
        from swerex_c.deployment.docker import DockerDeployment
        from swerex_c.runtime.abstract import BashAction, CreateBashSessionRequest

        class Served(DockerDeployment):
            def _get_swerex_start_cmd(self, token):
                return ["/bin/bash", "-c", "echo said by the caller; while :; do read -t 1 <> <(:); done"]

            async def _wait_until_alive(self, timeout=10):
                pass

        async def main():
            kind = Served if sys.argv[2] == "True" else DockerDeployment
            fields = dict(pull="never", docker_args=["--network", "none"], startup_timeout=60)
            deployment = kind(image=sys.argv[1], **fields)
            await deployment.start()
            if kind is DockerDeployment:
                await deployment.runtime.create_session(CreateBashSessionRequest(startup_timeout=60))
                begins = BashAction(command="echo on; sleep 1000", timeout=60)
                running = deployment.runtime.stream_in_session(begins)
                await anext(running)
                more = asyncio.ensure_future(anext(running))
                await deployment.stop()
                await asyncio.gather(more, return_exceptions=True)
            await deployment.stop()

        asyncio.run(main())
    """
    done = run_python(code, bash_only, str(server), SWE_REX_LOG_STREAM_LEVEL="INFO")
    shown = done.stdout + done.stderr
    assert done.returncode == 0 and "Starting container" in shown
    assert not re.search("ERROR|WARNING|Traceback|never retrieved|Command: |/bin/bash|while ", shown)


@pytest.mark.idle
@pytest.mark.parametrize("pipe", ["<> <(:)", "<> /no/such/file"], ids=["by name", "without a name"])
async def test_a_container_that_waits_is_not_busy(make: Make, monkeypatch: pytest.MonkeyPatch, pipe: str) -> None:
    script = docker_module._WAIT
    monkeypatch.setattr(docker_module, "_WAIT", script.replace("<> <(:)", pipe))
    deployment = make()
    await deployment.start()
    busy = "read -r -a stat </proc/1/stat; read -t 0.2 <> <(:); a=${stat[13]}; read -r -a stat </proc/1/stat; "
    assert int(await says(deployment, busy + "echo $((stat[13] - a))")) < 8  # hundredths of a second


@pytest.mark.parametrize("words", ["exec podman", None])
def test_what_is_not_the_client_of_docker(reach: Engine, tmp_path: Path, words: str | None) -> None:
    """Podman has a command `docker`."""
    assert Client("docker").is_docker() and not Client("podman").is_docker()
    client, podman = tmp_path / "docker", tmp_path / "podman"
    podman.write_bytes(b"\x7fELF")
    podman.chmod(0o755)
    if words is None:
        client.symlink_to(podman)
    else:
        write_script(client, words)
    assert not Client("docker", {"PATH": str(tmp_path)}).is_docker()
    assert not Client("docker", {"PATH": "/no/such/directory"}).is_docker()


async def test_a_start_needs_no_client_but_the_one_that_runs_the_container(make: Make, reach: Engine) -> None:
    deployment = make(docker_args=[*NO_NETWORK, "-e", "BASH_ENV=/dev/zero"])  # what hangs other shells
    await deployment.start()
    place = deployment.runtime.sandbox  # type: ignore[attr-defined]
    assert not place._shells._all
    mentioning = needs.mentioning(str(deployment.container_name))  # no client of the container is left
    assert not [one for one in mentioning if "-a stdout" in command_line(one)]


@pytest.mark.parametrize("more", ["-it", "-d", "--interactive"])
async def test_streams_of_the_callers_choice(make: Make, more: str) -> None:
    deployment = make(docker_args=[*NO_NETWORK, more])
    await deployment.start()
    assert await says(deployment, "echo there") == "there\n"


@pytest.mark.parametrize(
    ("instead", "words"),
    [
        ("echo noise; echo ${1}4 3", "bash in container .* is 4.3; 4.4 or later"),
        ('echo "$1"of my own', "is not GNU bash.* it said b'of my own'"),
        ("echo out of order; exit 5", "Cannot start the container: out of order"),
        ("printf %s ${1}5", "did not start within 1 seconds"),  # no whole line
    ],
)
async def test_a_container_that_does_not_say_that_a_bash_runs(
    make: Make, reach: Engine, monkeypatch: pytest.MonkeyPatch, instead: str, words: str
) -> None:
    monkeypatch.setattr(docker_module, "_WAIT", f"{instead}; read -t 60 <> <(:)")
    with pytest.raises(DeploymentStartupError, match=words):
        await make(startup_timeout=1 if "1 seconds" in words else 60).start()
    await asyncio.to_thread(until, lambda: names(reach) == [])


async def test_the_callers_arguments_of_docker_run(make: Make, reach: Engine, bash_min: str, tmp_path: Path) -> None:
    (tmp_path / "it").write_text("of the host\n")
    write_script(tmp_path / "entry", 'export OWN=entry\necho began >/it/log\nexec "$@"', "/bin/bash")
    machine = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}.get(platform.machine())
    given = ["-e", "A=b c", "-v", f"{tmp_path}:/it", "--workdir", "/it", "--user", "1000", "--entrypoint", "/it/entry"]
    tmp_path.chmod(0o777)
    deployment = make(image=bash_min, docker_args=[*NO_NETWORK, *given], platform=machine)
    await deployment.start()
    assert await says(deployment, "cat /it/it; pwd; id -u; echo $A; cat log") == "of the host\n/it\n1000\nb c\nbegan\n"
    await deployment.stop()
    for shell in ("--entrypoint=", "--entrypoint=/bin/sh"):
        deployment = make(image=bash_min, docker_args=[*NO_NETWORK, shell, "--init"])
        await deployment.start()
        assert "init" in await says(deployment, "ps")
        await deployment.stop()


async def test_an_entry_point_that_fails_says_how(make: Make, reach: Engine, bash_min: str, tmp_path: Path) -> None:
    entry = tmp_path / "entry"
    entry.touch(mode=0o755)
    mounted = [*NO_NETWORK, "-v", f"{tmp_path}:/it", "--entrypoint", "/it/entry"]
    for before in ("", "sleep 0.3; "):
        entry.write_text(f"#!/bin/bash\n{before}echo no configuration >&2; exit 7\n")
        for kept in (False, True):
            deployment = make(image=bash_min, docker_args=mounted, remove_container=not kept)
            words = "(?s)exit code 7.*entry point '/it/entry' printed:.*no configuration"
            try:
                await deployment.start()
            except DeploymentStartupError as error:
                assert re.search(words, str(error)), error
            else:  # it was quicker than the entry point
                assert before
                with pytest.raises(SandboxLostError, match="exit code 7"):
                    while True:
                        await says(deployment, "echo on")
            await deployment.stop()
            assert len(left := names(reach)) == kept
            if kept:
                reach.docker("rm", *left)


async def test_orphans_do_not_stay_as_zombies_and_a_polite_stop_is_quick(
    make: Make, reach: Engine, bash_min: str
) -> None:
    deployment = make(image=bash_min)
    await deployment.start()
    await says(deployment, "(sleep 0.1 & sleep 0.2 &) ; :")
    state = "for stat in /proc/[0-9]*/stat; do IFS= read -r line <$stat && echo ${line##*) }; done; :"

    async def no_zombies() -> bool:
        return not any(line.startswith("Z") for line in (await says(deployment, state)).splitlines())

    await until_async(no_zombies, "zombies")
    reach.docker("stop", "-t", "1000", str(deployment.container_name), seconds=DEADLINE)


async def test_what_is_kept(make: Make, reach: Engine) -> None:
    reach.docker("tag", "swx-test/bash-only", "swx-test/other")
    deployment = make(image="swx-test/other", remove_container=False, remove_images=True)
    await deployment.start()
    name = str(deployment.container_name)
    reach.docker("tag", "swx-test/bash-only", "swx-test/another")
    await deployment.stop()
    try:
        assert reach.docker("inspect", "-f", "{{.State.Running}}", name) == "false"
    finally:
        reach.docker("rm", name)
        reach.docker("rmi", "swx-test/another")
    assert not reach.docker("image", "ls", "-q", "swx-test/other")


# What goes wrong at the start


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"image": "swx-test/ash-min"}, DeploymentStartupError, "'swx-test/ash-min' has no bash, which sessions need"),
        ({"image": "swx-test/none"}, DockerPullError, "image 'swx-test/none' is not on this machine"),
        ({"image": "127.0.0.1:1/none", "pull": "missing"}, DockerPullError, "Failed to pull image 127.0.0.1:1/none"),
        ({"docker_args": ["--network", "no-such-network"]}, DeploymentStartupError, "no-such-network"),
        ({"docker_args": [*NO_NETWORK, "--entrypoint=/bin/bash", "--no-such-option"]}, DeploymentStartupError, "unkn"),
        ({"docker_args": [*NO_NETWORK, "--attach=stderr"]}, DeploymentStartupError, "onflict"),  # docker's own words
        ({"startup_timeout": 0.05}, StartupTimeoutError, "did not start within 0.05 seconds"),
        ({"remove_container": False, "image": "swx-test/ash-min"}, DeploymentStartupError, "has no bash"),
        ({"exec_shell": ["/no/such/shell", "-c"]}, DeploymentStartupError, "/no/such/shell"),
        (
            {"server": True, "remove_container": False, "docker_args": ["--network", "host"]},  # the image has no sh
            DeploymentStartupError,
            "(?s)Cannot start the container.*/bin/sh",
        ),
    ],
)
async def test_a_start_that_fails_says_why_and_leaves_nothing(
    make: Make, reach: Engine, ash_min: str, fields: dict, kind: type, words: str
) -> None:
    deployment = make(**fields)
    steps: list[str] = []
    deployment.add_hook(SetStatusDeploymentHook("a", lambda _, step: steps.append(step)))
    with pytest.raises(kind, match=words) as caught:
        await deployment.start()
    assert isinstance(caught.value, DeploymentStartupError)
    assert isinstance(caught.value, TimeoutError) == (kind is StartupTimeoutError)
    assert (steps == ["Pulling container image"]) == (fields.get("pull") == "missing")
    assert names(reach) == [] and deployment.container_name is None
    with pytest.raises(DeploymentNotStartedError):
        _ = deployment.runtime


async def test_no_engine_and_no_command(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("rex-deploy-none")
    with monkeypatch.context() as patch:
        patch.setenv("DOCKER_HOST", "unix:///no/such/socket")
        for pull in ("never", "missing", "always"):
            with pytest.raises(DeploymentStartupError, match="'docker' cannot be reached") as caught:
                await make(pull=pull, logger=logger).start()
            assert not isinstance(caught.value, DockerPullError)
        patch.setenv("PATH", "/no/such/directory")
        with pytest.raises(DeploymentStartupError, match="command 'docker' cannot be run .No such file"):
            await make(logger=logger).start()
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_an_interrupt_from_the_keyboard_and_a_lost_loop_leave_nothing(make: Make, reach: Engine) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    deployment = make()
    deployment.add_hook(SetStatusDeploymentHook("a", interrupt))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(deployment.start())
    assert names(reach) == []

    deployment = make()
    loop = asyncio.new_event_loop()
    start = deployment.start()
    with contextlib.suppress(RuntimeError):
        loop.call_later(0.15, loop.stop)
        loop.run_until_complete(start)  # the loop is stopped in the middle of it
    for task in asyncio.all_tasks(loop):
        task.get_coro().close()  # type: ignore[union-attr]
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    until(lambda: names(reach) == [])  # in the private event loop
    gc.collect()
    loop.close()


# Losses


async def test_an_engine_that_goes_away(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Engine() as own:
        images.provide(own.docker, "bash-only")
        monkeypatch.setenv("DOCKER_HOST", own.host)
        deployment = make(logger=logging.getLogger("rex-deploy-away"))
        await deployment.start()
        name = deployment.container_name
        await deployment.runtime.create_session(CreateBashSessionRequest(startup_timeout=60))
        running = deployment.runtime.stream_in_session(BashAction(command="echo on; read <> <(:)", timeout=1000))
        await anext(running)
        own.crash()
        with pytest.raises(SandboxLostError, match="out of reach"):
            await anext(running)
        with contextlib.suppress(SwerexException):
            assert not await deployment.is_alive(timeout=30)
        await deployment.stop()
        assert f"Failed to kill container {name}" in caplog.text and "swerex-c prune" in caplog.text
        await deployment.stop()


async def test_a_container_that_is_made_as_the_engine_goes_away(
    make: Make, reach: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is removed when this process ends, if the engine is back by then."""
    monkeypatch.setattr(engine, "_left", {})
    launch = Client.launch

    async def interrupted(client: Client, words: list[str], *more: Any) -> bytes:
        await launch(client, words, *more)
        client.environment["DOCKER_HOST"] = "unix:///no/such/socket"
        return await launch(client, words, *more)

    monkeypatch.setattr(Client, "launch", interrupted)
    with pytest.raises(DeploymentStartupError, match="cannot be reached"):
        await make().start()
    for client, *_ in engine._left.values():
        client.environment["DOCKER_HOST"] = reach.host
    assert len(names(reach)) == 1
    engine._end_all()
    assert names(reach) == []


# Images


class Built(DockerDeployment):
    """A subclass with a Dockerfile of its own."""

    @property
    def glibc_dockerfile(self) -> str:
        return "ARG BASE_IMAGE\nFROM $BASE_IMAGE\nENV BUILT=yes\n"


async def test_an_image_is_built_upon(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    deployment = make(Built, python_standalone_dir="/opt", logger=logging.getLogger("rex-deploy-built"))
    caplog.set_level(logging.INFO, "rex-deploy-built")
    await deployment.start()
    assert await says(deployment, "echo $BUILT") == "yes\n"
    assert "Building image swx-test/bash-only to install a standalone python to /opt" in caplog.text

    class Wrong(DockerDeployment):
        glibc_dockerfile = "NO SUCH THING\n"  # type: ignore[assignment]

    with pytest.raises(DeploymentStartupError, match="(?s)Building image swx-test/bash-only failed.*NO"):
        await make(Wrong, python_standalone_dir="/opt").start()
    # Without a server nothing needs a Python of its own.
    await make(python_standalone_dir="/root").start()
    text = make(python_standalone_dir="/opt", platform="linux/amd64").glibc_dockerfile
    assert "FROM --platform=linux/amd64 $BASE_IMAGE" in text and "COPY --from=builder /opt/python3.11 /opt/py" in text


# podman


async def test_podman_has_words_of_its_own(podman: hosts.Podman, monkeypatch: pytest.MonkeyPatch) -> None:
    podman.lead(monkeypatch)
    for image, kind, words in (
        ("localhost/swx-test/none", DockerPullError, "'localhost/swx-test/none' is not on this machine"),
        (images.provide(podman.run, "ash-min"), DeploymentStartupError, "has no bash"),
    ):
        with pytest.raises(kind, match=words):
            await DockerDeployment(
                image=image,
                pull="never",
                container_runtime="podman",
                docker_args=[*NO_NETWORK, "--ulimit", "host"],
                startup_timeout=60,
            ).start()
    assert podman.run("ps", "-aq") == ""


# Pages


@pytest.mark.timeout(600)  # a Debian is made first
@pytest.mark.parametrize(("block", "output"), shown("docker"))
def test_a_block_of_a_page_prints_what_the_page_shows(block: str, output: str, docker: Engine, debian_py: str) -> None:
    docker.docker("tag", debian_py, "python:3.11")  # the page's image, without a registry
    check(block, output, **docker.environment)

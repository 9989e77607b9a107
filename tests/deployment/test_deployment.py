"""Test configurations, the dummies, dropped deployments, hooks, and the helpers of deployments."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import re
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from swerex_c.deployment import get_deployment
from swerex_c.deployment.abstract import AbstractDeployment
from swerex_c.deployment.config import (
    DockerDeploymentConfig,
    DummyDeploymentConfig,
    LocalDeploymentConfig,
    ModalDeploymentConfig,
    RemoteDeploymentConfig,
)
from swerex_c.deployment.dummy import DummyDeployment
from swerex_c.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex_c.deployment.hooks.status import SetStatusDeploymentHook
from swerex_c.exceptions import DummyOutputsExhaustedError, NotAvailableError, ResourceError, SwerexException
from swerex_c.providers.sandbox_deployment import SandboxDeployment
from swerex_c.runtime.abstract import (
    Action,
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    IsAliveResponse,
    Observation,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)
from swerex_c.runtime.config import DummyRuntimeConfig, LocalRuntimeConfig, RemoteRuntimeConfig, get_runtime
from swerex_c.runtime.dummy import DummyRuntime
from swerex_c.utils import log
from swerex_c.utils.free_port import find_free_port
from swerex_c.utils.load import load_class
from swerex_c.utils.wait import _wait_until_alive
from tests.support.local_backend import Here
from tests.support.original import run_python
from tests.support.wait import DEADLINE, settle, until

# From configurations


@pytest.mark.parametrize(
    ("config", "made"),
    [
        (DummyDeploymentConfig(), "DummyDeployment"),
        (LocalDeploymentConfig(), "LocalDeployment"),
        (RemoteDeploymentConfig(auth_token=""), "RemoteDeployment"),
        (DockerDeploymentConfig(image="x", container_runtime="podman"), "DockerDeployment"),
        (DummyRuntimeConfig(), "DummyRuntime"),
        (LocalRuntimeConfig(), "LocalRuntime"),
        (RemoteRuntimeConfig(auth_token=""), "RemoteRuntime"),
    ],
)
def test_a_configuration_makes_its_deployment_or_runtime(config: Any, made: str) -> None:
    assert type(get_runtime(config) if made.endswith("Runtime") else config.get_deployment()).__name__ == made


def test_what_this_version_does_not_have_is_a_clear_error() -> None:
    module = "swerex_c.deployment.nowhere"
    with pytest.raises(NotAvailableError, match=rf"has no .* \(there is no module {module}\)") as caught:
        load_class(f"{module}:NowhereDeployment")
    assert isinstance(caught.value, SwerexException)


def test_a_module_that_lacks_a_library_says_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import swerex_c.providers.modal

    (tmp_path / "deployment.py").write_text("import no_such_library\n")
    monkeypatch.setattr(swerex_c.providers.modal, "__path__", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "swerex_c.providers.modal.deployment", raising=False)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        get_deployment(ModalDeploymentConfig())


# Dummy


async def test_the_dummy_runtime_answers_everything() -> None:
    runtime = DummyRuntime.from_config(DummyRuntimeConfig())
    assert await runtime.is_alive(timeout=1)
    assert (await runtime.create_session(CreateBashSessionRequest())).output == ""
    assert (await runtime.run_in_session(BashAction(command="x"))).exit_code == 0
    assert (await runtime.execute(Command(command="false"))).exit_code == 0
    assert (await runtime.read_file(ReadFileRequest(path="x"))).content == ""
    await runtime.write_file(WriteFileRequest(path="/no/such", content=""))
    await runtime.upload(UploadRequest(source_path="/no/such", target_path=""))
    await runtime.close_session(CloseBashSessionRequest())
    await runtime.close()


async def test_the_dummy_runtime_gives_what_it_was_told() -> None:
    runtime = DummyRuntime()
    same = BashObservation(output="same")
    runtime.run_in_session_outputs = same
    assert await runtime.run_in_session(BashAction(command="x")) is same
    runtime.run_in_session_outputs = [same]
    assert await runtime.run_in_session(BashInterruptAction()) is same
    with pytest.raises(DummyOutputsExhaustedError, match="'ls'"):
        await runtime.run_in_session(BashAction(command="ls"))
    with pytest.raises(DummyOutputsExhaustedError, match="bash_interrupt"):
        await runtime.run_in_session(BashInterruptAction())


async def test_a_request_for_another_kind_of_session_is_refused() -> None:
    request = CreateBashSessionRequest.model_construct(session_type="fish")
    with pytest.raises(ValueError, match="fish"):
        await DummyRuntime().create_session(request)


async def test_the_dummy_deployment_takes_another_runtime() -> None:
    """The runtime is replaced before and after the start."""

    class Own(DummyRuntime):
        async def run_in_session(self, action: Action) -> Observation:
            if action.action_type == "bash" and action.command == "raise":
                raise SwerexException()
            return await super().run_in_session(action)

    deployment = get_deployment(DummyDeploymentConfig())
    assert isinstance(deployment, DummyDeployment)
    for _ in range(2):
        deployment.runtime = own = Own()
        await deployment.start()
        assert deployment.runtime is own and await deployment.is_alive(timeout=10)
        with pytest.raises(SwerexException, match="^$"):
            await deployment.runtime.run_in_session(BashAction(command="raise"))
        assert (await deployment.runtime.run_in_session(BashAction(command="ls"))).exit_code == 0
    await deployment.stop()


async def test_the_time_that_is_logged_is_that_of_the_whole_start(caplog: pytest.LogCaptureFixture) -> None:
    class Slow(SandboxDeployment):
        _config = None

        async def _start_sandbox(self) -> Here:
            self._runs_bash = True  # as that of a container, which has said that bash runs there
            await asyncio.sleep(0.3)
            return Here()

    caplog.set_level(logging.INFO, "rex-deploy-slow")
    deployment = Slow(logger=logging.getLogger("rex-deploy-slow"))
    await deployment.start()
    await deployment.stop()
    (seconds,) = re.findall(r"Runtime started in ([\d.]+)s", caplog.text)
    assert float(seconds) >= 0.3


# Going away


@pytest.fixture
def counting() -> Any:
    class Counting(DummyDeployment):
        """A deployment that leaves something running if it is not stopped."""

        stopped: list[str] = []

        def _left_running(self) -> bool:
            return AbstractDeployment._left_running(self)

        async def stop(self, *args: Any, **kwargs: Any) -> None:
            await asyncio.sleep(0)
            self._runtime = None  # type: ignore[assignment]
            self.stopped.append(threading.current_thread().name)

    return Counting


def test_a_deployment_dropped_at_the_end_of_its_loop_is_stopped_to_the_end(counting: Any) -> None:
    """The loop cancels its tasks when it ends, but not the stop."""
    halfway, over = threading.Event(), threading.Event()

    class Slow(counting):  # type: ignore[misc]
        async def stop(self, *args: Any, **kwargs: Any) -> None:
            self._runtime = None
            halfway.set()
            await asyncio.to_thread(over.wait, DEADLINE)
            self.stopped.append(threading.current_thread().name)

    async def use() -> None:
        Slow()
        gc.collect()
        await asyncio.to_thread(halfway.wait, DEADLINE)

    asyncio.run(use())
    over.set()
    until(lambda: counting.stopped == ["finalizer"])


async def test_a_stopped_deployment_goes_without_a_trace(counting: Any) -> None:
    deployment = counting()
    await deployment.stop()
    del deployment
    gc.collect()
    await settle()
    assert len(counting.stopped) == 1


def test_a_deployment_whose_making_failed_goes_without_a_trace() -> None:
    with pytest.raises(ValueError):
        DummyDeployment(no_such_field=1)
    gc.collect()


def test_no_deployment_says_anything_when_python_ends() -> None:
    code = """
        import asyncio, logging
        logging.getLogger("asyncio").setLevel(logging.ERROR)  # that a step takes long is not what is asked
        from swerex_c.deployment.dummy import DummyDeployment
        from swerex_c.deployment.local import LocalDeployment
        from swerex_c.runtime.abstract import CreateBashSessionRequest
        kept, dropped, never = LocalDeployment(), DummyDeployment(), LocalDeployment()
        asyncio.run(kept.start())
        asyncio.run(kept.runtime.create_session(CreateBashSessionRequest(startup_timeout=60)))
    """
    done = run_python(code, options=["-X", "dev", "-W", "error"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Hooks


def test_hooks_are_told_in_order() -> None:
    told: list[tuple[str, str]] = []
    hooks = CombinedDeploymentHook([SetStatusDeploymentHook("a", lambda *it: told.append(it))])
    hooks.add_hook(DeploymentHook())
    hooks.add_hook(SetStatusDeploymentHook("b", lambda *it: told.append(it)))
    hooks.on_custom_step("Pulling")
    assert told == [("a", "Pulling"), ("b", "Pulling")]
    deployment = DummyDeployment()
    deployment.add_hook(hooks)
    deployment._hooks.on_custom_step("Starting")
    assert told[2:] == [("a", "Starting"), ("b", "Starting")]


# Waiting


async def test_waiting_leaves_the_loop_free() -> None:
    answers = iter([IsAliveResponse(is_alive=False), None, IsAliveResponse(is_alive=True)])
    seen: list[str | float | None] = []

    async def function(*, timeout: float | None) -> Any:
        asyncio.get_running_loop().call_soon(seen.append, "the loop")
        seen.append(timeout)
        return next(answers)

    await _wait_until_alive(function, timeout=DEADLINE, function_timeout=0.3, sleep=0.1)
    assert seen == [0.3, "the loop", 0.3, "the loop", 0.3]


@pytest.mark.parametrize("timeout", [0, 0.2])
async def test_waiting_ends_in_time_with_the_last_answer(timeout: float) -> None:
    async def function(*, timeout: float | None) -> IsAliveResponse:
        return IsAliveResponse(is_alive=False, message="connection refused")

    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"(?s)did not start within .*last await response was:\nconnection refused"):
        await _wait_until_alive(function, timeout=timeout, sleep=0.05)
    assert time.monotonic() - began >= timeout


# Ports


def test_ports_are_free_and_given_once() -> None:
    with ThreadPoolExecutor(8) as threads:
        ports = list(threads.map(lambda _: find_free_port(), range(160)))
    assert len(set(ports)) == len(ports) == 160
    both = socket.has_dualstack_ipv6()
    for port in ports[:20]:
        with socket.create_server(("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both):
            pass


def test_no_free_port_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ResourceError, match="free port after 0 attempts"):
        find_free_port(max_attempts=0)
    no_descriptor = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    monkeypatch.setattr(socket, "socket", mock.Mock(side_effect=no_descriptor))
    with pytest.raises(ResourceError):
        find_free_port(sleep_between_attempts=0)


# Logs


def test_the_log_imports_nothing_of_the_rest_and_rich_only_to_print() -> None:
    code = """
        import sys
        sys.stderr = sys.stdout
        import swerex_c.utils.log as log
        logger = log.get_logger("rex-deploy-x", emoji="*")
        ours = [name for name in sys.modules if name.startswith("swerex_c")]
        print(sorted(ours), "rich" in sys.modules)
        logger.info("hello")
        print("rich" in sys.modules)
    """
    first, line, last = run_python(code).stdout.splitlines()
    modules = ["", "._version", ".utils", ".utils.log", ".utils.visible"]
    assert first == f"{['swerex_c' + module for module in modules]} False"
    assert line.split() == ["*", "INFO", "hello"]
    assert last == "True"


@pytest.mark.parametrize(
    ("setting", "lines"), [("", 2), ("DEBUG", 3), ("warning", 1), ("30", 1), ("CRITICAL", 0), ("no-such-level", 2)]
)
@pytest.mark.parametrize("stands_in", [False, True])
def test_the_level_is_taken_from_the_environment(setting: str, lines: int, stands_in: bool) -> None:
    """With the swap, the stream and the default level are those of SWE-ReX."""
    swap = "import swerex_c; swerex_c.install(); import swerex.utils.log" if stands_in else ""
    code = f"""
        {swap}
        from swerex_c.utils.log import get_logger
        logger = get_logger("x")
        assert get_logger("x") is logger and len(logger.handlers) == 1
        logger.debug("1"); logger.info("2"); logger.warning("3")
    """
    done = run_python(code, SWE_REX_LOG_STREAM_LEVEL=setting)
    assert done.returncode == 0
    printed, nothing = (done.stdout, done.stderr) if stands_in else (done.stderr, done.stdout)
    assert len(printed.splitlines()) == lines + (stands_in and lines == 2)
    assert nothing == ""


def test_loggers_of_other_threads_have_a_name_of_their_own() -> None:
    names: list[str] = []

    def work() -> None:
        names.append(log.get_logger("swx-test").name)
        log.register_thread_name("seven")
        names.append(log.get_logger("swx-test").name)

    thread = threading.Thread(target=work, name="worker-7")
    thread.start()
    thread.join()
    assert names == ["swx-test-worker-7", "swx-test-seven"]
    assert log.get_logger("swx-test").name == "swx-test"


def test_a_logger_that_is_set_up_already_stays_as_it_is() -> None:
    logger = logging.getLogger("swx-test-own")
    own = logging.NullHandler()
    logger.addHandler(own)
    assert log.get_logger("swx-test-own").handlers == [own]

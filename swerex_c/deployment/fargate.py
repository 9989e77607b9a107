"""A deployment in a task of AWS Fargate, whose container runs a server that is reached by its public address.

There is no way into such a task but the network: ECS's own needs a program of AWS on this machine, and another in the
container. Of Python, boto3 is needed here, and region and credentials as boto3 finds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import shlex
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Self

from swerex_c import PACKAGE_NAME, REMOTE_EXECUTABLE_NAME
from swerex_c.deployment import _fargate_task as tasks
from swerex_c.deployment._exec import Effort
from swerex_c.deployment._served import ServedDeployment
from swerex_c.deployment.config import FargateDeploymentConfig
from swerex_c.exceptions import DeploymentStartupError, PlaceLostError
from swerex_c.exec.threads import in_thread
from swerex_c.remote.key import VARIABLE
from swerex_c.runtime.abstract import IsAliveResponse
from swerex_c.utils._aws import AwsError, checking
from swerex_c.utils.aws import (
    find_public_ip,
    get_cloudwatch_log_url,
    get_cluster_arn,
    get_container_name,
    get_default_vpc_and_subnet,
    get_execution_role_arn,
    get_security_group,
    get_task_definition,
    run_fargate_task,
)

if TYPE_CHECKING:
    from swerex_c.runtime.config import RemoteRuntimeConfig

__all__ = ["FargateDeployment", "FargateDeploymentConfig"]

_POLL_SECONDS = 1.0
"""How often it is asked what a task does that is to run."""

_LOOK_EVERY_SECONDS = 3.0
"""The same while its server is waited for."""

_LOOK_SECONDS = 10.0
"""How long ECS may take to tell what became of a task."""

_ANSWER_SECONDS = 0.5
"""A server that does not answer so soon may be one whose task has ended."""

_AGREE_SECONDS = 60.0
"""How long a role that was just made may not be known to ECS yet, and a task that runs may have no address yet."""

_SETTLE_SECONDS = 30.0
"""How long the answer is waited for that tells whether a task was run: as long as one request may take."""

_UNSURE_SECONDS = 5.0
"""How long a task is looked for of which there was no answer."""

_END_SECONDS = 25.0
"""How long it is tried to stop a task, and to find it before."""


class FargateDeployment(ServedDeployment):
    """Runs a task on AWS Fargate with a server in it: the image's `swerex-remote`, or else one from the network.

    The server's key is in the task's environment, where those can see it who may describe tasks of the account. The
    connection to it is not encrypted. By default everybody on the internet can connect: `allowed_cidr` limits that.
    """

    _config: FargateDeploymentConfig
    _ends_place = True
    _always_serves = True
    _start_command = "_get_command"

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any):
        """The keyword arguments are the fields of `FargateDeploymentConfig`."""
        super().__init__(logger=logger)
        self._config = FargateDeploymentConfig(**kwargs)
        self._container_process: Any = None
        self._container_name: str | None = None
        self._cluster_arn: str | None = None
        self._execution_role_arn: str | None = None
        self._task_definition: dict[str, Any] | None = None
        self._vpc_id: str | None = None
        self._subnet_id: str | None = None
        self._security_group_id: str | None = None
        self._task_arn: str | None = None
        self._asked: str | None = None
        """The word by which a task can be found whose ARN is not known yet."""
        self._settled: threading.Event | None = None
        self._next_look = 0.0
        self._has_ended = False

    @classmethod
    def from_config(cls, config: FargateDeploymentConfig) -> Self:
        return cls(**config.model_dump())

    @property
    def container_name(self) -> str | None:
        """The container's name within its task; None if there is none."""
        return self._container_name

    def _get_container_name(self) -> str:
        """What the task's definition calls the container."""
        return self._container_name or get_container_name(self._config.image)

    # What the container runs

    def _get_command(self, *, token: str) -> list[str]:
        """What the container's `sh -c` gets, to be overridden: a server with this key, for a limited time."""
        return [self._command("", shlex.quote(token))]

    def _own_command(self) -> list[str]:
        """The same for when nobody overrides it: the key comes in a variable, which the server's sessions lack."""
        return [self._command(f"key=${VARIABLE}; unset {VARIABLE}; ", '"$key"')]

    def _command(self, begin: str, key: str) -> str:
        arguments = f"--port {self._config.port} --auth-token {key}"
        # Not `server || install`: a server that has run and failed is not to be followed by another.
        inner = (
            f"{begin}if command -v {REMOTE_EXECUTABLE_NAME} >/dev/null; then {REMOTE_EXECUTABLE_NAME} {arguments}; "
            "else (command -v pipx >/dev/null || "
            "(apt-get update -y && DEBIAN_FRONTEND=noninteractive apt-get install pipx -y) || "
            "python3 -m pip install pipx) && "
            f"$(command -v pipx || echo python3 -m pipx) run {PACKAGE_NAME} {arguments}; fi"
        )
        # Around everything, so that a task that nobody stops costs no more than that.
        return f"timeout {max(1, math.ceil(self._config.container_timeout))}s bash -c {shlex.quote(inner)}"

    # Starting

    def _init_aws(self) -> None:
        """Find or make what a task needs. Blocks."""
        config = self._config
        self._cluster_arn = get_cluster_arn(config.cluster_name)
        self._execution_role_arn = get_execution_role_arn(config.execution_role_prefix, config.log_group)
        self._task_definition = get_task_definition(
            image_name=config.image,
            port=config.port,
            execution_role_arn=self._execution_role_arn,
            task_definition_prefix=config.task_definition_prefix,
            log_group=config.log_group,
        )
        self._vpc_id, self._subnet_id = get_default_vpc_and_subnet()
        self._security_group_id = get_security_group(
            self._vpc_id, config.port, config.security_group_prefix, config.allowed_cidr
        )
        self._container_name = get_container_name(config.image)

    def _begin_server(self, effort: Effort) -> RemoteRuntimeConfig:
        from swerex_c.runtime.config import RemoteRuntimeConfig

        self._has_ended = False
        with checking(effort.check):
            self._hooks.on_custom_step("Preparing AWS")
            self._when_roles_are_known(effort, self._init_aws)
            self._container_name = self._get_container_name()
            self.logger.info(f"Starting runtime with container name {self._container_name}")
            token = self._get_token()
            self._hooks.on_custom_step("Starting task")
            self._when_roles_are_known(effort, lambda: self._run_task(token))
            self.logger.info(f"Container task submitted: {self._task_arn} - waiting for it to start...")
            self._tell_log()
            began = time.monotonic()
            address = self._wait_for_address(effort)
            self.logger.info(f"Fargate container started in {time.monotonic() - began:.2f}s")
        self.logger.info(f"Container public IP: {address}")
        config = self._config
        return RemoteRuntimeConfig(
            host=f"http://{address}", port=config.port, auth_token=token, timeout=config.runtime_timeout
        )

    def _when_roles_are_known(self, effort: Effort, work: Any) -> None:
        """Do something again as long as ECS does not know a role that was just made."""
        deadline = time.monotonic() + _AGREE_SECONDS
        while True:
            try:
                work()
                return
            except AwsError as error:
                if "unable to assume" not in str(error).lower() or time.monotonic() > deadline:
                    raise
                self.logger.debug("%s. It is tried again", error)
            _pause(effort, 2.0)

    def _run_task(self, token: str) -> None:
        """Have the task run. If the answer is lost, `_end` finds it by the word in `_asked`."""
        own = not self._overrides("_get_command")
        self._settled = settled = threading.Event()
        self._asked = f"swerex-c-{uuid.uuid4()}"
        try:
            self._task_arn = run_fargate_task(
                command=self._own_command() if own else self._get_command(token=token),
                name=str(self._container_name),
                task_definition_arn=(self._task_definition or {})["taskDefinitionArn"],
                subnet_id=str(self._subnet_id),
                security_group_id=str(self._security_group_id),
                cluster_arn=str(self._cluster_arn),
                started_by=self._asked,
                environment={VARIABLE: token} if own else None,
                **self._config.fargate_args,
            )
            self._asked = None
        except AwsError as error:
            if not error.may_be_done:
                self._asked = None
            raise
        finally:
            settled.set()

    def _tell_log(self) -> None:
        if not self._config.log_group:
            return
        try:
            url = get_cloudwatch_log_url(
                task_arn=str(self._task_arn),
                task_definition=self._task_definition or {},
                container_name=str(self._container_name),
            )
            self.logger.info(f"Monitor logs at: {url}")
        except Exception as error:  # a definition of a subclass's own
            self.logger.warning(f"Failed to get CloudWatch Logs URL: {error}")

    def _wait_for_address(self, effort: Effort) -> str:
        """Wait until the task runs and has an address, which it may get later."""
        cluster, arn = str(self._cluster_arn), str(self._task_arn)
        status, running = None, None
        while True:
            task = tasks.look(cluster, arn) or {}
            if why := tasks.why_ended(task, self._config.container_timeout):
                self._has_ended = True
                raise DeploymentStartupError(f"The task does not run. {why}.{self._shown_output()}")
            if (now := task.get("lastStatus", status)) != status:
                status = now
                self.logger.debug("The task is %s", status)
            if status == "RUNNING":
                if address := find_public_ip(task):
                    return address
                running = running or time.monotonic()
                if time.monotonic() - running > _AGREE_SECONDS:
                    raise DeploymentStartupError(
                        f"The task runs, and got no public address in {_AGREE_SECONDS:g} seconds: is the subnet "
                        f"{self._subnet_id} one that has any?"
                    )
            _pause(effort, _POLL_SECONDS)

    # Running and ending

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the server answers, within `timeout` seconds.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
            PlaceLostError: if the task has ended, with the reason.
        """
        began = time.monotonic()
        asking = asyncio.ensure_future(self.runtime.is_alive(timeout=timeout))
        asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())  # which may be nobody's to raise
        try:
            await asyncio.wait({asking}, timeout=_ANSWER_SECONDS)
            if asking.done() and (answer := asking.result()):
                return answer
            # Packets to the address of a task that has ended are lost: that takes all the time there is.
            left = _LOOK_SECONDS if timeout is None else max(0.1, timeout - (time.monotonic() - began))
            why = None
            with contextlib.suppress(TimeoutError):
                why = await asyncio.wait_for(in_thread(self._why_ended, left), left)
            if why is not None:
                raise PlaceLostError(f"Container process not running: {why}")
            return await asking
        finally:
            asking.cancel()

    def _why_ended(self, timeout: float) -> str | None:
        arn, now = self._task_arn, time.monotonic()
        if arn is None or (not self._ready and now < self._next_look):
            return None
        self._next_look = now + _LOOK_EVERY_SECONDS
        try:
            with checking(_until(now + timeout)):
                task = tasks.look(str(self._cluster_arn), arn)
        except AwsError as error:
            self.logger.debug("%s", error)
            return None
        if task is None:
            return f"The task {arn.split('/')[-1]} is not known to ECS any more"
        why = tasks.why_ended(task, self._config.container_timeout)
        if why is not None:
            self._has_ended = True
            why += "." + self._shown_output()
        return why

    def _shown_output(self) -> str:
        """What the container has printed, to be added to a sentence. Blocks."""
        text = ""
        with contextlib.suppress(AwsError, TimeoutError):
            with checking(_until(time.monotonic() + _LOOK_SECONDS)):
                text = self._server_output(_LOOK_SECONDS)
        return f"\nThe end of its output:\n{text}" if text else ""

    def _server_output(self, timeout: float) -> str:
        group, arn = self._config.log_group, self._task_arn
        if not group or arn is None:
            return ""
        with checking(_until(time.monotonic() + timeout)):
            return tasks.output(group, str(self._container_name), arn)

    def _close_seconds(self) -> float:
        return 0.5 if self._has_ended else super()._close_seconds()

    def _has_begun(self) -> bool:
        # A subclass with a `start` of its own sets this.
        return self._began or self._task_arn is not None

    def _end(self) -> None:
        if self._settled is not None:
            self._settled.wait(_SETTLE_SECONDS)
        cluster, arn, asked = self._cluster_arn, self._task_arn, self._asked
        with checking(_until(time.monotonic() + _END_SECONDS)):
            for each in [arn] if arn is not None else self._unsure(cluster, asked):
                self._stop_task(str(cluster), each)
        self._task_arn = self._asked = self._container_name = self._settled = None

    def _unsure(self, cluster: str | None, asked: str | None) -> list[str]:
        """The tasks that may have been run, though there was no answer."""
        if cluster is None or asked is None:
            return []
        deadline = time.monotonic() + _UNSURE_SECONDS
        try:
            while not (found := tasks.started_by(cluster, asked)) and time.monotonic() < deadline:
                time.sleep(0.5)
            return found
        except (AwsError, TimeoutError) as error:
            self.logger.warning(
                f"A task may have been run, and it cannot be learned whether it was: {error}. It ends after "
                f"{self._config.container_timeout:g} seconds; `aws ecs list-tasks --cluster {cluster} --started-by "
                f"{asked}` finds it"
            )
            return []

    def _stop_task(self, cluster: str, arn: str) -> None:
        try:
            tasks.stop(cluster, arn)
        except (AwsError, TimeoutError) as error:
            self.logger.warning(
                f"{error}. It ends after {self._config.container_timeout:g} seconds; `aws ecs stop-task --cluster "
                f"{cluster} --task {arn}` ends it sooner"
            )


def _pause(effort: Effort, seconds: float) -> None:
    """Wait, unless the start is given up meanwhile, or its time is over."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        effort.check()
        time.sleep(min(left, 0.1))


def _until(deadline: float) -> Any:
    """What to call before a request that must not be sent any more after a moment."""

    def check() -> None:
        if time.monotonic() > deadline:
            raise TimeoutError("AWS does not answer in time")

    return check

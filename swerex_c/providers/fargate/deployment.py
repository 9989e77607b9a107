"""Deployment of a server in an AWS Fargate task, reached at its public address.

The network is the only way into such a task: ECS Exec needs a program of AWS on this machine, and another
in the container. This module needs the package boto3, and a region and credentials that boto3 can find.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import shlex
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from swerex_c._version import PACKAGE_NAME, REMOTE_EXECUTABLE_NAME
from swerex_c.exceptions import DeploymentStartupError
from swerex_c.providers.fargate import task as tasks
from swerex_c.providers.fargate.config import FargateDeploymentConfig, FargateKeywords
from swerex_c.providers.sandbox_deployment import State
from swerex_c.providers.server_deployment import ServerDeployment
from swerex_c.remote.server.auth import VARIABLE
from swerex_c.utils.aws import (
    describe_task,
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
from swerex_c.utils.aws_client import AwsError
from swerex_c.utils.load import ConfigSignature
from swerex_c.utils.threads import in_thread, in_thread_to_its_end

if TYPE_CHECKING:
    from swerex_c.runtime.config import RemoteRuntimeConfig

__all__ = ["FargateDeployment", "FargateDeploymentConfig"]

_POLL_SECONDS = 1.0
"""Seconds between checks of a task until it runs and has an address."""

_LOOK_EVERY_SECONDS = 3.0
"""Minimum seconds between checks of a task while its server starts."""

_AGREE_SECONDS = 60.0
"""Maximum seconds until ECS knows a new role, and until a running task has an address."""

_END_SECONDS = 25.0
"""Seconds to find and stop a task."""


class FargateDeployment(ServerDeployment):
    """A deployment of a server in a task on AWS Fargate.

    The server is the image's `swerex-remote`, or else one from the network. Its key is in the task's environment, which
    is visible to everyone with permission to describe tasks of the account. The connection is not encrypted. By default
    the whole internet can connect; `allowed_cidr` limits that.
    """

    _config: FargateDeploymentConfig
    _ends_sandbox = True

    __signature__ = ConfigSignature("swerex_c.providers.fargate.config:FargateDeploymentConfig")

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Unpack[FargateKeywords]):
        """Take the fields of `FargateDeploymentConfig` as keyword arguments."""
        super().__init__(logger=logger)
        self._config = FargateDeploymentConfig(**kwargs)
        self._next_look = 0.0
        # None until a start knows them
        self._cluster_arn: str | None = None
        self._execution_role_arn: str | None = None
        self._task_definition: dict[str, Any] | None = None
        self._vpc_id: str | None = None
        self._subnet_id: str | None = None
        self._security_group_id: str | None = None
        self._container_name: str | None = None
        self._task_arn: str | None = None
        self._started_by: str | None = None
        """A word that identifies the task even before its ARN is known."""

    @property
    def container_name(self) -> str | None:
        """Return the container's name within its task, or None if there is no container."""
        return self._container_name

    def _get_container_name(self) -> str:
        return self._container_name or get_container_name(self._config.image)

    def _get_command(self, *, token: str) -> list[str]:
        """Return the arguments of the container's `sh -c`: a time-limited server with this key. Can be overridden.

        By default the key is read from the variable that the container has it in, and that sessions lack.
        """
        arguments = f'--port {self._config.port} --auth-token "$key"'
        # Not `server || install`: a server that has run and failed must not be followed by another.
        inner = (
            f"key=${VARIABLE}; unset {VARIABLE}; "
            f"if command -v {REMOTE_EXECUTABLE_NAME} >/dev/null; then {REMOTE_EXECUTABLE_NAME} {arguments}; "
            "else (command -v pipx >/dev/null || "
            "(apt-get update -y && DEBIAN_FRONTEND=noninteractive apt-get install pipx -y) || "
            "python3 -m pip install pipx) && "
            f"$(command -v pipx || echo python3 -m pipx) run {PACKAGE_NAME} {arguments}; fi"
        )
        # The timeout includes the installation, so that it limits the cost of a task that is never stopped.
        return [f"timeout {max(1, math.ceil(self._config.container_timeout))}s bash -c {shlex.quote(inner)}"]

    # Starting

    def _init_aws(self) -> None:
        """Find or create the resources that a task needs. Blocks."""
        try:
            self._get_resources(self._config)
        except ValueError as error:
            raise DeploymentStartupError(f"The task cannot be prepared: {error}") from error

    def _get_resources(self, config: FargateDeploymentConfig) -> None:
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

    async def _start_server(self) -> RemoteRuntimeConfig:
        from swerex_c.runtime.config import RemoteRuntimeConfig

        await self._step("Preparing AWS")
        await self._when_roles_are_known(self._init_aws)
        self._container_name = await in_thread_to_its_end(self._get_container_name)
        self.logger.info(f"Starting runtime with container name {self._container_name}")
        token = await in_thread_to_its_end(self._get_token)
        await self._step("Starting task")
        self._started_by = f"swerex-c-{uuid.uuid4()}"
        await self._when_roles_are_known(self._run_task, token)
        self.logger.info(f"Container task submitted: {self._task_arn} - waiting for it to start...")
        self._tell_log()
        began = time.monotonic()
        address = await self._wait_for_address()
        self.logger.info(f"Fargate container started in {time.monotonic() - began:.2f}s")
        self.logger.info(f"Container public IP: {address}")
        config = self._config
        return RemoteRuntimeConfig(
            host=f"http://{address}", port=config.port, auth_token=token, timeout=config.runtime_timeout
        )

    async def _when_roles_are_known(self, work: Callable[..., None], *args: str) -> None:
        """Call `work` in a thread, and retry it while ECS does not know a role that was just created."""
        deadline = time.monotonic() + _AGREE_SECONDS
        while True:
            try:
                return await in_thread_to_its_end(work, *args)
            except AwsError as error:
                if "unable to assume" not in str(error).lower() or time.monotonic() > deadline:
                    raise
                self.logger.debug("%s. Trying again", error)
            await asyncio.sleep(2.0)

    def _run_task(self, token: str) -> None:
        """Run the task. If the response is lost, `_end_sandbox` finds the task by `_started_by`."""
        command, definition, subnet = self._get_command(token=token), self._task_definition, self._subnet_id
        assert definition and subnet and self._security_group_id and self._container_name and self._cluster_arn
        try:
            self._task_arn = run_fargate_task(
                command=command,
                name=self._container_name,
                task_definition_arn=definition["taskDefinitionArn"],
                subnet_id=subnet,
                security_group_id=self._security_group_id,
                cluster_arn=self._cluster_arn,
                started_by=self._started_by,
                environment={VARIABLE: token},
                **self._config.fargate_args,
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise DeploymentStartupError(f"The task cannot be run with these fargate_args: {error}") from error

    def _tell_log(self) -> None:
        # There may be no log, and a subclass may have its own task definition.
        with contextlib.suppress(Exception):
            assert self._task_arn and self._task_definition and self._container_name
            url = get_cloudwatch_log_url(self._task_arn, self._task_definition, self._container_name)
            self.logger.info(f"Monitor logs at: {url}")

    async def _wait_for_address(self) -> str:
        """Wait until the task runs and has a public address, which it may get later; return the address."""
        running, cluster, arn = None, self._cluster_arn, self._task_arn
        assert cluster and arn
        while True:
            task = await in_thread(describe_task, cluster, arn) or {}
            if why := await self._end_of(task):
                raise DeploymentStartupError(f"The task is not running. {why}")
            if task.get("lastStatus") == "RUNNING":
                if address := await in_thread(find_public_ip, task):
                    return address
                running = running or time.monotonic()
                if time.monotonic() - running > _AGREE_SECONDS:
                    raise DeploymentStartupError(
                        f"The task got no public address within {_AGREE_SECONDS:g} seconds: check that the "
                        f"subnet {self._subnet_id} assigns them"
                    )
            await asyncio.sleep(_POLL_SECONDS)

    # Running and ending

    async def _why_ended(self) -> str | None:
        now, cluster, arn = time.monotonic(), self._cluster_arn, self._task_arn
        if cluster is None or arn is None or (self._state is not State.STARTED and now < self._next_look):
            return None
        self._next_look = now + _LOOK_EVERY_SECONDS
        try:
            task = await in_thread(describe_task, cluster, arn)
        except AwsError as error:
            self.logger.debug("%s", error)
            return None
        if task is None:
            return f"The task {arn} is no longer known to ECS"
        return await self._end_of(task)

    async def _end_of(self, task: dict[str, Any]) -> str | None:
        """Return why a task has ended, with the end of its container's output; None if it has not."""
        why = tasks.why_ended(task, self._config.container_timeout)
        if why is None:
            return None
        text = ""
        with contextlib.suppress(AwsError):
            text = await self._server_output()
        return f"{why}." + (f"\nThe end of its output:\n{text}" if text else "")

    async def _server_output(self) -> str:
        group, container, arn = self._config.log_group, self._container_name, self._task_arn
        if not group or container is None or arn is None:  # a stop may have forgotten it meanwhile
            return ""
        return await in_thread(tasks.output, group, container, arn)

    def _has_begun(self) -> bool:
        # A subclass with its own `start` sets `_task_arn`.
        return super()._has_begun() or self._task_arn is not None

    async def _end_sandbox(self) -> None:
        cluster, arn, word = self._cluster_arn, self._task_arn, self._started_by
        self._task_arn = self._started_by = self._container_name = None
        if cluster is None or (arn is None and word is None):
            return
        try:
            async with asyncio.timeout(_END_SECONDS):
                await in_thread(tasks.stop, cluster, arn, word)
        except (AwsError, TimeoutError) as error:
            command = f"stop-task --cluster {cluster} --task {arn}` ends it sooner"
            if arn is None:
                command = f"list-tasks --cluster {cluster} --started-by {word}` finds it"
            self.logger.warning(
                f"{error or 'AWS does not answer in time'}. If the task runs, it ends after "
                f"{self._config.container_timeout:g} seconds; `aws ecs {command}"
            )

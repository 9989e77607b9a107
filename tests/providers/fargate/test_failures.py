"""Fargate when it fails, is too slow, or is given up: each cause is told in a sentence, and nothing is left running."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from swerex_c.deployment.fargate import FargateDeployment
from swerex_c.exceptions import DeploymentStartupError, StartupTimeoutError
from swerex_c.providers.fargate import deployment as fargate
from tests.support.aws_fixtures import Answer, World, aws, deployment, failed_task, json_error, xml_error
from tests.support.wait import DEADLINE, settle, until_async

__all__ = ["aws"]

_JSON = "application/x-amz-json-1.1"


def nothing_is_left(aws: World, place: FargateDeployment) -> None:
    assert aws.wants() == [] and aws.processes() == []
    assert place._task_arn is None and place._runtime is None and place.container_name is None


async def fails(aws: World, place: FargateDeployment, says: str) -> BaseException:
    with pytest.raises(DeploymentStartupError, match=says) as caught:
        await asyncio.wait_for(place.start(), 90)
    assert type(caught.value) is DeploymentStartupError
    nothing_is_left(aws, place)
    await place.stop()
    return caught.value


# What AWS refuses


def refuses(operation: str, answer: Answer) -> Callable[[World, pytest.MonkeyPatch], None]:
    def prepare(aws: World, _: pytest.MonkeyPatch) -> None:
        aws.instead[operation] = lambda _: answer

    return prepare


def unplaced(reason: str) -> Callable[[World, pytest.MonkeyPatch], None]:
    body = f'{{"tasks": [], "failures": [{{"arn": "arn:x", "reason": "{reason}"}}]}}'
    return refuses("ecs.RunTask", (200, _JSON, body.encode()))


def variables(**changes: str | None) -> Callable[[World, pytest.MonkeyPatch], None]:
    """Set and, with None, remove variables of the environment."""

    def prepare(_: World, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in changes.items():
            monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)

    return prepare


def without_subnets(aws: World, _: pytest.MonkeyPatch) -> None:
    ec2 = aws.client("ec2")
    for subnet in ec2.describe_subnets()["Subnets"]:
        ec2.delete_subnet(SubnetId=subnet["SubnetId"])


def without_vpc(aws: World, patch: pytest.MonkeyPatch) -> None:
    (vpc,) = aws.client("ec2").describe_vpcs(Filters=[{"Name": "isDefault", "Values": ["true"]}])["Vpcs"]
    without_subnets(aws, patch)
    aws.client("ec2").delete_vpc(VpcId=vpc["VpcId"])


def without_address(aws: World, monkeypatch: pytest.MonkeyPatch) -> None:
    aws.address_after = 1_000_000
    monkeypatch.setattr(fargate, "_AGREE_SECONDS", 0.5)


def failing(step: dict[str, Any]) -> Callable[[World, pytest.MonkeyPatch], None]:
    def prepare(aws: World, _: pytest.MonkeyPatch) -> None:
        aws.steps = ["PROVISIONING", "PENDING", step]

    return prepare


PULL = "CannotPullContainerError: pull image manifest has been retried 1 time(s): image: not found"
LOST = "ResourceInitializationError: unable to pull secrets or registry auth"
KILLED = "OutOfMemoryError: Container killed due to memory usage"
FORBIDDEN = "User: arn:aws:iam::1:user/x is not authorized to perform: ecs:RunTask"

REFUSALS: dict[str, tuple[Callable[[World, pytest.MonkeyPatch], None], str]] = {
    "credentials": (variables(AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None), "Unable to locate .*; set the var"),
    "half": (variables(AWS_SECRET_ACCESS_KEY=None), "missing: AWS_SECRET_ACCESS_KEY; set the variables"),
    "profile": (variables(AWS_PROFILE="nobody"), r"The config profile \(nobody\) could not be found; set .*PROFILE"),
    "region": (variables(AWS_DEFAULT_REGION=None), "You must specify a region; set the variable AWS_DEFAULT_REGION"),
    "vpc": (without_vpc, "No default VPC found in the region eu-central-1"),
    "subnets": (without_subnets, "No subnets found in the default VPC vpc-"),
    "network": (variables(AWS_ENDPOINT_URL="http://127.0.0.1:1"), "cluster swe-rex-cluster: Could not connect"),
    "token": (
        refuses("ecs.CreateCluster", json_error("ExpiredTokenException", "The token is expired")),
        r"\(ExpiredTokenException\) .*: The token is expired; set the variables",
    ),
    "forbidden": (
        refuses("ecs.RunTask", json_error("AccessDeniedException", FORBIDDEN)),
        r"\(AccessDeniedException\) .* User: .*ecs:RunTask",
    ),
    "role": (
        refuses("iam.GetRole", xml_error("AccessDenied", "not authorized to perform: iam:GetRole", 403)),
        "cannot get or create the role swe-rex-execution-role-.*not authorized to perform: iam:GetRole",
    ),
    "group": (
        refuses("ec2.CreateSecurityGroup", xml_error("SecurityGroupLimitExceeded", "The maximum is reached.")),
        "cannot get or create the security group .*SecurityGroupLimitExceeded.* The maximum is reached",
    ),
    "often": (
        refuses("ecs.RunTask", json_error("ThrottlingException", "Rate exceeded")),
        "cannot run a task .*ThrottlingException.*reached max retries: 2.*Rate exceeded",
    ),
    "page": (refuses("ecs.CreateCluster", (503, "text/html", b"<h1>proxy</h1>" * 1000)), "cannot get or create the cl"),
    "cpu": (unplaced("RESOURCE:CPU"), "the task was not placed: RESOURCE:CPU"),
    "capacity": (unplaced("Capacity is unavailable at this time"), "not placed: Capacity is unavailable at this time"),
    "address": (without_address, "got no public address within 0.5 seconds: check that the subnet subnet-"),
    "pull": (
        failing(failed_task(PULL)),
        "The task is not running. The task [0-9a-f-]+ is STOPPED: CannotPullContainerError: pull",
    ),
    "container": (failing(failed_task("Task failed to start", PULL)), "to start; CannotPullContainerError: pull"),
    "lost": (failing(failed_task(LOST)), LOST),
    "memory": (
        failing(failed_task("Essential container in task exited", KILLED, 137, "EssentialContainerExited")),
        "exited; OutOfMemoryError: .*; the container's exit code is 137",
    ),
    "code": (failing(failed_task("")), "is STOPPED: TaskFailedToStart"),
    "soon": (
        failing({"lastStatus": "DEPROVISIONING", "desiredStatus": "STOPPED", "stoppedReason": PULL}),
        "is DEPROVISIONING: CannotPullContainerError",
    ),
}


@pytest.mark.parametrize("cause", REFUSALS)
async def test_a_refused_start_has_its_reason(aws: World, monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
    prepare, says = REFUSALS[cause]
    prepare(aws, monkeypatch)
    place = deployment()
    error = await fails(aws, place, says)
    assert len(str(error)) < 1500 and "\n" not in str(error)


async def test_an_invalid_argument_is_named(aws: World) -> None:
    await fails(aws, deployment(fargate_args={"taskRole": "x"}), 'Unknown parameter in overrides: "taskRole"')
    await fails(aws, deployment(fargate_args={"ephemeral_storage": math.inf}), "cannot be run with these fargate_args")
    await fails(aws, deployment(execution_role_prefix="x" * 60), "cannot be prepared: Prefix and hash .* are too long")
    place = deployment()
    with mock.patch.object(place, "_get_command", side_effect=ValueError), pytest.raises(ValueError, match="^$"):
        await place.start()
    nothing_is_left(aws, place)


# Tasks that do not run


class Other(FargateDeployment):
    """Has another command in the container, and little time from a point on, however long it took to come there."""

    command = "sleep 60"
    hurries = ""

    def _get_command(self, *, token: str) -> list[str]:
        return [self.command]

    async def _wait_for_address(self) -> str:
        if self.hurries == "task":
            self._limit_start(1)
        return await super()._wait_for_address()

    async def _wait_until_alive(self, timeout: float = 10.0) -> None:
        await super()._wait_until_alive(1 if self.hurries == "server" else timeout)


async def test_a_failed_start_has_the_end_of_the_output(aws: World) -> None:
    place = deployment(Other)
    place.command = (  # type: ignore[attr-defined]
        "printf '%200000d\\n' 1; echo this image has no server; echo and says so >&2; exit 7"
    )
    said = r"exit code is 7\.\nThe end of its output:\n +1\nthis image has no server\nand says so"
    error = await fails(aws, place, said)
    assert len(str(error)) < 30_000


# What is asked for again

UNASSUMED = "ECS was unable to assume the role 'arn:aws:iam::1:role/x' that was provided for this task."
UNLINKED = "Unable to assume the service linked role. Please verify that the ECS service linked role exists."
MISSING = (200, _JSON, b'{"tasks": [], "failures": [{"reason": "MISSING"}]}')


@pytest.mark.parametrize(
    ("operation", "times", "answer"),
    [
        ("ecs.DescribeTasks", 3, MISSING),
        ("ecs.RunTask", 1, json_error("ClientException", UNASSUMED)),
        ("ecs.CreateCluster", 1, json_error("ClientException", UNLINKED)),
    ],
)
async def test_eventual_consistency_is_waited_for(aws: World, operation: str, times: int, answer: Answer) -> None:
    answers = [answer] * times
    aws.instead[operation] = lambda _: answers.pop() if answers else None
    async with deployment():
        assert not answers and aws.calls.count(operation) > times


@pytest.mark.parametrize(
    ("answer", "times", "says"),
    [
        (None, 1, ""),
        (None, 3, "closed before we received a valid response"),
        ((200, _JSON, b"<html>"), 1, "cannot run a task"),
    ],
)
async def test_a_lost_answer_leaves_no_task(aws: World, answer: Answer | None, times: int, says: str) -> None:
    """Either the task is the one that a repeated request has run, or it is found and stopped."""
    answers = [answer] * times
    aws.after["ecs.RunTask"] = lambda gave: answers.pop() if answers else gave
    place = deployment()
    if says:
        await fails(aws, place, says)
    else:
        await place.start()
        assert len(aws.wants()) == 1
        await place.stop()
    assert len(aws.tasks) == 1 and not answers and aws.calls.count("ecs.StopTask") == 1


async def test_a_task_that_cannot_be_stopped_is_named(aws: World, caplog: pytest.LogCaptureFixture) -> None:
    place = deployment(container_timeout=60)
    await place.start()
    arn = place._task_arn
    aws.instead["ecs.StopTask"] = lambda _: json_error("AccessDeniedException", "not authorized")
    place.logger = logging.getLogger("tests.fargate")
    await place.stop()
    assert f"aws ecs stop-task --cluster {place._cluster_arn} --task {arn}` ends it sooner" in caplog.text
    assert "ends after 60 seconds" in caplog.text
    await place.stop()


# Time


@pytest.mark.parametrize(
    ("slow", "words"),
    [("task", r"did not start within 1 seconds \(startup_timeout\)"), ("server", "Runtime did not start within 1s")],
)
async def test_a_slow_start_times_out(aws: World, slow: str, words: str) -> None:
    if slow == "task":
        aws.steps = ["PROVISIONING"] * 100_000
    place = deployment(Other)
    place.hurries = slow  # type: ignore[attr-defined]
    with pytest.raises(StartupTimeoutError, match=words):
        await place.start()
    assert len(aws.tasks) == 1
    nothing_is_left(aws, place)


# Starts that are given up

STAGES = [
    "ecs.CreateCluster",
    "iam.GetRole",
    "iam.CreateRole",
    "iam.AttachRolePolicy",
    "ecs.DescribeTaskDefinition",
    "ecs.RegisterTaskDefinition",
    "ec2.DescribeVpcs",
    "ec2.CreateSecurityGroup",
    "ec2.AuthorizeSecurityGroupIngress",
    "ecs.RunTask",
    "ecs.DescribeTasks",
    "ec2.DescribeNetworkInterfaces",
    "server",
]
"""Requests, and the wait for a server, which never answers here."""


@pytest.mark.parametrize("stage", STAGES)
async def test_a_cancelled_start_leaves_no_task(aws: World, stage: str) -> None:
    """While AWS answers one request, when it has done what was asked and has not said so; and then."""
    there, go_on = threading.Event(), threading.Event()

    def hold(answer: Answer) -> Answer:
        there.set()
        go_on.wait(DEADLINE)
        return answer

    aws.after[stage] = hold
    place = deployment(Other if stage == "server" else FargateDeployment)
    starting = asyncio.ensure_future(place.start())
    await until_async(lambda: there.is_set() or place._runtime)
    starting.cancel()
    await settle()  # it is under way
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(starting, DEADLINE)
    nothing_is_left(aws, place)
    assert len(aws.tasks) == (STAGES.index(stage) >= STAGES.index("ecs.RunTask"))
    assert aws.calls.count("ecs.StopTask") == len(aws.tasks)
    if stage in ("iam.CreateRole", "ec2.CreateSecurityGroup"):  # which left something that is half made
        del aws.after[stage]
        await place.start()
        await place.stop()

"""Fargate when it fails, is too slow, or is given up: each cause is told in a sentence, and nothing is left running."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from swerex_c.deployment import fargate
from swerex_c.deployment.fargate import FargateDeployment
from swerex_c.exceptions import DeploymentStartupError, RuntimeClosedError, StartupTimeoutError
from swerex_c.providers.fargate import task
from swerex_c.utils.free_port import find_free_port
from tests.support.aws_fixtures import Answer, World, aws, failed_task, json_error, xml_error
from tests.support.wait import settle, until_async

__all__ = ["aws"]

_JSON = "application/x-amz-json-1.1"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of the tests change their state when they are looked at, and not with the time; and few tries are many."""
    monkeypatch.setattr(fargate, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(fargate, "_AGREE_SECONDS", 8.0)
    monkeypatch.setattr(task, "_FIND_SECONDS", 0.5)


def deployment(**fields: Any) -> FargateDeployment:
    return FargateDeployment(image="image", port=find_free_port(), **fields)


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


def without_vpc(aws: World, _: pytest.MonkeyPatch) -> None:
    ec2 = aws.client("ec2")
    (vpc,) = ec2.describe_vpcs(Filters=[{"Name": "isDefault", "Values": ["true"]}])["Vpcs"]
    for subnet in ec2.describe_subnets()["Subnets"]:
        ec2.delete_subnet(SubnetId=subnet["SubnetId"])
    ec2.delete_vpc(VpcId=vpc["VpcId"])


def without_subnets(aws: World, _: pytest.MonkeyPatch) -> None:
    ec2 = aws.client("ec2")
    for subnet in ec2.describe_subnets()["Subnets"]:
        ec2.delete_subnet(SubnetId=subnet["SubnetId"])


def without_address(aws: World, _: pytest.MonkeyPatch) -> None:
    aws.address_after = 1_000_000


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
    "address": (without_address, "got no public address within 8 seconds: check that the subnet subnet-"),
}


@pytest.mark.parametrize("cause", REFUSALS)
async def test_why_aws_does_not_start_it(aws: World, monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
    prepare, says = REFUSALS[cause]
    prepare(aws, monkeypatch)
    place = deployment()
    error = await fails(aws, place, says)
    assert len(str(error)) < 1500 and "\n" not in str(error)


async def test_an_argument_that_cannot_be_is_named(aws: World) -> None:
    await fails(aws, deployment(fargate_args={"taskRole": "x"}), 'Unknown parameter in overrides: "taskRole"')


# Tasks that do not run

PULL = "CannotPullContainerError: pull image manifest has been retried 1 time(s): image: not found"
LOST = "ResourceInitializationError: unable to pull secrets or registry auth"
KILLED = "OutOfMemoryError: Container killed due to memory usage"


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (failed_task(PULL), "The task is not running. The task [0-9a-f-]+ is STOPPED: CannotPullContainerError: pull"),
        (failed_task("Task failed to start", PULL), "Task failed to start; CannotPullContainerError: pull"),
        (failed_task(LOST), LOST),
        (
            failed_task("Essential container in task exited", KILLED, 137, "EssentialContainerExited"),
            "exited; OutOfMemoryError: .*; the container's exit code is 137",
        ),
        (failed_task(""), "is STOPPED: TaskFailedToStart"),
        (
            {"lastStatus": "DEPROVISIONING", "desiredStatus": "STOPPED", "stoppedReason": PULL},
            "is DEPROVISIONING: CannotPullContainerError",
        ),
    ],
)
async def test_why_the_task_does_not_run(aws: World, step: dict[str, Any], says: str) -> None:
    aws.steps = ["PROVISIONING", "PENDING", step]
    await fails(aws, deployment(), says)


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


async def test_what_the_container_said_is_told(aws: World) -> None:
    place = Other(image="image", port=find_free_port())
    place.command = "echo this image has no server; echo and says so >&2; exit 7"
    says = r"exit code is 7\.\nThe end of its output:\nthis image has no server\nand says so"
    with pytest.raises(DeploymentStartupError, match=says):
        await place.start()
    nothing_is_left(aws, place)


async def test_a_task_that_ecs_does_not_know_yet_is_waited_for(aws: World) -> None:
    left = 3

    def missing(_: dict[str, Any]) -> Answer | None:
        nonlocal left
        left -= 1
        return (200, _JSON, b'{"tasks": [], "failures": [{"reason": "MISSING"}]}') if left >= 0 else None

    aws.instead["ecs.DescribeTasks"] = missing
    place = deployment()
    await place.start()
    assert left < 0
    await place.stop()


@pytest.mark.parametrize(
    "message",
    [
        "ECS was unable to assume the role 'arn:aws:iam::1:role/x' that was provided for this task.",
        "Unable to assume the service linked role. Please verify that the ECS service linked role exists.",
    ],
)
async def test_a_role_that_is_not_known_yet_is_waited_for(aws: World, message: str) -> None:
    left = 1
    operation = "ecs.CreateCluster" if "linked" in message else "ecs.RunTask"

    def refuse(_: dict[str, Any]) -> Answer | None:
        nonlocal left
        left -= 1
        return json_error("ClientException", message) if left >= 0 else None

    aws.instead[operation] = refuse
    place = deployment()
    await place.start()
    assert aws.calls.count(operation) == 2
    await place.stop()


async def test_what_is_throttled_is_asked_again(aws: World) -> None:
    refused: set[str] = set()

    class Once(dict[str, Any]):
        def get(self, operation: str, default: Any = None) -> Any:
            if operation in refused:
                return default
            refused.add(operation)
            if operation.startswith("ecs."):
                return lambda _: json_error("ThrottlingException", "Rate exceeded")
            code = "RequestLimitExceeded" if operation.startswith("ec2.") else "Throttling"
            return lambda _: xml_error(code, "Rate exceeded", 503)

    aws.instead = Once()
    place = deployment()
    await place.start()
    assert refused >= {"ecs.RunTask", "ec2.CreateSecurityGroup", "iam.CreateRole", "ecs.DescribeTasks"}
    assert len(aws.wants()) == 1
    await place.stop()
    nothing_is_left(aws, place)


async def test_an_answer_that_is_lost_runs_no_second_task(aws: World) -> None:
    lost = 1

    def lose(answer: Answer) -> Answer | None:
        nonlocal lost
        lost -= 1
        return None if lost >= 0 else answer

    aws.after["ecs.RunTask"] = lose
    place = deployment()
    await place.start()
    assert aws.calls.count("ecs.RunTask") == 2 and len(aws.wants()) == len(aws.tasks) == 1
    await place.stop()


@pytest.mark.parametrize(
    ("answer", "says"),
    [(None, "closed before we received a valid response"), ((200, _JSON, b"<html>"), "cannot run a task")],
)
async def test_a_task_whose_answer_is_lost_or_no_answer_is_found_and_stopped(
    aws: World, answer: Answer | None, says: str
) -> None:
    aws.after["ecs.RunTask"] = lambda _: answer
    await fails(aws, deployment(), says)
    assert len(aws.tasks) == 1 and aws.calls.count("ecs.StopTask") == 1


async def test_a_task_that_cannot_be_stopped_is_named(aws: World, caplog: pytest.LogCaptureFixture) -> None:
    place = deployment(container_timeout=60)
    await place.start()
    arn = place._task_arn
    aws.instead["ecs.StopTask"] = lambda _: json_error("AccessDeniedException", "not authorized")
    import logging

    place.logger = logging.getLogger("tests.fargate")
    await place.stop()
    assert f"aws ecs stop-task --cluster {place._cluster_arn} --task {arn}` ends it sooner" in caplog.text
    assert "ends after 60 seconds" in caplog.text
    await place.stop()


# Time


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        ("task", r"did not start within 1 seconds \(startup_timeout\)"),
        ("server", "Runtime did not start within 1s"),
    ],
)
async def test_what_is_too_slow(aws: World, slow: str, words: str) -> None:
    if slow == "task":
        aws.steps = ["PROVISIONING"] * 100_000
    place = Other(image="image", port=find_free_port())
    place.hurries = slow
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
]


async def given_up(
    aws: World, place: FargateDeployment, stage: str, how: Callable[[asyncio.Task[None]], Coroutine[Any, Any, None]]
) -> asyncio.Task[None]:
    """A start that is given up while AWS answers one request: it has done what was asked, and has not said so."""
    there, go_on = threading.Event(), threading.Event()

    def hold(answer: Answer) -> Answer:
        there.set()
        go_on.wait(60)
        return answer

    aws.after[stage] = hold
    starting = asyncio.ensure_future(place.start())
    await asyncio.to_thread(there.wait, 60)
    assert there.is_set(), "the stage is not reached"
    giving_up = asyncio.ensure_future(how(starting))
    await settle()  # it is under way
    go_on.set()
    await asyncio.wait_for(giving_up, 60)
    with contextlib.suppress(BaseException):
        await asyncio.wait_for(asyncio.shield(starting), 60)
    assert starting.done()
    return starting


async def cancel(starting: asyncio.Task[None]) -> None:
    starting.cancel()


@pytest.mark.parametrize("stage", STAGES)
async def test_a_cancelled_start_undoes_itself(aws: World, stage: str) -> None:
    place = deployment()
    starting = await given_up(aws, place, stage, cancel)
    assert starting.cancelled()
    nothing_is_left(aws, place)
    assert len(aws.tasks) == (STAGES.index(stage) >= STAGES.index("ecs.RunTask"))
    assert aws.calls.count("ecs.StopTask") == len(aws.tasks)
    if stage in ("iam.CreateRole", "ec2.CreateSecurityGroup", "ecs.RunTask"):  # which left something that is half made
        del aws.after[stage]
        await place.start()
        assert await place.is_alive(timeout=10)
        await place.stop()
        nothing_is_left(aws, place)


@pytest.mark.parametrize("stage", ["iam.CreateRole", "ecs.RunTask", "ecs.DescribeTasks"])
async def test_a_stopped_start_undoes_itself(aws: World, stage: str) -> None:
    place = deployment()

    async def stop(_: asyncio.Task[None]) -> None:
        await place.stop()

    starting = await given_up(aws, place, stage, stop)
    assert isinstance(starting.exception(), RuntimeClosedError)
    nothing_is_left(aws, place)


async def test_cancelled_while_the_server_starts(aws: World) -> None:
    place = Other(image="image", port=find_free_port())
    starting = asyncio.ensure_future(place.start())
    await until_async(lambda: place._runtime)
    assert aws.processes()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(starting, 60)
    nothing_is_left(aws, place)

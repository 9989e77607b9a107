"""Fargate: the real boto3 and the real server, against moto's AWS with tasks that run here."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from swerex_c.deployment.fargate import FargateDeployment
from swerex_c.deployment.hooks.status import SetStatusDeploymentHook
from swerex_c.exceptions import SandboxLostError
from tests.support.aws_fixtures import REGION, Answer, World, aws, boto3, deployment
from tests.support.harness import write_script
from tests.support.targets import Session
from tests.support.wait import DEADLINE, until_dead

__all__ = ["aws"]


async def says(place: FargateDeployment, command: str) -> str:
    """Return the output of a command in a new session."""
    session = Session(place.runtime)
    await session.create()
    return (await session.run(command)).output


async def test_a_task_from_start_to_stop(aws: World, caplog: pytest.LogCaptureFixture) -> None:
    """What is told of it, and where its key is and is not."""
    steps: list[str] = []
    place = deployment()
    place.logger = logging.getLogger("tests.fargate")
    place.add_hook(SetStatusDeploymentHook("a", lambda _, step: steps.append(step)))
    aws.address_after = 2
    with caplog.at_level("INFO", "tests.fargate"):
        await place.start()
    assert steps == ["Preparing AWS", "Starting task", "Starting runtime"]
    assert place.container_name == "registryexampleorgimage1"
    (arn,) = aws.wants()
    assert place._task_arn == arn and place._cluster_arn in aws.client("ecs").list_clusters()["clusterArns"]
    assert place.runtime._speaks_frames, "the frames passed"
    assert place.runtime._config.timeout == 60
    url = f"https://{REGION}.console.aws.amazon.com/cloudwatch/home?region={REGION}#logsV2:log-groups/log-group/"
    stream = f"%2Fecs%2Fswe-rex-deployment/log-events/ecs%2Fregistryexampleorgimage1%2F{arn.split('/')[-1]}"
    assert f"Monitor logs at: {url}{stream}" in caplog.text
    key = place.runtime._config.auth_token
    (task,) = aws.tasks.values()
    assert task.environment == {"SWEREX_AUTH_TOKEN": key}
    assert key not in str(task.command) + caplog.text
    assert key not in await says(place, "env; ps -ef; cat /proc/$PPID/environ /proc/$PPID/cmdline | tr '\\0' '\\n'")

    await place.stop()
    (told,) = aws.client("ecs").describe_tasks(cluster="swe-rex-cluster", tasks=[arn])["tasks"]
    assert (told["lastStatus"], told["stoppedReason"]) == ("STOPPED", "Stopped by its deployment")
    assert place.container_name is None and place._task_arn is None


async def test_arguments_of_the_task(aws: World) -> None:
    arguments = {
        "vcpus": 2,
        "memory": "4096",
        "ephemeral_storage": "30",
        "taskRoleArn": "arn:aws:iam::123456789012:role/x",
    }
    ecs, ec2 = aws.client("ecs"), aws.client("ec2")
    async with deployment(fargate_args=arguments, allowed_cidr="127.0.0.1/8", log_group=None) as place:
        (task,) = ecs.describe_tasks(cluster="swe-rex-cluster", tasks=[str(place._task_arn)])["tasks"]
        assert await says(place, "echo hi") == "hi\n"
        (group,) = ec2.describe_security_groups(GroupIds=[str(place._security_group_id)])["SecurityGroups"]
    overrides = task["overrides"]
    assert (overrides["cpu"], overrides["memory"]) == ("2vCPU", "4096")
    assert overrides["ephemeralStorage"] == {"sizeInGiB": 30}
    assert overrides["taskRoleArn"].endswith("role/x")
    (mine,) = overrides["containerOverrides"]
    assert [each["name"] for each in mine["environment"]] == ["SWEREX_AUTH_TOKEN"]
    assert [each["CidrIp"] for each in group["IpPermissions"][0]["IpRanges"]] == ["127.0.0.0/8"]
    definition = ecs.describe_task_definition(taskDefinition=task["taskDefinitionArn"])["taskDefinition"]
    assert "logConfiguration" not in definition["containerDefinitions"][0]


class Own(FargateDeployment):
    own_subnet = ""

    def _init_aws(self) -> None:
        super()._init_aws()
        self._subnet_id = self.own_subnet

    def _get_token(self) -> str:
        return "own token's $key"

    def _get_command(self, *, token: str) -> list[str]:
        return [f"export OWN=own; {super()._get_command(token=token)[0]}"]


async def test_a_subclass_has_its_own_network_key_and_command(aws: World) -> None:
    place = deployment(Own)
    place.own_subnet = aws.client("ec2").describe_subnets()["Subnets"][-1]["SubnetId"]
    await place.start()
    (task,) = aws.client("ecs").describe_tasks(cluster="swe-rex-cluster", tasks=[str(place._task_arn)])["tasks"]
    details = {each["name"]: each["value"] for each in task["attachments"][0]["details"]}
    assert details["subnetId"] == place._subnet_id
    assert [played.environment for played in aws.tasks.values()] == [{"SWEREX_AUTH_TOKEN": "own token's $key"}]
    assert await says(place, "echo $OWN") == "own\n"
    await place.stop()


async def test_an_image_without_the_server_gets_it_from_the_network(aws: World) -> None:
    commands = Path(aws.path.partition(":")[0])
    server = commands / "swerex-remote"
    server.rename(commands.parent / "elsewhere")
    elsewhere = f"{commands.parent}/elsewhere"  # what the network would give
    write_script(commands / "pipx", f'[ "$1 $2" = "run swe-rex" ] || exit 9\nshift 2\nexec {elsewhere} "$@"')
    aws.path = f"{commands}:/usr/bin:/bin"
    async with deployment() as place:
        assert await says(place, "echo hi") == "hi\n"


def stopped_by_somebody(aws: World, arn: str) -> None:
    boto3.client("ecs").stop_task(cluster="swe-rex-cluster", task=arn, reason="the bill")


def forgotten(aws: World, arn: str) -> None:
    aws.end(arn)
    missing = b'{"tasks": [], "failures": [{"reason": "MISSING"}]}'
    aws.instead["ecs.DescribeTasks"] = lambda _: (200, "application/x-amz-json-1.1", missing)


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (lambda *_: None, "process terminated. .*container_timeout of 15 seconds"),
        (stopped_by_somebody, r"STOPPED: the bill; .*exit code is 143"),
        (forgotten, "no longer known to ECS"),
    ],
)
async def test_the_end_of_a_task_has_its_reason(aws: World, end: Callable[[World, str], object], says: str) -> None:
    async with deployment(container_timeout=15 if "timeout" in says else 900) as place:
        await asyncio.to_thread(end, aws, str(place._task_arn))
        with pytest.raises(SandboxLostError, match=says):
            await until_dead(place, DEADLINE)
        assert aws.processes() == []


async def test_is_alive_while_aws_does_not_answer(aws: World) -> None:
    """And the caller's loop goes on before it answers."""
    loop, turns = asyncio.get_running_loop(), list[bool]()

    def answer_late(_: object) -> Answer:
        turned = threading.Event()
        loop.call_soon_threadsafe(turned.set)
        turns.append(turned.wait(DEADLINE))
        return 500, "text/plain", b""

    async with deployment() as place:
        aws.instead["ecs.DescribeTasks"] = answer_late
        assert await place.is_alive(timeout=5)
        (task,) = aws.processes()
        await asyncio.to_thread(aws.end, task.arn)
        await until_dead(place, 1)
        assert not await place.is_alive(timeout=1)
    assert turns and all(turns)


async def test_a_stop_while_the_end_of_a_task_is_told(aws: World) -> None:
    place, asked, stopped = deployment(), threading.Event(), threading.Event()
    await place.start()
    await asyncio.to_thread(aws.end, str(place._task_arn))

    def hold(answer: Answer) -> Answer:
        asked.set()
        stopped.wait(DEADLINE)
        return answer

    aws.after["ecs.DescribeTasks"] = hold
    asking = asyncio.ensure_future(place.is_alive(timeout=DEADLINE))
    await asyncio.to_thread(asked.wait, DEADLINE)
    await place.stop()
    stopped.set()
    with pytest.raises(SandboxLostError, match="is STOPPED"):
        await asking


@pytest.mark.parametrize("wrong", ["anywhere", "::/0", "1.2.3.4/33"])
def test_invalid_addresses(wrong: str) -> None:
    with pytest.raises(ValueError, match="allowed_cidr"):
        FargateDeployment(image="image", allowed_cidr=wrong)

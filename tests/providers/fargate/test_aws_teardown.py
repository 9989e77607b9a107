"""Deleting what was made for deployments, and nothing else, by the real boto3 against moto."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from swerex_c.utils import aws as utils
from swerex_c.utils import aws_teardown
from tests.support.aws_fixtures import Answer, World, aws, json_error, xml_error

__all__ = ["aws"]

TAGS = [{"Key": "origin", "Value": "swe-rex-deployment-auto"}]


def fill(aws: World) -> None:
    """Leave what two deployments leave that are never stopped, one of them in an existing cluster."""
    aws.steps = ["RUNNING"]
    vpc, subnet = utils.get_default_vpc_and_subnet()
    role = utils.get_execution_role_arn("prefix", "/own/log")
    group = utils.get_security_group(vpc, 81, "prefix")
    definition = utils.get_task_definition("image", 81, role, "prefix", "/own/log")
    theirs = aws.client("ecs").create_cluster(clusterName="theirs")["cluster"]["clusterArn"]
    for cluster in (utils.get_cluster_arn("ours"), theirs):
        arn = definition["taskDefinitionArn"]
        utils.run_fargate_task(["sleep 60"], utils.get_container_name("image"), arn, subnet, group, cluster)


def others(aws: World) -> None:
    """Make the resources of somebody else."""
    tags = [{"Key": "origin", "Value": "x"}]
    aws.client("iam").create_role(RoleName="theirs", AssumeRolePolicyDocument="{}", Tags=tags)
    vpc, _ = utils.get_default_vpc_and_subnet()
    aws.client("ec2").create_security_group(GroupName="theirs", Description="x", VpcId=vpc)
    container = {"name": "x", "image": "x", "memory": 1}
    aws.client("ecs").register_task_definition(family="theirs", containerDefinitions=[container])


def there(aws: World) -> dict[str, list[str]]:
    """Return all resources."""
    ecs, ec2, iam = aws.client("ecs"), aws.client("ec2"), aws.client("iam")
    clusters = []
    for page in ecs.get_paginator("list_clusters").paginate():  # also of those that were deleted
        found = ecs.describe_clusters(clusters=page["clusterArns"])["clusters"] if page["clusterArns"] else []
        clusters += [one["clusterName"] for one in found if one["status"] == "ACTIVE"]
    groups = [group["GroupName"] for group in ec2.describe_security_groups()["SecurityGroups"]]
    return {
        "clusters": sorted(clusters),
        "definitions": sorted(arn.split("/")[-1] for arn in ecs.list_task_definitions()["taskDefinitionArns"]),
        "groups": sorted(name for name in groups if name != "default"),
        "roles": sorted(role["RoleName"] for role in iam.list_roles()["Roles"]),
        "tasks": [arn.split("/")[-2] for arn in aws.wants()],
    }


LEFT = {"clusters": ["theirs"], "definitions": ["theirs:1"], "groups": ["theirs"], "roles": ["theirs"], "tasks": []}


def answers(monkeypatch: pytest.MonkeyPatch, word: str) -> list[str]:
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or word)
    return asked


def test_everything_and_nothing_else(aws: World, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    fill(aws)
    others(aws)
    before = there(aws)
    assert before["tasks"] == ["ours", "theirs"] and len(before["roles"]) == 2

    assert aws_teardown.main(["--dry-run"]) == 0
    told = capsys.readouterr().out
    assert there(aws) == before and "This is a dry run" in told and "region eu-central-1" in told
    titles = {"ECS tasks": 2, "ECS clusters": 1, "task definitions": 1, "security groups": 1, "IAM roles": 1}
    assert {title: told.count(f"[{title}]") for title in titles} == titles

    for word in ("n", ""):
        asked = answers(monkeypatch, word)
        assert aws_teardown.main() == 0
        assert there(aws) == before and len(asked) == 1 and "Do you want to continue?" in asked[0]
        assert "Cleanup cancelled" in capsys.readouterr().out

    asked = answers(monkeypatch, "Y")
    aws.calls.clear()
    assert aws_teardown.main() == 0
    assert there(aws) == LEFT and len(asked) == 1
    order = ["ecs.StopTask", "ecs.DeleteCluster", "ecs.DeregisterTaskDefinition", "ec2.DeleteSecurityGroup"]
    at = [aws.calls.index(each) for each in [*order, "iam.DeleteRole"]]
    assert at == sorted(at)

    assert aws_teardown.main(["--yes"]) == 0, "again"
    assert there(aws) == LEFT and "found to delete" in capsys.readouterr().out


UNLISTED = "cannot list security groups: An error occurred (UnauthorizedOperation)"
FAILURES: list[tuple[str, str, Answer, str]] = [
    ("tasks", "ecs.StopTask", json_error("AccessDeniedException", "no"), "failed: "),
    ("clusters", "ecs.DeleteCluster", json_error("ClusterContainsTasksException", "tasks"), "failed: "),
    ("definitions", "ecs.DeregisterTaskDefinition", json_error("ClientException", "no"), "failed: "),
    ("groups", "ec2.DeleteSecurityGroup", xml_error("DependencyViolation", "in use"), "failed: "),
    ("groups", "ec2.DescribeSecurityGroups", xml_error("UnauthorizedOperation", "no", 403), UNLISTED),
    ("roles", "iam.DeleteRole", xml_error("DeleteConflict", "no", 409), "failed: "),
]


@pytest.mark.parametrize(("kind", "operation", "answer", "words"), FAILURES)
def test_a_failed_deletion_does_not_prevent_others(
    aws: World, capsys: Any, kind: str, operation: str, answer: Answer, words: str
) -> None:
    fill(aws)
    others(aws)
    aws.instead[operation] = lambda _: answer
    assert aws_teardown.main(["--yes"]) == 1
    said = capsys.readouterr().err
    assert words in said and "the others succeeded" in said
    left = there(aws)
    assert left.pop(kind) != LEFT[kind]
    assert left == {name: found for name, found in LEFT.items() if name != kind}
    del aws.instead[operation]
    assert aws_teardown.main(["--yes"]) == 0
    assert there(aws)[kind] == LEFT[kind] or kind == "tasks"  # moto loses the tasks of a cluster that it deletes


def test_a_group_that_is_in_use_for_a_while(aws: World) -> None:
    fill(aws)
    answers = [xml_error("DependencyViolation", "resource has a dependent object")]
    aws.instead["ec2.DeleteSecurityGroup"] = lambda _: answers.pop() if answers else None
    assert aws_teardown.delete_security_groups(ask=False) == 0
    assert there(aws)["groups"] == [] and not answers


def test_resources_that_another_process_deletes_meanwhile(aws: World) -> None:
    fill(aws)
    aws.instead["iam.DeleteRole"] = lambda _: xml_error("NoSuchEntity", "gone", 404)
    aws.instead["ec2.DeleteSecurityGroup"] = lambda _: xml_error("InvalidGroup.NotFound", "gone")
    aws.instead["ecs.DeleteCluster"] = lambda _: json_error("ClusterNotFoundException", "gone")
    assert aws_teardown.main(["--yes"]) == 0


def test_more_than_a_page(aws: World) -> None:
    iam, ecs, ec2 = aws.client("iam"), aws.client("ecs"), aws.client("ec2")
    vpc, _ = utils.get_default_vpc_and_subnet()
    small = [{"key": tag["Key"], "value": tag["Value"]} for tag in TAGS]
    for i in range(105):
        iam.create_role(RoleName=f"role-{i:03}", AssumeRolePolicyDocument="{}", Tags=TAGS)
        ecs.create_cluster(clusterName=f"cluster-{i:03}", tags=small)
        ecs.register_task_definition(
            family=f"family-{i:03}", containerDefinitions=[{"name": "x", "image": "x", "memory": 1}], tags=small
        )
    spec = [{"ResourceType": "security-group", "Tags": TAGS}]
    for i in range(3):
        ec2.create_security_group(GroupName=f"group-{i}", Description="x", VpcId=vpc, TagSpecifications=spec)
    assert aws_teardown.main(["--yes"]) == 0
    assert not any(there(aws).values())


@pytest.mark.parametrize(
    ("delete", "kind"),
    [
        (aws_teardown.delete_ecs_clusters, "clusters"),
        (aws_teardown.delete_task_definitions, "definitions"),
        (aws_teardown.delete_security_groups, "groups"),
        (aws_teardown.delete_iam_roles, "roles"),
    ],
)
def test_each_kind_alone(aws: World, monkeypatch: pytest.MonkeyPatch, delete: Callable[..., int], kind: str) -> None:
    fill(aws)
    others(aws)
    before = there(aws)
    answers(monkeypatch, "n")
    delete()
    delete(dry_run=True)
    assert there(aws) == before
    answers(monkeypatch, "y")
    delete()
    changed = [name for name, found in there(aws).items() if found != before[name]]
    assert changed == (["clusters", "tasks"] if kind == "clusters" else [kind])
    assert there(aws)[kind] == LEFT[kind]


def test_without_credentials(aws: World, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert aws_teardown.main(["--yes"]) == 1
    assert "Unable to locate credentials; set the variables AWS_ACCESS_KEY_ID" in capsys.readouterr().err


def test_without_a_user_nothing_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", nobody)
    assert not aws_teardown.get_confirmation("?")

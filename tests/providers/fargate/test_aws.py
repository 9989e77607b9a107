"""The utilities around AWS, by the real boto3 against moto."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest

from swerex_c.exceptions import SwerexException
from swerex_c.utils import aws as utils
from swerex_c.utils.aws import AwsError
from tests.support.aws_fixtures import REGION, World, aws, json_error

__all__ = ["aws"]

TAG = {"origin": "swe-rex-deployment-auto"}


def tags(found: list[dict[str, str]]) -> dict[str, str]:
    return {each.get("Key", each.get("key", "")): each.get("Value", each.get("value", "")) for each in found}


# Names


def test_names_are_the_original_s() -> None:
    # As 1.4.0 gives them: what it made is found.
    rule = {"IpProtocol": "tcp", "FromPort": 8880, "ToPort": 8880, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    assert utils.get_name_hash("swe-rex-deployment-sg", rule, max_length=255) == "swe-rex-deployment-sg-b9ccad2f016f"
    assert utils.get_container_name("public.ecr.aws/v0/test-repo_1:latest") == "publicecrawsv0test-repo_1latest"
    assert utils.get_container_name("x" * 255) == "x" * 255
    assert len(utils.get_container_name("x" * 256)) == 64
    assert utils.get_container_name("ä:5") == "5" and len(utils.get_container_name("ä")) == 64


def test_a_name_that_is_too_long() -> None:
    assert len(utils.get_name_hash("p" * 51, {}, max_length=64)) == 64
    with pytest.raises(ValueError, match="Prefix and hash length are too long: p+ has length 52"):
        utils.get_name_hash("p" * 52, {}, max_length=64)


def test_the_address_of_the_log() -> None:
    options = {"awslogs-group": "/ecs/x y", "awslogs-stream-prefix": "ecs"}
    definition: dict[str, Any] = {"containerDefinitions": [{"logConfiguration": {"options": options}}]}
    arn = "arn:aws:ecs:ap-south-1:1:task/cluster/abc"
    url = utils.get_cloudwatch_log_url(arn, definition, "name")
    assert "//ap-south-1.console" in url and url.endswith("/%2Fecs%2Fx%20y/log-events/ecs%2Fname%2Fabc")
    assert "//eu-west-1.console" in utils.get_cloudwatch_log_url(arn, definition, "name", region="eu-west-1")
    options["awslogs-region"] = "sa-east-1"
    assert "//sa-east-1.console" in utils.get_cloudwatch_log_url(arn, definition, "name")


# Things that are found or made


def test_the_role(aws: World) -> None:
    arn = utils.get_execution_role_arn("prefix")
    iam = aws.client("iam")
    role = iam.get_role(RoleName=arn.split("/")[-1])["Role"]
    assert role["Arn"] == arn and tags(role["Tags"]) == TAG
    name = role["RoleName"]
    assert name == "prefix-011809e9671d"
    attached = iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]
    assert sorted(each["PolicyName"] for each in attached) == [
        "AmazonEC2ContainerRegistryReadOnly",
        "AmazonECSTaskExecutionRolePolicy",
    ]
    policy = iam.get_role_policy(RoleName=name, PolicyName="LogsAndSecretsPolicy")["PolicyDocument"]
    assert "arn:aws:logs:*:*:log-group:/ecs/swe-rex-deployment:*" in policy["Statement"][0]["Resource"]
    assert utils.get_execution_role_arn("prefix") == arn and aws.calls.count("iam.CreateRole") == 1
    # One that its maker did not come to the end with is completed.
    iam.detach_role_policy(RoleName=name, PolicyArn=attached[0]["PolicyArn"])
    iam.delete_role_policy(RoleName=name, PolicyName="LogsAndSecretsPolicy")
    assert utils.get_execution_role_arn("prefix") == arn
    assert len(iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]) == 2
    assert iam.list_role_policies(RoleName=name)["PolicyNames"] == ["LogsAndSecretsPolicy"]
    # Another log makes another role.
    other = utils.get_execution_role_arn("prefix", "/own/log").split("/")[-1]
    policy = iam.get_role_policy(RoleName=other, PolicyName="LogsAndSecretsPolicy")["PolicyDocument"]
    assert policy["Statement"][0]["Resource"][1] == "arn:aws:logs:*:*:log-group:/own/log" and other != name


def test_the_definition(aws: World) -> None:
    arguments: dict[str, Any] = {
        "image_name": "image:1",
        "port": 81,
        "execution_role_arn": "arn:aws:iam::123456789012:role/x",
        "task_definition_prefix": "prefix",
    }
    plain = utils.get_task_definition(**arguments)
    logged = utils.get_task_definition(**arguments, log_group="/own/log")
    assert plain["family"] != logged["family"] and plain["family"] == "prefix-b97f4d513c57"
    (container,) = logged["containerDefinitions"]
    assert container["image"] == "image:1" and container["portMappings"][0]["containerPort"] == 81
    assert container["logConfiguration"]["options"]["awslogs-region"] == REGION
    assert utils.get_task_definition(**arguments)["taskDefinitionArn"] == plain["taskDefinitionArn"]
    ecs = aws.client("ecs")
    assert tags(ecs.list_tags_for_resource(resourceArn=plain["taskDefinitionArn"])["tags"]) == TAG
    ecs.deregister_task_definition(taskDefinition=plain["taskDefinitionArn"])
    again = utils.get_task_definition(**arguments)
    assert again["status"] == "ACTIVE" and again["taskDefinitionArn"] != plain["taskDefinitionArn"]


def test_the_group(aws: World) -> None:
    vpc, subnet = utils.get_default_vpc_and_subnet()
    ec2 = aws.client("ec2")
    assert ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"] == vpc
    group = utils.get_security_group(vpc, 81, "prefix")
    (told,) = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    assert told["VpcId"] == vpc and tags(told["Tags"]) == TAG
    (rule,) = told["IpPermissions"]
    assert (rule["FromPort"], rule["ToPort"], rule["IpRanges"][0]["CidrIp"]) == (81, 81, "0.0.0.0/0")
    assert utils.get_security_group(vpc, 81, "prefix") == group
    # Another VPC has one of its own, of the same name.
    other = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    elsewhere = utils.get_security_group(other, 81, "prefix")
    assert elsewhere != group and utils.get_security_group(other, 81, "prefix") == elsewhere
    # One that its maker did not come to the end with is completed.
    ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=told["IpPermissions"])
    assert utils.get_security_group(vpc, 81, "prefix") == group
    assert ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissions"]


def test_the_cluster(aws: World) -> None:
    arn = utils.get_cluster_arn("own-cluster")
    assert arn.endswith("cluster/own-cluster") and utils.get_cluster_arn("own-cluster") == arn
    assert tags(aws.client("ecs").list_tags_for_resource(resourceArn=arn)["tags"]) == TAG


# What another makes between our look and our making


def test_a_role_that_another_makes_meanwhile(aws: World) -> None:
    iam = aws.client("iam")

    def before(request: dict[str, Any]) -> None:
        iam.create_role(**{key: request[key] for key in ("RoleName", "AssumeRolePolicyDocument")})

    aws.instead["iam.CreateRole"] = before
    arn = utils.get_execution_role_arn("prefix")
    name = arn.split("/")[-1]
    assert arn == iam.get_role(RoleName=name)["Role"]["Arn"]
    assert len(iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]) == 2


def test_a_group_that_another_makes_meanwhile(aws: World) -> None:
    (vpc, _), ec2 = utils.get_default_vpc_and_subnet(), aws.client("ec2")
    rule = {"IpProtocol": "tcp", "FromPort": 81, "ToPort": 81, "CidrIp": "0.0.0.0/0"}
    made = []

    def before(request: dict[str, Any]) -> None:
        group = ec2.create_security_group(GroupName=request["GroupName"], Description="x", VpcId=vpc)
        made.append(group["GroupId"])

    aws.instead["ec2.CreateSecurityGroup"] = before
    aws.instead["ec2.AuthorizeSecurityGroupIngress"] = lambda request: (
        ec2.authorize_security_group_ingress(GroupId=request["GroupId"], **rule) and None
    )
    assert [utils.get_security_group(vpc, 81, "prefix")] == made
    (group,) = ec2.describe_security_groups(GroupIds=made)["SecurityGroups"]
    assert len(group["IpPermissions"]) == 1


# Tasks


def test_the_address_comes_later(aws: World, monkeypatch: pytest.MonkeyPatch) -> None:
    arn, cluster = _run(aws)
    aws.address_after = 2
    waited: list[float] = []
    with monkeypatch.context() as patch:
        patch.setattr("time.sleep", waited.append)
        assert utils.get_public_ip(arn, cluster) == "127.0.0.1"
    assert len(waited) == 2
    aws.address_after = 1_000_000
    with pytest.raises(AwsError, match="got no public IP address within 0 seconds"):
        utils.get_public_ip(arn, cluster, timeout=0)


def test_a_task_without_a_network() -> None:
    assert utils.find_public_ip({}) is None
    attachment = {"type": "ElasticNetworkInterface", "details": [{"name": "x"}]}
    assert utils.find_public_ip({"attachments": [attachment]}) is None


def _run(aws: World) -> tuple[str, str]:
    aws.steps = ["PROVISIONING"] * 100
    vpc, subnet = utils.get_default_vpc_and_subnet()
    definition = utils.get_task_definition("image", 81, "arn:aws:iam::123456789012:role/x", "prefix")
    cluster = utils.get_cluster_arn("cluster")
    group = utils.get_security_group(vpc, 81, "prefix")
    arn, container = definition["taskDefinitionArn"], utils.get_container_name("image")
    return utils.run_fargate_task(["true"], container, arn, subnet, group, cluster), cluster


def test_a_task_as_the_original_runs_it(aws: World) -> None:
    arn, cluster = _run(aws)
    (told,) = aws.client("ecs").describe_tasks(cluster=cluster, tasks=[arn], include=["TAGS"])["tasks"]
    assert told["launchType"] == "FARGATE" and tags(told["tags"]) == TAG
    assert told["overrides"] == {
        "containerOverrides": [{"name": "image", "command": ["true"]}],
        "cpu": "1vCPU",
        "memory": "2048",
        "ephemeralStorage": {"sizeInGiB": 21},
    }


# Errors


def test_errors_are_ours(aws: World) -> None:
    aws.instead["ecs.CreateCluster"] = lambda _: json_error("AccessDeniedException", "no")
    with pytest.raises(AwsError, match=r"^AWS: cannot .*: An error occurred \(Access.*: no$") as caught:
        utils.get_cluster_arn("c")
    assert isinstance(caught.value, SwerexException) and caught.value.code == "AccessDeniedException"
    assert type(caught.value.__cause__).__module__.startswith("botocore")


def test_an_error_of_ours_is_a_message_and_pickles() -> None:
    error = pickle.loads(pickle.dumps(AwsError("no", code="X")))
    assert (str(error), error.code) == ("no", "X")
    assert str(AwsError("only this")) == "only this"


ORIGINAL = """
get_name_hash prefix obj max_length hash_length
get_container_name image_name
get_execution_role_arn execution_role_prefix
get_task_definition image_name port execution_role_arn task_definition_prefix log_group
get_cluster_arn cluster_name
get_default_vpc_and_subnet
get_security_group vpc_id port security_group_prefix
run_fargate_task command name task_definition_arn subnet_id security_group_id cluster_arn vcpus memory ephemeral_storage
get_public_ip task_arn cluster_arn
get_cloudwatch_log_url task_arn task_definition container_name region
"""


@pytest.mark.parametrize("signature", ORIGINAL.strip().splitlines())
def test_the_original_s_functions_are_there(signature: str) -> None:
    name, *parameters = signature.split()
    ours = list(inspect.signature(getattr(utils, name)).parameters.values())
    assert [each.name for each in ours[: len(parameters)]] == parameters
    more = ours[len(parameters) :]
    assert all(each.default is not each.empty or each.kind is each.VAR_KEYWORD for each in more)

"""AWS resources of a Fargate task: functions that get them and run the task.

Missing resources are created, with the tag `origin=swe-rex-deployment-auto`, by which `swerex_c.utils.aws_teardown`
finds them. The functions block, and several processes may call them at once: a resource that another process has
created meanwhile is used. Names other than a cluster's end in a hash of the settings, so that a resource in use is
never changed.

All functions raise `AwsError` when AWS cannot be reached or refuses the request.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from typing import Any
from urllib.parse import quote

from swerex_c.utils.aws_client import TAG_KEY, TAG_VALUE, AwsError, client, explained, ignored

__all__ = [
    "AwsError",
    "describe_task",
    "find_public_ip",
    "get_cloudwatch_log_url",
    "get_cluster_arn",
    "get_container_name",
    "get_default_vpc_and_subnet",
    "get_execution_role_arn",
    "get_name_hash",
    "get_public_ip",
    "get_security_group",
    "get_task_definition",
    "run_fargate_task",
]

_ACTIONS = [
    "logs:CreateLogGroup",
    "logs:CreateLogStream",
    "logs:PutLogEvents",
    "logs:DescribeLogStreams",
    "secretsmanager:GetSecretValue",
]
_INLINE_POLICY = "LogsAndSecretsPolicy"
_MANAGED_POLICIES = ("service-role/AmazonECSTaskExecutionRolePolicy", "AmazonEC2ContainerRegistryReadOnly")


# Names


def get_name_hash(prefix: str, obj: dict[str, Any], max_length: int = 128, hash_length: int = 12) -> str:
    """Return the prefix, a hyphen and a hash of `obj`.

    The hash depends on the order of keys.

    Raises:
        ValueError: if the name is longer than `max_length` characters.
    """
    if len(prefix) + 1 + hash_length > max_length:
        raise ValueError(
            f"Prefix and hash length are too long: {prefix} has length {len(prefix)}, hash length is {hash_length}, "
            f"max length is {max_length}"
        )
    return f"{prefix}-{hashlib.sha256(json.dumps(obj).encode()).hexdigest()[:hash_length]}"


def get_container_name(image_name: str) -> str:
    """Return a name for an image's container.

    The name has the characters of the image's name that ECS allows. If none are left, or more than 255, it is a hash.
    """
    name = re.sub(r"[^A-Za-z0-9_-]", "", image_name)
    return name if 0 < len(name) <= 255 else hashlib.sha256(image_name.encode()).hexdigest()


# The role


def get_execution_role_arn(execution_role_prefix: str, log_group: str | None = None) -> str:
    """Return the ARN of the task execution role; create the role if there is none.

    ECS uses the role to pull the image and write the log.

    Args:
        log_group: log group of the task, which ECS creates if it does not exist.
    """
    iam = client("iam")
    partition = iam.meta.partition
    logs = f"arn:{partition}:logs:*:*:log-group:{log_group or '/ecs/swe-rex-deployment'}"
    policy = _policy(Action=_ACTIONS, Resource=[f"{logs}:*", logs])
    name = get_name_hash(execution_role_prefix, policy, max_length=64)
    with explained(f"get or create the role {name}"):
        arn = _role(iam, name)
        # Do this for an existing role too: the process that created it may have stopped before this.
        attached = iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]
        for managed in _MANAGED_POLICIES:
            wanted = f"arn:{partition}:iam::aws:policy/{managed}"
            if wanted not in [each["PolicyArn"] for each in attached]:
                iam.attach_role_policy(RoleName=name, PolicyArn=wanted)
        if _INLINE_POLICY not in iam.list_role_policies(RoleName=name)["PolicyNames"]:
            iam.put_role_policy(RoleName=name, PolicyName=_INLINE_POLICY, PolicyDocument=json.dumps(policy))
        return arn


def _policy(**allowed: Any) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **allowed}]}


def _role(iam: Any, name: str) -> str:
    """Return the role's ARN; create the role if it does not exist."""
    with ignored("NoSuchEntity"):
        return str(iam.get_role(RoleName=name)["Role"]["Arn"])
    trust = _policy(Principal={"Service": "ecs-tasks.amazonaws.com"}, Action="sts:AssumeRole")
    with ignored("EntityAlreadyExists"):  # another process creates it as well
        iam.create_role(
            RoleName=name,
            AssumeRolePolicyDocument=json.dumps(trust),
            Description="Execution role for ECS tasks",
            MaxSessionDuration=3600,
            Tags=[{"Key": TAG_KEY, "Value": TAG_VALUE}],
        )
    # It is not visible at once to all parts of AWS, whoever created it. The waiter gives up after 20 seconds.
    iam.get_waiter("role_exists").wait(RoleName=name)
    return _role(iam, name)


# Clusters and definitions


def get_task_definition(
    image_name: str,
    port: int,
    execution_role_arn: str,
    task_definition_prefix: str,
    log_group: str | None = None,
) -> dict[str, Any]:
    """Return a definition of a task with one container; register it if there is none.

    Args:
        log_group: log group of the output, in the region where the task runs; None disables the log.
    """
    ecs = client("ecs")
    container: dict[str, Any] = {
        "name": get_container_name(image_name),
        "image": image_name,
        "portMappings": [{"containerPort": port, "hostPort": port, "protocol": "tcp"}],
        "essential": True,
        "entryPoint": ["/bin/sh", "-c"],
        "command": ["echo 'hello world'"],  # each task overrides it
    }
    definition = {
        "executionRoleArn": execution_role_arn,
        "networkMode": "awsvpc",
        "memory": "2048",
        "cpu": "1 vCPU",
        "containerDefinitions": [container],
        "requiresCompatibilities": ["FARGATE", "EC2"],
    }
    if log_group:
        container["logConfiguration"] = {
            "logDriver": "awslogs",
            "options": {
                "awslogs-group": log_group,
                "awslogs-region": ecs.meta.region_name,
                "awslogs-stream-prefix": "ecs",
                "awslogs-create-group": "true",
            },
        }
    family = get_name_hash(task_definition_prefix, definition, max_length=255)
    with explained(f"get or register the task definition {family}"):
        with ignored("ClientException"):  # there is none
            found = ecs.describe_task_definition(taskDefinition=family)["taskDefinition"]
            if found["status"] == "ACTIVE":
                return dict(found)
        # Two processes that do this at once get two equal revisions.
        tags = [{"key": TAG_KEY, "value": TAG_VALUE}]
        return dict(ecs.register_task_definition(family=family, **definition, tags=tags)["taskDefinition"])


def get_cluster_arn(cluster_name: str) -> str:
    """Return the ARN of the cluster of this name; create it if there is none."""
    ecs = client("ecs")
    with explained(f"get or create the cluster {cluster_name}"):
        made = ecs.create_cluster(clusterName=cluster_name, tags=[{"key": TAG_KEY, "value": TAG_VALUE}])
        return str(made["cluster"]["clusterArn"])


# The network


def get_default_vpc_and_subnet() -> tuple[str, str]:
    """Return the ids of the region's default VPC, and of a subnet in it.

    Raises:
        AwsError: if there is no such VPC, or no subnet in it.
    """
    ec2 = client("ec2")
    with explained("find the default VPC"):
        vpcs = ec2.describe_vpcs(Filters=[{"Name": "isDefault", "Values": ["true"]}])["Vpcs"]
        if not vpcs:
            where = ec2.meta.region_name
            raise AwsError(f"AWS: No default VPC found in the region {where}; run `aws ec2 create-default-vpc`")
        vpc = str(vpcs[0]["VpcId"])
        filters = [{"Name": "vpc-id", "Values": [vpc]}]
        subnets = list(ec2.get_paginator("describe_subnets").paginate(Filters=filters).search("Subnets[]"))
        if not subnets:
            raise AwsError(f"AWS: No subnets found in the default VPC {vpc}; run `aws ec2 create-default-subnet`")
        # Default subnets lead to the internet; the account's other subnets may not.
        subnets.sort(key=lambda one: (one.get("State", "available") != "available", not one.get("DefaultForAz")))
        return vpc, str(subnets[0]["SubnetId"])


def get_security_group(vpc_id: str, port: int, security_group_prefix: str, cidr: str = "0.0.0.0/0") -> str:
    """Return the id of a security group that allows connections to the port; create it if there is none.

    Args:
        cidr: IPv4 addresses that may connect, such as "198.51.100.0/24"; by default the whole internet.
    """
    ec2 = client("ec2")
    rule = {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "IpRanges": [{"CidrIp": cidr}]}
    name = get_name_hash(security_group_prefix, rule, max_length=255)
    with explained(f"get or create the security group {name}"):
        group = _group(ec2, name, vpc_id)
        # Do this for an existing group too: the process that created it may have stopped before this.
        if not group.get("IpPermissions"):
            with ignored("InvalidPermission.Duplicate"):
                ec2.authorize_security_group_ingress(GroupId=group["GroupId"], IpPermissions=[rule])
        return str(group["GroupId"])


def _group(ec2: Any, name: str, vpc: str) -> dict[str, Any]:
    """Return the description of the security group; create the group if it does not exist."""
    filters = [{"Name": "group-name", "Values": [name]}, {"Name": "vpc-id", "Values": [vpc]}]
    if found := ec2.describe_security_groups(Filters=filters)["SecurityGroups"]:
        return dict(found[0])
    tags = [{"Key": TAG_KEY, "Value": TAG_VALUE}]
    with ignored("InvalidGroup.Duplicate"):  # another process creates it as well
        ec2.create_security_group(
            GroupName=name,
            Description="Security group swe rex",
            VpcId=vpc,
            TagSpecifications=[{"ResourceType": "security-group", "Tags": tags}],
        )
    # It is not visible at once to all parts of AWS, whoever created it. The waiter gives up after 30 seconds.
    ec2.get_waiter("security_group_exists").wait(Filters=filters)
    return _group(ec2, name, vpc)


# Tasks


def run_fargate_task(
    command: list[str],
    name: str,
    task_definition_arn: str,
    subnet_id: str,
    security_group_id: str,
    cluster_arn: str,
    vcpus: float | str = 1,
    memory: int | str = 2048,
    ephemeral_storage: int | str = 21,
    *,
    environment: dict[str, str] | None = None,
    started_by: str | None = None,
    **fargate_args: Any,
) -> str:
    """Run a task and return its ARN, without waiting until the task runs.

    Args:
        command: arguments of the container's entry point.
        name: the container's name in the definition.
        memory: memory in MiB.
        ephemeral_storage: disk space in GiB, at least 21.
        environment: additional environment variables of the container.
        started_by: a word by which the task can be found, even if the response to this request is lost.
        fargate_args: more of the task's `overrides`, which replace those made from the arguments above.

    Raises:
        AwsError: if the task cannot run, with ECS's reason. If the response was lost, the task may run nevertheless.
    """
    container: dict[str, Any] = {"name": name, "command": command}
    if environment:
        container["environment"] = [{"name": key, "value": value} for key, value in environment.items()]
    request: dict[str, Any] = {
        "taskDefinition": task_definition_arn,
        "launchType": "FARGATE",
        "cluster": cluster_arn,
        "networkConfiguration": {
            "awsvpcConfiguration": {
                "subnets": [subnet_id],
                "securityGroups": [security_group_id],
                "assignPublicIp": "ENABLED",
            }
        },
        "propagateTags": "TASK_DEFINITION",
        "overrides": {
            "containerOverrides": [container],
            "cpu": f"{vcpus}vCPU",
            "memory": str(memory),
            "ephemeralStorage": {"sizeInGiB": int(ephemeral_storage)},
            **fargate_args,
        },
        "tags": [{"key": TAG_KEY, "value": TAG_VALUE}],
    }
    if started_by is not None:
        request["startedBy"] = started_by
    ecs = client("ecs")
    with explained(f"run a task in the cluster {cluster_arn}"):
        answer = ecs.run_task(**request)
    if answer.get("tasks"):
        return str(answer["tasks"][0]["taskArn"])
    reasons = [": ".join(filter(None, (one.get("reason"), one.get("detail")))) for one in answer.get("failures", ())]
    if not reasons:  # for example from a proxy that responds with a page
        raise AwsError(f"AWS: cannot run a task in the cluster {cluster_arn}: there is neither a task nor a reason")
    raise AwsError(f"AWS: the task was not placed: {'; '.join(reasons)}")


def describe_task(cluster_arn: str, task_arn: str) -> dict[str, Any] | None:
    """Return ECS's description of a task; None if the task was run just now, or ended an hour ago or more."""
    with explained(f"describe the task {task_arn}"):
        tasks = client("ecs").describe_tasks(cluster=cluster_arn, tasks=[task_arn])["tasks"]
    return dict(tasks[0]) if tasks else None


def find_public_ip(task: dict[str, Any]) -> str | None:
    """Return the public address of a task that `describe_task` describes; None if it has none, or not yet."""
    details = [detail for attachment in task.get("attachments", ()) for detail in attachment.get("details", ())]
    interfaces = [detail["value"] for detail in details if detail.get("name") == "networkInterfaceId"]
    if not interfaces:
        return None
    ec2 = client("ec2")
    filters = [{"Name": "network-interface-id", "Values": interfaces}]
    with explained(f"find the address of the network interface {interfaces[0]}"):
        found = ec2.describe_network_interfaces(Filters=filters)["NetworkInterfaces"]
    return found[0].get("Association", {}).get("PublicIp") if found else None


def get_public_ip(task_arn: str, cluster_arn: str, timeout: float = 60.0) -> str:
    """Wait for the public address of a task and return it.

    Args:
        timeout: seconds to wait for the address, which a task gets some time after its start.

    Raises:
        AwsError: if the task has no address by then, or there is no such task.
    """
    deadline = time.monotonic() + timeout
    while True:
        if address := find_public_ip(describe_task(cluster_arn, task_arn) or {}):
            return address
        if time.monotonic() >= deadline:
            raise AwsError(f"AWS: the task {task_arn} got no public IP address within {timeout:g} seconds")
        time.sleep(1.0)


def get_cloudwatch_log_url(
    task_arn: str, task_definition: dict[str, Any], container_name: str, region: str | None = None
) -> str:
    """Return the URL of the AWS console page with the output of a task's container.

    Args:
        region: region of the log; None takes it from the definition, or from the task's ARN.

    Raises:
        KeyError: if the definition has no log.
    """
    log = task_definition["containerDefinitions"][0]["logConfiguration"]["options"]
    region = region or log.get("awslogs-region") or task_arn.split(":")[3]
    stream = f"{log['awslogs-stream-prefix']}/{container_name}/{task_arn.split('/')[-1]}"
    return (
        f"https://{region}.console.aws.amazon.com/cloudwatch/home?region={region}"
        f"#logsV2:log-groups/log-group/{quote(log['awslogs-group'], safe='')}/log-events/{quote(stream, safe='')}"
    )

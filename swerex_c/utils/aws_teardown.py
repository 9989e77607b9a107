"""Program that deletes all AWS resources that were created for deployments.

    python -m swerex_c.utils.aws_teardown [--dry-run] [--yes]

These are the resources with the tag `origin=swe-rex-deployment-auto`. The program lists them and asks before it deletes
them, in the order of their dependencies: tasks, clusters, task definitions (which AWS keeps, inactive), security
groups, roles. It reports each resource that cannot be deleted and continues with the rest; another run continues with
the resources that are left. It deletes clusters, definitions and groups of the configured region only, and roles of the
whole account. It keeps logs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from swerex_c.exceptions import SwerexException
from swerex_c.utils.aws_client import TAG_KEY, TAG_VALUE, client, code_of, explained
from swerex_c.utils.visible import visible

__all__ = [
    "delete_ecs_clusters",
    "delete_iam_roles",
    "delete_security_groups",
    "delete_task_definitions",
    "get_confirmation",
    "has_target_tag",
    "main",
]

_END_SECONDS = 180.0
"""Maximum seconds until stopped tasks have ended, including AWS's cleanup of their network."""

_GONE = (
    "ClusterNotFoundException",
    "InvalidGroup.NotFound",
    "InvalidPermission.NotFound",
    "NoSuchEntity",
    "NoSuchEntityException",
)
"""Error codes of a resource that does not exist any more."""

_WAITS = ("ClusterContainsTasksException", "DependencyViolation", "UpdateInProgressException")
"""Error codes of a resource that is in use, which disappear when its user has ended."""


def get_confirmation(message: str) -> bool:
    """Ask the user and return whether the answer is yes; at the end of input it is no."""
    try:
        return input(f"\n{message}\nDo you want to continue? (y/n): ").strip().lower() == "y"
    except EOFError:
        return False


def has_target_tag(tags: list[dict[str, Any]]) -> bool:
    """Check whether tags mark a resource that was created for a deployment.

    The fields of the tags are `key` and `value`, or `Key` and `Value`.
    """
    return any(
        tag.get("key", tag.get("Key")) == TAG_KEY and tag.get("value", tag.get("Value")) == TAG_VALUE for tag in tags
    )


@dataclass(frozen=True)
class _Kind:
    """One kind of resource that is found and deleted."""

    title: str
    """Plural name, such as "IAM roles"."""

    verb: str
    """Action on a resource, such as "Deleting"."""

    find: Callable[[], Iterator[tuple[str, str]]]
    """Function that yields the id and the displayed text of each resource."""

    delete: Callable[[str], None]


# Tasks and clusters


def _clusters(ecs: Any) -> Iterator[dict[str, Any]]:
    """Yield the region's clusters that are not inactive, with their tags."""
    for page in ecs.get_paginator("list_clusters").paginate():
        if page["clusterArns"]:  # at most 100, the limit of describe_clusters
            for cluster in ecs.describe_clusters(clusters=page["clusterArns"], include=["TAGS"])["clusters"]:
                if cluster.get("status", "ACTIVE") != "INACTIVE":
                    yield cluster


def _tasks(ecs: Any, cluster: str) -> Iterator[dict[str, Any]]:
    """Yield the tasks of a cluster that were not stopped, with their tags."""
    for page in ecs.get_paginator("list_tasks").paginate(cluster=cluster, desiredStatus="RUNNING"):
        if page["taskArns"]:
            yield from ecs.describe_tasks(cluster=cluster, tasks=page["taskArns"], include=["TAGS"])["tasks"]


def _find_tasks() -> Iterator[tuple[str, str]]:
    # Include clusters without the tag: a deployment can use an existing cluster.
    ecs = client("ecs")
    for cluster in _clusters(ecs):
        whole = has_target_tag(cluster.get("tags", []))
        for task in _tasks(ecs, cluster["clusterArn"]):
            if task.get("desiredStatus") != "STOPPED" and (whole or has_target_tag(task.get("tags", []))):
                arn, name = task["taskArn"], cluster["clusterArn"].split("/")[-1]
                yield f"{cluster['clusterArn']} {arn}", f"{arn.split('/')[-1]} in {name} ({task.get('lastStatus')})"


def _stop_task(which: str) -> None:
    # Do not wait for the end here, because many tasks end at the same time. `_when_unused` waits where it is needed.
    cluster, _, task = which.partition(" ")
    client("ecs").stop_task(cluster=cluster, task=task, reason="swerex_c.utils.aws_teardown")


def _find_clusters() -> Iterator[tuple[str, str]]:
    for cluster in _clusters(client("ecs")):
        if has_target_tag(cluster.get("tags", [])):
            name, count = cluster["clusterArn"].split("/")[-1], cluster.get("runningTasksCount", 0)
            yield cluster["clusterArn"], f"{name} ({count} running tasks)"


def _delete_cluster(arn: str) -> None:
    ecs = client("ecs")
    _when_unused(lambda: ecs.delete_cluster(cluster=arn))


# Task definitions


def _find_task_definitions() -> Iterator[tuple[str, str]]:
    ecs = client("ecs")
    for page in ecs.get_paginator("list_task_definitions").paginate(status="ACTIVE"):
        for arn in page["taskDefinitionArns"]:
            if has_target_tag(ecs.list_tags_for_resource(resourceArn=arn)["tags"]):
                yield arn, arn.split("/")[-1]


def _deregister(arn: str) -> None:
    client("ecs").deregister_task_definition(taskDefinition=arn)


# Security groups


def _find_security_groups() -> Iterator[tuple[str, str]]:
    filters = [{"Name": f"tag:{TAG_KEY}", "Values": [TAG_VALUE]}]
    for page in client("ec2").get_paginator("describe_security_groups").paginate(Filters=filters):
        for group in page["SecurityGroups"]:
            yield group["GroupId"], f"{group['GroupId']} ({group.get('GroupName', 'no name')})"


def _delete_security_group(group: str) -> None:
    ec2 = client("ec2")
    found = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    # Delete the rules first: two groups that refer to each other could not be deleted otherwise.
    for one in found:
        if one.get("IpPermissions"):
            ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=one["IpPermissions"])
        if one.get("IpPermissionsEgress"):
            ec2.revoke_security_group_egress(GroupId=group, IpPermissions=one["IpPermissionsEgress"])
    _when_unused(lambda: ec2.delete_security_group(GroupId=group))


# Roles


def _find_roles() -> Iterator[tuple[str, str]]:
    iam = client("iam")
    for page in iam.get_paginator("list_roles").paginate():
        for role in page["Roles"]:
            name = role["RoleName"]
            try:
                pages = list(iam.get_paginator("list_role_tags").paginate(RoleName=name))
            except iam.exceptions.NoSuchEntityException:  # deleted meanwhile
                continue
            if has_target_tag([tag for each in pages for tag in each["Tags"]]):
                yield name, name


def _delete_role(name: str) -> None:
    iam = client("iam")
    for page in iam.get_paginator("list_attached_role_policies").paginate(RoleName=name):
        for policy in page["AttachedPolicies"]:
            iam.detach_role_policy(RoleName=name, PolicyArn=policy["PolicyArn"])
    for page in iam.get_paginator("list_role_policies").paginate(RoleName=name):
        for policy in page["PolicyNames"]:
            iam.delete_role_policy(RoleName=name, PolicyName=policy)
    iam.delete_role(RoleName=name)


def _when_unused(delete: Callable[[], object]) -> None:
    """Call `delete`, and retry it while the resource is in use."""
    deadline = time.monotonic() + _END_SECONDS
    while True:
        try:
            delete()
            return
        except Exception as error:
            if code_of(error) not in _WAITS or time.monotonic() >= deadline:
                raise
        time.sleep(2)


# All kinds

_TASKS = _Kind("ECS tasks", "Stopping", _find_tasks, _stop_task)
_CLUSTERS = _Kind("ECS clusters", "Deleting", _find_clusters, _delete_cluster)
_DEFINITIONS = _Kind("task definitions", "Deregistering", _find_task_definitions, _deregister)
_GROUPS = _Kind("security groups", "Deleting", _find_security_groups, _delete_security_group)
_ROLES = _Kind("IAM roles", "Deleting", _find_roles, _delete_role)

_ALL = (_TASKS, _CLUSTERS, _DEFINITIONS, _GROUPS, _ROLES)
"""All kinds of resources, in the order in which they can be deleted."""

_Found = list[tuple[_Kind, list[tuple[str, str]]]]


def _find(kinds: Sequence[_Kind]) -> tuple[_Found, int]:
    """Return the resources of each kind, and the number of kinds whose search failed."""
    found: _Found = []
    failed = 0
    for kind in kinds:
        things: list[tuple[str, str]] = []
        try:
            with explained(f"list {kind.title}"):
                things.extend(kind.find())
        except SwerexException as error:
            failed += 1
            print(f"Error: {error}", file=sys.stderr)
        if things:
            found.append((kind, things))
    return found, failed


def _delete(found: _Found) -> int:
    """Delete the found resources and return the number of failures."""
    failed = 0
    for kind, things in found:
        for thing, shown in things:
            print(visible(f"{kind.verb} {shown} [{kind.title}]"))
            try:
                kind.delete(thing)
            except Exception as error:
                if code_of(error) in _GONE:
                    continue
                failed += 1
                print(visible(f"Error: {kind.verb} {shown} [{kind.title}] failed: {error}"), file=sys.stderr)
    return failed


def _told(found: _Found) -> str:
    return visible(
        "\n\n".join(
            f"{kind.title[0].upper()}{kind.title[1:]} ({len(things)}):\n"
            + "\n".join(f"  - {shown}" for _, shown in things)
            for kind, things in found
        )
    )


def _run(kinds: Sequence[_Kind], *, dry_run: bool, ask: bool) -> int:
    """Find and show resources, ask, delete them, and return the number of failures."""
    found, failed = _find(kinds)
    if not found:
        print(f"No {', '.join(kind.title for kind in kinds)} found to delete.")
        return failed
    if dry_run:
        print(f"The following AWS resources would be deleted:\n\n{_told(found)}\n\nThis is a dry run.")
        return failed
    message = f"The following AWS resources will be deleted:\n\n{_told(found)}\n\nThis action cannot be undone."
    if not ask:
        print(message)
    elif not get_confirmation(message):
        print("Cleanup cancelled.")
        return failed
    return failed + _delete(found)


def delete_ecs_clusters(*, dry_run: bool = False, ask: bool = True) -> int:
    """Stop all tasks of deployments, and delete the clusters created for them.

    Args:
        dry_run: only show the resources.
        ask: True to ask the user before.

    Returns: the number of failed searches and deletions, which are reported on standard error.
    """
    return _run([_TASKS, _CLUSTERS], dry_run=dry_run, ask=ask)


def delete_task_definitions(*, dry_run: bool = False, ask: bool = True) -> int:
    """Deregister the task definitions that were created for deployments.

    The arguments and the result are those of `delete_ecs_clusters`.
    """
    return _run([_DEFINITIONS], dry_run=dry_run, ask=ask)


def delete_security_groups(*, dry_run: bool = False, ask: bool = True) -> int:
    """Delete the security groups that were created for deployments, with their rules.

    The arguments and the result are those of `delete_ecs_clusters`.
    """
    return _run([_GROUPS], dry_run=dry_run, ask=ask)


def delete_iam_roles(*, dry_run: bool = False, ask: bool = True) -> int:
    """Delete the roles that were created for deployments, with their policies.

    The arguments and the result are those of `delete_ecs_clusters`.
    """
    return _run([_ROLES], dry_run=dry_run, ask=ask)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    The code is 1 if a search or a deletion failed, or the account of the credentials cannot be read.

    Args:
        arguments: the options; None means no options.
    """
    parser = argparse.ArgumentParser(
        prog="python -m swerex_c.utils.aws_teardown",
        description=f"Delete all AWS resources that have the tag {TAG_KEY}={TAG_VALUE}.",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be deleted")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    options = parser.parse_args(list(arguments or ()))
    try:
        sts = client("sts")
        with explained("get the account of the credentials"):
            account = sts.get_caller_identity()["Account"]
    except SwerexException as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    where = f"the account {account}, region {sts.meta.region_name}"
    print(f"Looking for {TAG_KEY}={TAG_VALUE} in {where}; this may take a while.")
    failed = _run(_ALL, dry_run=options.dry_run, ask=not options.yes)
    if failed:
        print(f"\n{failed} deletions failed, see above; the others succeeded.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

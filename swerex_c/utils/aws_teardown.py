"""Program that deletes all AWS resources that were created for deployments.

    python -m swerex_c.utils.aws_teardown [--dry-run] [--yes]

The program lists the resources with the tag `origin=swe-rex-deployment-auto`, asks, and deletes them in the order of
their dependencies. It reports each resource that cannot be deleted and continues with the rest; another run continues
with those that are left. Roles are those of the whole account, all else of the configured region only. AWS keeps task
definitions, inactive. Logs are kept.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from swerex_c.exceptions import SwerexException
from swerex_c.utils.aws_client import TAG_KEY, TAG_VALUE, client, code_of, explained, ignored
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
    """Check whether tags mark a resource that was created for a deployment; AWS writes `key` or `Key`."""
    ours = {"key": TAG_KEY, "value": TAG_VALUE}
    return any({name.lower(): text for name, text in tag.items()} == ours for tag in tags)


# Finding and deleting each kind of resource


def _listed(api: Any, operation: str, found: str, **arguments: Any) -> Iterator[Any]:
    """Yield what the JMESPath expression `found` selects from all pages of a list."""
    yield from api.get_paginator(operation).paginate(**arguments).search(found)


def _clusters() -> Iterator[tuple[str, bool]]:
    """Yield the ARN of each active cluster of the region, and whether it has the tag."""
    ecs = client("ecs")
    for page in ecs.get_paginator("list_clusters").paginate():
        if page["clusterArns"]:  # at most 100, the limit of describe_clusters
            for cluster in ecs.describe_clusters(clusters=page["clusterArns"], include=["TAGS"])["clusters"]:
                if cluster["status"] != "INACTIVE":
                    yield cluster["clusterArn"], has_target_tag(cluster.get("tags", []))


def _find_tasks() -> Iterator[str]:
    # Include clusters without the tag: a deployment can use an existing cluster.
    ecs = client("ecs")
    for cluster, is_ours in _clusters():
        for page in ecs.get_paginator("list_tasks").paginate(cluster=cluster, desiredStatus="RUNNING"):
            if page["taskArns"]:
                for task in ecs.describe_tasks(cluster=cluster, tasks=page["taskArns"], include=["TAGS"])["tasks"]:
                    if is_ours or has_target_tag(task.get("tags", [])):
                        yield f"{cluster} {task['taskArn']}"


def _stop_task(which: str) -> None:
    # Do not wait for the end here, because many tasks end at the same time. `_when_unused` waits where it is needed.
    cluster, task = which.split(" ")
    client("ecs").stop_task(cluster=cluster, task=task, reason="swerex_c.utils.aws_teardown")


def _find_task_definitions() -> Iterator[str]:
    ecs = client("ecs")
    for arn in _listed(ecs, "list_task_definitions", "taskDefinitionArns[]", status="ACTIVE"):
        if has_target_tag(ecs.list_tags_for_resource(resourceArn=arn)["tags"]):
            yield arn


def _find_security_groups() -> Iterator[str]:
    filters = [{"Name": f"tag:{TAG_KEY}", "Values": [TAG_VALUE]}]
    return _listed(client("ec2"), "describe_security_groups", "SecurityGroups[].GroupId", Filters=filters)


def _delete_security_group(group: str) -> None:
    ec2 = client("ec2")
    (found,) = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
    # Delete the rules first: two groups that refer to each other could not be deleted otherwise.
    if found.get("IpPermissions"):
        ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=found["IpPermissions"])
    if found.get("IpPermissionsEgress"):
        ec2.revoke_security_group_egress(GroupId=group, IpPermissions=found["IpPermissionsEgress"])
    _when_unused(ec2.delete_security_group, GroupId=group)


def _find_roles() -> Iterator[str]:
    iam = client("iam")
    for name in _listed(iam, "list_roles", "Roles[].RoleName"):
        if has_target_tag(iam.list_role_tags(RoleName=name)["Tags"]):
            yield name


def _delete_role(name: str) -> None:
    iam = client("iam")
    for policy in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
        iam.detach_role_policy(RoleName=name, PolicyArn=policy["PolicyArn"])
    for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
        iam.delete_role_policy(RoleName=name, PolicyName=policy)
    iam.delete_role(RoleName=name)


def _when_unused(delete: Callable[..., object], **which: str) -> None:
    """Delete a resource, and retry that while the resource is in use."""
    deadline = time.monotonic() + _END_SECONDS
    while True:
        try:
            delete(**which)
            return
        except Exception as error:
            if code_of(error) not in _WAITS or time.monotonic() >= deadline:
                raise
        time.sleep(2)


_KINDS: dict[str, tuple[Callable[[], Iterator[str]], Callable[[str], object]]] = {
    "ECS tasks": (_find_tasks, _stop_task),
    "ECS clusters": (
        lambda: (arn for arn, is_ours in _clusters() if is_ours),
        lambda arn: _when_unused(client("ecs").delete_cluster, cluster=arn),
    ),
    "task definitions": (
        _find_task_definitions,
        lambda arn: client("ecs").deregister_task_definition(taskDefinition=arn),
    ),
    "security groups": (_find_security_groups, _delete_security_group),
    "IAM roles": (_find_roles, _delete_role),
}
"""The functions that find and delete each kind of resources, in the order of deletion."""


# The program


def _run(*kinds: str, dry_run: bool, ask: bool) -> int:
    """Find and show resources, ask, delete them, and return the number of failures."""
    found: list[tuple[str, str]] = []
    failed = 0
    for kind in kinds:
        try:
            with explained(f"list {kind}"):
                found.extend((kind, thing) for thing in _KINDS[kind][0]())
        except SwerexException as error:
            failed += 1
            print(f"Error: {error}", file=sys.stderr)
    if not found:
        print(f"No {', '.join(kinds)} found to delete.")
        return failed
    shown = visible("\n".join(f"  - {thing} [{kind}]" for kind, thing in found))
    if dry_run:
        print(f"The following AWS resources would be deleted:\n\n{shown}\n\nThis is a dry run.")
        return failed
    message = f"The following AWS resources will be deleted:\n\n{shown}\n\nThis action cannot be undone."
    if ask and not get_confirmation(message):
        print("Cleanup cancelled.")
        return failed
    for kind, thing in found:
        print(visible(f"Deleting {thing} [{kind}]"))
        try:
            with ignored(*_GONE):
                _KINDS[kind][1](thing)
        except Exception as error:
            failed += 1
            print(visible(f"Error: deleting {thing} [{kind}] failed: {error}"), file=sys.stderr)
    return failed


def delete_ecs_clusters(*, dry_run: bool = False, ask: bool = True) -> int:
    """Stop all tasks of deployments, and delete the clusters created for them.

    Args:
        dry_run: only show the resources.
        ask: ask the user before.

    Returns: the number of failed searches and deletions, which are reported on standard error.
    """
    return _run("ECS tasks", "ECS clusters", dry_run=dry_run, ask=ask)


def delete_task_definitions(*, dry_run: bool = False, ask: bool = True) -> int:
    """Deregister the task definitions that were created for deployments; see `delete_ecs_clusters`."""
    return _run("task definitions", dry_run=dry_run, ask=ask)


def delete_security_groups(*, dry_run: bool = False, ask: bool = True) -> int:
    """Delete the security groups that were created for deployments, with their rules; see `delete_ecs_clusters`."""
    return _run("security groups", dry_run=dry_run, ask=ask)


def delete_iam_roles(*, dry_run: bool = False, ask: bool = True) -> int:
    """Delete the roles that were created for deployments, with their policies; see `delete_ecs_clusters`."""
    return _run("IAM roles", dry_run=dry_run, ask=ask)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these options; return 1 if something failed, else 0."""
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
    failed = _run(*_KINDS, dry_run=options.dry_run, ask=not options.yes)
    if failed:
        print(f"\n{failed} deletions failed, see above; the others succeeded.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

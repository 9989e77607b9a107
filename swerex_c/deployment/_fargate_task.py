"""What ECS tells about a task: whether it has ended, why, and what its container has printed."""

from __future__ import annotations

from typing import Any

from swerex_c.utils._aws import client, code_of, explained

__all__ = ["look", "output", "started_by", "stop", "why_ended"]

_LINES = 50
"""How much is shown of what a container has printed."""

_TIMED_OUT = 124
"""What timeout(1) ends with when the time is over."""

_GONE = ("ClusterNotFoundException", "InvalidParameterException")
"""What ECS answers when there is no task to stop: it ended an hour ago or more."""


def look(cluster: str, arn: str) -> dict[str, Any] | None:
    """What ECS knows of a task; None if nothing, as just after it was run, or an hour after its end. Blocks.

    Raises:
        AwsError: if ECS cannot be asked.
    """
    with explained(f"look at the task {arn}"):
        tasks = client("ecs").describe_tasks(cluster=cluster, tasks=[arn])["tasks"]
    return dict(tasks[0]) if tasks else None


def why_ended(task: dict[str, Any], container_timeout: float) -> str | None:
    """Why a task has ended, or is about to, as a sentence; None if it is not, or if that is not known yet."""
    status, reason = task.get("lastStatus"), task.get("stoppedReason")
    if status != "STOPPED" and not (task.get("desiredStatus") == "STOPPED" and reason):
        return None
    said = [str(reason)] if reason else []
    for container in task.get("containers", ()):
        code, why = container.get("exitCode"), container.get("reason")
        if why and why not in said:
            said.append(str(why))
        if code is not None:
            said.append(f"the container's exit code is {code}")
        if code == _TIMED_OUT:
            said.append(f"which it has when the container_timeout of {container_timeout:g} seconds is over")
    if not said:
        said.append(str(task.get("stopCode") or "ECS gives no reason"))
    return f"The task {task.get('taskArn', '').split('/')[-1]} is {status}: {'; '.join(said)}"


def output(group: str, container: str, arn: str) -> str:
    """The end of what the container of a task has printed, as far as it is in the log; "" if there is nothing. Blocks.

    Raises:
        AwsError: if that cannot be learned.
    """
    logs = client("logs")
    stream = f"ecs/{container}/{arn.split('/')[-1]}"
    with explained(f"read the log {stream} of {group}"):
        try:
            events = logs.get_log_events(
                logGroupName=group, logStreamName=stream, limit=_LINES, startFromHead=False
            )["events"]
        except logs.exceptions.ResourceNotFoundException:
            return ""
    return "\n".join(event["message"] for event in events)


def started_by(cluster: str, word: str) -> list[str]:
    """The tasks that were run with this word as `started_by` and are to run. Blocks.

    Raises:
        AwsError: if ECS cannot be asked.
    """
    with explained(f"look for the tasks of {word}"):
        pages = client("ecs").get_paginator("list_tasks").paginate(cluster=cluster, startedBy=word)
        return [str(arn) for page in pages for arn in page["taskArns"]]


def stop(cluster: str, arn: str) -> None:
    """Have a task end. One that has ended stays so. Blocks, but not until it has.

    Raises:
        AwsError: if that cannot be had.
    """
    with explained(f"stop the task {arn}"):
        try:
            client("ecs").stop_task(cluster=cluster, task=arn, reason="Stopped by its deployment")
        except Exception as error:
            if code_of(error) not in _GONE:
                raise

"""Describe and stop ECS tasks, and read the output of their containers. All functions block."""

from __future__ import annotations

import time
from typing import Any

from swerex_c.utils.aws_client import client, explained, ignored

__all__ = ["describe", "output", "stop", "why_ended"]

_LINES = 50
"""Maximum number of lines of a container's output to return."""

_LENGTH = 20_000
"""Maximum number of characters of these lines, from their end: a line may have 256 KiB."""

_TIMED_OUT = 124
"""Exit code of timeout(1) when the time is over."""

_FIND_SECONDS = 5.0
"""Seconds to look for a task when the response to the request to run it was lost."""

_GONE = ("ClusterNotFoundException", "InvalidParameterException")
"""Error codes of ECS when there is no task to stop, because it ended an hour ago or more."""


def describe(cluster: str, arn: str) -> dict[str, Any] | None:
    """Return ECS's description of a task, or None.

    None means that the task was run just now, or ended an hour ago or more.

    Raises:
        AwsError: if ECS cannot be asked.
    """
    with explained(f"describe the task {arn}"):
        tasks = client("ecs").describe_tasks(cluster=cluster, tasks=[arn])["tasks"]
    return dict(tasks[0]) if tasks else None


def why_ended(task: dict[str, Any], container_timeout: float) -> str | None:
    """Return why a task has ended or is about to end, as a sentence, or None.

    None means that the task is not about to end, or that the reason is not known yet.
    """
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
            said.append(f"the code of a container that reached its container_timeout of {container_timeout:g} seconds")
    if not said:
        said.append(str(task.get("stopCode") or "ECS gives no reason"))
    return f"The task {task.get('taskArn', '').split('/')[-1]} is {status}: {'; '.join(said)}"


def output(group: str, container: str, arn: str) -> str:
    """Return the last lines that a task's container has printed.

    The lines come from the log; if the task has no log yet, the result is "".

    Raises:
        AwsError: if the log cannot be read.
    """
    logs = client("logs")
    stream = f"ecs/{container}/{arn.split('/')[-1]}"
    with explained(f"read the log {stream} of {group}"), ignored("ResourceNotFoundException"):
        answer = logs.get_log_events(logGroupName=group, logStreamName=stream, limit=_LINES, startFromHead=False)
        return "\n".join(event["message"] for event in answer["events"])[-_LENGTH:]
    return ""


def stop(cluster: str, arn: str | None, started_by: str | None) -> None:
    """Stop a task, unless it has ended; do not wait for its end.

    Args:
        arn: the task's ARN. If it is None, the task is looked for, because the request to run it may have succeeded
            without a response.
        started_by: the word that the task was run with.

    Raises:
        AwsError: if ECS cannot be asked or refuses.
    """
    ecs = client("ecs")
    with explained(f"stop the task {arn or started_by}"):
        found, deadline = [arn] if arn else [], time.monotonic() + _FIND_SECONDS
        while not found and time.monotonic() < deadline:
            found = ecs.list_tasks(cluster=cluster, startedBy=started_by)["taskArns"]
            time.sleep(0 if found else 0.5)
        for each in found:
            with ignored(*_GONE):
                ecs.stop_task(cluster=cluster, task=each, reason="Stopped by its deployment")

"""The end of ECS tasks: stop them, and read why they ended and what they printed. All functions but one block."""

from __future__ import annotations

import time
from typing import Any

from swerex_c.utils.aws_client import client, explained, ignored

__all__ = ["output", "stop", "why_ended"]

_LINES = 50
"""Maximum number of lines of a container's output to return."""

_LENGTH = 20_000
"""Maximum number of characters of these lines, from their end: a line may have 256 KiB."""

_FIND_SECONDS = 5.0
"""Seconds to look for a task when the response to the request to run it was lost."""

_GONE = ("ClusterNotFoundException", "InvalidParameterException")
"""Error codes of ECS when there is no task to stop, because it ended an hour ago or more."""


def why_ended(task: dict[str, Any], container_timeout: float) -> str | None:
    """Return why a task has ended or is about to end; None if it is not, or the reason is not known yet."""
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
        if code == 124:  # of timeout(1) when the time is over
            said.append(f"the code of a container that reached its container_timeout of {container_timeout:g} seconds")
    if not said:
        said.append(str(task.get("stopCode") or "ECS gives no reason"))
    return f"The task {task.get('taskArn', '').split('/')[-1]} is {status}: {'; '.join(said)}"


def output(group: str, container: str, arn: str) -> str:
    """Return the last lines in the log of a task's container; "" if there is no log yet.

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
        arn: the task's ARN. If the request to run it got no response, it is None, and the task is looked for.
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

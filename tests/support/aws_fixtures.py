"""An AWS for tests: moto, and before it a server that plays what moto does not, which is to run tasks.

The server hands every request on to moto and the answer back. When a task is run it does as ECS does: the task goes
through its states as it is looked at, then the container's entry point and command run as a process with the
container's variables, and what that prints goes to the log group in moto. Its public address is 127.0.0.1. When it
ends, or is stopped, the task is STOPPED. A test can have something done before a request, after it, or instead.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from swerex_c.deployment.fargate import FargateDeployment
from swerex_c.providers.fargate import deployment as fargate
from swerex_c.providers.fargate import task as tasks
from swerex_c.utils import aws_teardown
from swerex_c.utils.free_port import find_free_port
from tests.support.harness import write_script
from tests.support.needs import kill_all
from tests.support.wait import DEADLINE

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto")
models = pytest.importorskip("moto.iam.models")
moto_api = pytest.importorskip("moto.moto_api")
moto_server = pytest.importorskip("moto.server")
werkzeug = pytest.importorskip("werkzeug")
serving = pytest.importorskip("werkzeug.serving")
werkzeug_test = pytest.importorskip("werkzeug.test")

__all__ = ["REGION", "Answer", "World", "aws", "deployment", "failed_task", "json_error", "world", "xml_error"]

REGION = "eu-central-1"
"""Where everything is: not where the original thinks that it is."""

_POLICIES = ("AmazonECSTaskExecutionRolePolicy", "AmazonEC2ContainerRegistryReadOnly")
"""Those of AWS's own policies that are used: the other 1500 would take a second for each service and test."""

Answer = tuple[int, str, bytes]
"""Status, content type and body."""

Step = str | dict[str, Any]
"""A task's state, or what more is to be seen of it then."""


@functools.cache
def _moto() -> tuple[Any, dict[str, Any]]:
    """Moto as a WSGI application, and clients that lead to it. It is the same for all tests of this process."""
    os.environ |= {"MOTO_IAM_LOAD_MANAGED_POLICIES": "true", "MOTO_EC2_LOAD_DEFAULT_AMIS": "false"}
    known = json.loads(models.aws_managed_policies_data)
    models.aws_managed_policies_data = json.dumps({name: known[name] for name in _POLICIES})
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    url = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    session = boto3.session.Session(aws_access_key_id="tests", aws_secret_access_key="tests", region_name=REGION)
    clients = {name: session.client(name, endpoint_url=url) for name in ("ec2", "ecs", "iam", "logs")}
    return moto_server.DomainDispatcherApplication(moto_server.create_backend_app), clients


@dataclass
class Played:
    """A task that is run."""

    arn: str
    container: dict[str, Any]  # of its definition
    command: list[str]  # the override that the container got
    environment: dict[str, str]
    steps: list[Step]  # the states that are still to come; RUNNING starts the process
    seen: dict[str, Any] = field(default_factory=lambda: {"lastStatus": "PROVISIONING"})  # beside what moto tells
    process: subprocess.Popen[bytes] | None = None
    output: Path | None = None


def failed_task(stopped: str, container: str | None = None, code: int | None = None, stop: str = "TaskFailedToStart"):
    """Return the last step of a task that ends with these reasons."""
    told: dict[str, Any] = {"lastStatus": "STOPPED", "desiredStatus": "STOPPED", "stoppedReason": stopped}
    return {**told, "stopCode": stop, "containers": [{"reason": container, "exitCode": code}]}


def json_error(code: str, message: str, status: int = 400) -> Answer:
    """Return an answer of ECS or of the logs."""
    body = json.dumps({"__type": code, "message": message}).encode()
    return status, "application/x-amz-json-1.1", body


def xml_error(code: str, message: str, status: int = 400) -> Answer:
    """Return an answer of EC2; IAM's and STS's are read by the same rules."""
    text = f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors></Response>"
    return status, "text/xml", text.encode()


class World:
    """The server, and the tasks that it plays."""

    def __init__(self, directory: Path) -> None:
        self.moto, self._clients = _moto()
        werkzeug_test.Client(self.moto).post("/moto-api/reset")
        # Tasks stay in the state that they are put in.
        moto_api.state_manager.set_transition("ecs::task", {"progression": "manual", "times": 1_000_000})
        self.directory = directory
        self.calls: list[str] = []  # the operations, as in "ecs.RunTask"; each as often as it was sent
        # By operation: what answers in moto's place, if it gives an answer; and what changes an answer of moto's, or
        # loses it, with the connection.
        self.instead: dict[str, Callable[[dict[str, Any]], Answer | None]] = {}
        self.after: dict[str, Callable[[Answer], Answer | None]] = {}
        self.steps: list[Step] = ["PROVISIONING", "PENDING", "ACTIVATING", "RUNNING"]  # of tasks that are run from now
        self.address_after = 0  # how often tasks are still asked for their address in vain
        self.path = ""  # PATH in containers
        self.tasks: dict[str, Played] = {}
        self._ran: dict[str, Answer] = {}
        self._lock = threading.RLock()
        self._server = serving.make_server("127.0.0.1", 0, self, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def client(self, service: str) -> Any:
        """Return a client of moto itself, with which tests look and prepare things."""
        return self._clients[service]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for arn in self.tasks:
            self.end(arn)

    def processes(self) -> list[Played]:
        """Return the tasks whose process runs."""
        return [task for task in self.tasks.values() if task.process is not None and task.process.poll() is None]

    def end(self, arn: str) -> None:
        """End everything in the container of a task, as when its first process ends."""
        if (process := self.tasks[arn].process) is not None:
            kill_all(f"SWX_TASK={arn}")
            process.wait(DEADLINE)

    def wants(self) -> list[str]:
        """Return the tasks that moto does not know as stopped."""
        wanted = []
        for arn in list(self.tasks):
            (task,) = self.client("ecs").describe_tasks(cluster=arn.split("/")[-2], tasks=[arn])["tasks"]
            if task["desiredStatus"] != "STOPPED":
                wanted.append(arn)
        return wanted

    # Requests

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        """Answer a request, as a WSGI application."""
        answer = self._answer(environ, werkzeug.Request(environ).get_data())
        if answer is None:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionError("the answer is lost")
        status, kind, content = answer
        return werkzeug.Response(content, status, content_type=kind)(environ, start_response)

    def _answer(self, environ: dict[str, Any], body: bytes) -> Answer | None:
        operation, request = _read(environ, body)
        with self._lock:
            self.calls.append(operation)
        if (instead := self.instead.get(operation)) and (answer := instead(request)) is not None:
            return answer
        if operation == "ecs.RunTask":
            with self._lock:  # as ECS does, and moto does not: a request that is sent again runs nothing new
                token = request["clientToken"]
                if token not in self._ran:
                    self._ran[token] = self._hand_on(operation, request, environ, body)
                answer = self._ran[token]
        else:
            answer = self._hand_on(operation, request, environ, body)
        after = self.after.get(operation)
        return after(answer) if after else answer

    def _hand_on(self, operation: str, request: dict[str, Any], environ: dict[str, Any], body: bytes) -> Answer:
        if operation == "ecs.RegisterTaskDefinition":
            for container in request["containerDefinitions"]:  # moto counts that of containers, and not that of tasks
                container.setdefault("memory", int(request["memory"]))
            body = json.dumps(request).encode()
        environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        gave = werkzeug.Response.from_app(self.moto, environ, buffered=True)
        status, kind, content = gave.status_code, gave.content_type, gave.get_data()
        play = {
            "ecs.RunTask": self._run,
            "ecs.DescribeTasks": self._describe,
            "ecs.StopTask": self._stop,
            "ec2.DescribeNetworkInterfaces": self._interfaces,
        }.get(operation)
        if status == 200 and play is not None:
            with self._lock:
                content = play(request, content)
        return status, kind, content

    # Tasks

    def _run(self, request: dict[str, Any], body: bytes) -> bytes:
        known = self.client("ecs").describe_task_definition(taskDefinition=request["taskDefinition"])
        (container,) = known["taskDefinition"]["containerDefinitions"]
        told = json.loads(body)
        for task in told["tasks"]:
            mine = task["overrides"]["containerOverrides"][0]
            environment = {one["name"]: one["value"] for one in mine.get("environment", ())}
            self.tasks[task["taskArn"]] = Played(
                task["taskArn"], container, mine["command"], environment, list(self.steps)
            )
            task["lastStatus"] = "PROVISIONING"
        return json.dumps(told).encode()

    def _describe(self, _: dict[str, Any], body: bytes) -> bytes:
        told = json.loads(body)
        for task in told["tasks"]:
            played = self.tasks[task["taskArn"]]
            if played.seen["lastStatus"] not in ("RUNNING", "STOPPED"):
                self._next(played)
            if played.seen["lastStatus"] == "RUNNING" and played.process and played.process.poll() is not None:
                self._over(played)
            task |= {"stoppedReason": "", "containers": [{}], **played.seen}
            (container,) = task["containers"]
            told_of_it = {key: value for key, value in container.items() if value is not None}
            task["containers"] = [{"name": played.container["name"], **told_of_it}]
            # Attachments, and what is told of them, come in no order.
            task["attachments"].insert(0, {"id": "0", "type": "Service Connect", "status": "ATTACHED", "details": []})
            task["attachments"][-1]["details"].reverse()
        return json.dumps(told).encode()

    def _next(self, played: Played) -> None:
        if played.steps:
            step = played.steps.pop(0)
            played.seen = {"lastStatus": step} if isinstance(step, str) else step
        if played.seen["lastStatus"] == "RUNNING":
            self._begin(played)
        if played.seen["lastStatus"] == "STOPPED":
            self._stop_in_moto(played)

    def _begin(self, played: Played) -> None:
        played.output = self.directory / f"{played.arn.split('/')[-1]}.log"
        own = {"PATH": self.path or os.environ["PATH"], "HOME": str(self.directory), "SWX_TASK": played.arn}
        with open(played.output, "wb") as output:
            played.process = subprocess.Popen(
                [*played.container["entryPoint"], *played.command],
                env=own | played.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _stop_in_moto(self, played: Played) -> None:
        cluster, reason = played.arn.split("/")[-2], played.seen["stoppedReason"]
        self.client("ecs").stop_task(cluster=cluster, task=played.arn, reason=reason)

    def _over(self, played: Played) -> None:
        assert played.process is not None
        code, reason = played.process.returncode % 256, "Essential container in task exited"
        played.seen = failed_task(reason, None, code, "EssentialContainerExited")
        self.end(played.arn)
        self._log(played)
        self._stop_in_moto(played)

    def _log(self, played: Played) -> None:
        """Send a task's output to the logs, as the log driver does."""
        options = played.container["logConfiguration"]["options"]
        assert options["awslogs-region"] == REGION and played.output is not None
        logs, group = self.client("logs"), options["awslogs-group"]
        with contextlib.suppress(logs.exceptions.ResourceAlreadyExistsException):
            logs.create_log_group(logGroupName=group)
        stream = f"{options['awslogs-stream-prefix']}/{played.container['name']}/{played.arn.split('/')[-1]}"
        logs.create_log_stream(logGroupName=group, logStreamName=stream)
        lines, now = played.output.read_text(errors="replace").splitlines(), int(time.time() * 1000)
        if events := [{"timestamp": now, "message": line} for line in lines if line]:
            logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)

    def _stop(self, request: dict[str, Any], body: bytes) -> bytes:
        played = self.tasks[request["task"]]
        self.end(played.arn)
        if played.seen["lastStatus"] != "STOPPED":
            played.seen = failed_task(request.get("reason", ""), None, 143, "UserInitiated")
        return body

    def _interfaces(self, _: dict[str, Any], body: bytes) -> bytes:
        text = body.decode()
        assert "<association>" not in text, "moto gives addresses by itself now"
        self.address_after -= 1
        if self.address_after >= 0:
            return body
        address = "<association><publicIp>127.0.0.1</publicIp><ipOwnerId>amazon</ipOwnerId></association>"
        changed, count = re.subn(r"(<networkInterfaceId>)", address + r"\1", text, count=1)
        assert count == 1, text
        return changed.encode()


def _read(environ: dict[str, Any], body: bytes) -> tuple[str, dict[str, Any]]:
    """Return the operation that a request asks for, and its parameters."""
    (service,) = re.findall(r"Credential=[^,]*/([a-z0-9-]+)/aws4_request", environ["HTTP_AUTHORIZATION"])
    if target := environ.get("HTTP_X_AMZ_TARGET"):
        return f"{service}.{target.rpartition('.')[2]}", json.loads(body or b"{}")
    form = dict(urllib.parse.parse_qsl(body.decode()))
    return f"{service}.{form.get('Action')}", form


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """An AWS in which there is nothing yet, and to which the environment leads."""
    with world(tmp_path, monkeypatch) as found:
        yield found


@contextlib.contextmanager
def world(directory: Path, patch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    found = World(directory)
    variables = {
        "AWS_ENDPOINT_URL": found.url,
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in variables.items():
        patch.setenv(name, value)
    patch.setattr(boto3, "DEFAULT_SESSION", None)  # which may have been made with others
    # Tasks change their state when they are looked at, and not with the time.
    patch.setattr(fargate, "_POLL_SECONDS", 0.02)
    patch.setattr(tasks, "_FIND_SECONDS", 0.5)
    patch.setattr(aws_teardown, "_END_SECONDS", 6.0)
    commands = directory / "bin"
    commands.mkdir()
    text = f"import sys\nsys.path[:0] = {sys.path!r}\nfrom swerex_c.cli.serve import main\nmain()"
    write_script(commands / "swerex-remote", text, sys.executable)
    found.path = f"{commands}:/usr/local/bin:/usr/bin:/bin"
    yield found
    found.close()


def deployment(kind: type[FargateDeployment] = FargateDeployment, **fields: Any) -> FargateDeployment:
    return kind(**{"image": "registry.example.org/image:1", "port": find_free_port(), **fields})

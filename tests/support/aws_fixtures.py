"""An AWS for tests: moto's server, and before it a proxy that plays what moto does not, which is to run tasks.

The proxy hands every request on to moto and the answer back. When a task is run it does as ECS does: the task goes
through its states as it is looked at, then the container's entry point and command run as a process with the
container's variables, and what that prints goes to the log group in moto. Its public address is 127.0.0.1. When it
ends, or is stopped, the task is STOPPED. A test can have something done before a request, after it, or instead.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto")
models = pytest.importorskip("moto.iam.models")
moto_server = pytest.importorskip("moto.server")
werkzeug = pytest.importorskip("werkzeug")
serving = pytest.importorskip("werkzeug.serving")

__all__ = ["REGION", "Answer", "Moto", "Played", "World", "aws", "failed_task", "json_error", "moto", "world"]
__all__ += ["xml_error"]

REGION = "eu-central-1"
"""Where everything is: not where the original thinks that it is."""

_POLICIES = ("AmazonECSTaskExecutionRolePolicy", "AmazonEC2ContainerRegistryReadOnly")
"""Those of AWS's own policies that are used: the other 1500 would take a second for each service and test."""

Answer = tuple[int, str, bytes]
"""Status, content type and body."""

Step = str | dict[str, Any]
"""A task's state, or what more is to be seen of it then."""


class Moto:
    """Moto's server, in a thread."""

    def __init__(self) -> None:
        os.environ |= {"MOTO_IAM_LOAD_MANAGED_POLICIES": "true", "MOTO_EC2_LOAD_DEFAULT_AMIS": "false"}
        known = json.loads(models.aws_managed_policies_data)
        models.aws_managed_policies_data = json.dumps({name: known[name] for name in _POLICIES})
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        self.port = self._server.get_host_and_port()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.reset()
        self.clients = self._clients()

    def _clients(self) -> dict[str, Any]:
        session = boto3.session.Session(aws_access_key_id="tests", aws_secret_access_key="tests", region_name=REGION)
        return {name: session.client(name, endpoint_url=self.url) for name in ("ec2", "ecs", "iam", "logs")}

    def ask(self, path: str, body: dict[str, Any]) -> None:
        """Moto's own API."""
        request = urllib.request.Request(
            f"{self.url}/moto-api/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()

    def reset(self) -> None:
        """Forget everything, and have tasks stay in the state that they are put in."""
        self.ask("reset", {})
        stays = {"progression": "manual", "times": 1_000_000}
        self.ask("state-manager/set-transition", {"model_name": "ecs::task", "transition": stays})

    def close(self) -> None:
        self._server.stop()


@dataclass
class Played:
    """A task that is run."""

    arn: str
    command: list[str]
    """The override that the container got."""

    environment: dict[str, str]
    steps: list[Step]
    """The states that are still to come; a string that is RUNNING starts the process."""

    seen: dict[str, Any] = field(default_factory=dict)
    """What is to be seen of it beside what moto tells."""

    process: subprocess.Popen[bytes] | None = None
    output: Path | None = None
    addressed: int = 0
    """How often its address was asked for."""


def failed_task(stopped: str, container: str | None = None, code: int | None = None, stop: str = "TaskFailedToStart"):
    """The last step of a task that ends with these reasons."""
    told: dict[str, Any] = {"lastStatus": "STOPPED", "desiredStatus": "STOPPED", "stoppedReason": stopped}
    return {**told, "stopCode": stop, "containers": [{"reason": container, "exitCode": code}]}


def json_error(code: str, message: str, status: int = 400) -> Answer:
    """An answer of ECS or of the logs."""
    body = json.dumps({"__type": code, "message": message}).encode()
    return status, "application/x-amz-json-1.1", body


def xml_error(code: str, message: str, status: int = 400) -> Answer:
    """An answer of EC2; IAM's and STS's are read by the same rules."""
    text = f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors></Response>"
    return status, "text/xml", text.encode()


class World:
    """The proxy, and the tasks that it plays."""

    def __init__(self, moto: Moto, directory: Path) -> None:
        self.moto = moto
        self.directory = directory
        self.calls: list[str] = []
        """The operations, as in "ecs.RunTask"; each as often as it was sent."""

        self.instead: dict[str, Callable[[dict[str, Any]], Answer | None]] = {}
        """By operation: what answers in moto's place, if it gives an answer."""

        self.after: dict[str, Callable[[Answer], Answer | None]] = {}
        """By operation: what changes an answer of moto's; None loses it, with the connection."""

        self.steps: list[Step] = ["PROVISIONING", "PENDING", "ACTIVATING", "RUNNING"]
        """The states of tasks that are run from now on."""

        self.address_after = 0
        """How often a task is asked for its address in vain."""

        self.path = ""
        """PATH in containers."""

        self.tasks: dict[str, Played] = {}
        self._ran: dict[str, Answer] = {}
        self._lock = threading.RLock()
        self._server = serving.make_server("127.0.0.1", 0, self, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def client(self, service: str) -> Any:
        """A client that goes to moto without the proxy, for tests to look and to prepare things."""
        return self.moto.clients[service]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for task in self.tasks.values():
            self._kill(task)

    def processes(self) -> list[Played]:
        """The tasks whose process runs."""
        return [task for task in self.tasks.values() if task.process is not None and task.process.poll() is None]

    def end(self, arn: str) -> None:
        """End everything in the container of a task."""
        self._kill(self.tasks[arn])

    def wants(self) -> list[str]:
        """The tasks that are not stopped, for what moto knows."""
        wanted = []
        for arn in list(self.tasks):
            (task,) = self.client("ecs").describe_tasks(cluster=arn.split("/")[-2], tasks=[arn])["tasks"]
            if task["desiredStatus"] != "STOPPED":
                wanted.append(arn)
        return wanted

    # Requests

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        """Answer a request, as a WSGI application."""
        request = werkzeug.Request(environ)
        answer = self._answer(request.path, dict(request.headers), request.get_data())
        if answer is None:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionError("the answer is lost")
        status, kind, content = answer
        return werkzeug.Response(content, status, content_type=kind)(environ, start_response)

    def _answer(self, path: str, headers: dict[str, str], body: bytes) -> Answer | None:
        operation, request = _read(headers, body)
        with self._lock:
            self.calls.append(operation)
        if (instead := self.instead.get(operation)) and (answer := instead(request)) is not None:
            return answer
        if operation == "ecs.RunTask":
            with self._lock:  # as ECS does, and moto does not: a request that is sent again runs nothing new
                token = request["clientToken"]
                if token not in self._ran:
                    self._ran[token] = self._forward_and_play(operation, request, path, headers, body)
                answer = self._ran[token]
        else:
            answer = self._forward_and_play(operation, request, path, headers, body)
        after = self.after.get(operation)
        return after(answer) if after else answer

    def _forward_and_play(
        self, operation: str, request: dict[str, Any], path: str, headers: dict[str, str], body: bytes
    ) -> Answer:
        if operation == "ecs.RegisterTaskDefinition":
            for container in request["containerDefinitions"]:  # moto counts that of containers, and not that of tasks
                container.setdefault("memory", int(request["memory"]))
            body = json.dumps(request).encode()
            headers = {**headers, "Content-Length": str(len(body))}
        answer = self._forward(path, headers, body)
        return self._play(operation, request, answer) if answer[0] == 200 else answer

    def _forward(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.moto.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            return response.status, response.headers.get("Content-Type", ""), response.read()

    # Tasks

    def _play(self, operation: str, request: dict[str, Any], answer: Answer) -> Answer:
        play = {
            "ecs.RunTask": self._run,
            "ecs.DescribeTasks": self._describe,
            "ecs.StopTask": self._stop,
            "ec2.DescribeNetworkInterfaces": self._interfaces,
        }.get(operation)
        if play is None:
            return answer
        with self._lock:
            return answer[0], answer[1], play(request, answer[2])

    def _run(self, _: dict[str, Any], body: bytes) -> bytes:
        told = json.loads(body)
        for task in told["tasks"]:
            mine = task["overrides"]["containerOverrides"][0]
            environment = {one["name"]: one["value"] for one in mine.get("environment", ())}
            played = Played(task["taskArn"], mine["command"], environment, list(self.steps))
            self.tasks[played.arn] = played
            task.update(lastStatus="PROVISIONING")
        return json.dumps(told).encode()

    def _describe(self, _: dict[str, Any], body: bytes) -> bytes:
        told = json.loads(body)
        for task in told["tasks"]:
            played = self.tasks.get(task["taskArn"])
            if played is None:
                continue
            if not played.seen or played.seen["lastStatus"] not in ("RUNNING", "STOPPED"):
                self._next(played, task)
            if played.seen["lastStatus"] == "RUNNING" and played.process and played.process.poll() is not None:
                self._over(played, task)
            containers = played.seen.get("containers") or [{}]
            task.update({key: value for key, value in played.seen.items() if key != "containers"})
            if task["lastStatus"] != "STOPPED":
                task["stoppedReason"] = played.seen.get("stoppedReason", "")
            task["containers"] = [{"name": task["containers"][0].get("name"), **_without_none(containers[0])}]
            # Attachments, and what is told of them, come in no order.
            task["attachments"].insert(0, {"id": "0", "type": "Service Connect", "status": "ATTACHED", "details": []})
            task["attachments"][-1]["details"].reverse()
        return json.dumps(told).encode()

    def _next(self, played: Played, task: dict[str, Any]) -> None:
        step = played.steps.pop(0) if played.steps else None
        if isinstance(step, dict):
            played.seen = {"lastStatus": task["lastStatus"], **step}
        elif step is not None:
            played.seen = {"lastStatus": step}
            if step == "RUNNING":
                self._begin(played, task)
        if played.seen["lastStatus"] == "STOPPED":
            self.client("ecs").stop_task(
                cluster=task["clusterArn"], task=played.arn, reason=played.seen.get("stoppedReason", "")
            )

    def _begin(self, played: Played, task: dict[str, Any]) -> None:
        known = self.client("ecs").describe_task_definition(taskDefinition=task["taskDefinitionArn"])
        container = known["taskDefinition"]["containerDefinitions"][0]
        played.output = self.directory / f"{played.arn.split('/')[-1]}.log"
        with open(played.output, "wb") as output:
            played.process = subprocess.Popen(
                [*container["entryPoint"], *played.command],
                env={"PATH": self.path or os.environ["PATH"], "HOME": str(self.directory), **played.environment},
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _over(self, played: Played, task: dict[str, Any]) -> None:
        assert played.process is not None
        code = played.process.returncode
        self._kill(played)
        played.seen = failed_task("Essential container in task exited", None, code % 256, "EssentialContainerExited")
        self._log(played, task)
        self.client("ecs").stop_task(
            cluster=task["clusterArn"], task=played.arn, reason="Essential container in task exited"
        )

    def _log(self, played: Played, task: dict[str, Any]) -> None:
        """What the log driver does."""
        known = self.client("ecs").describe_task_definition(taskDefinition=task["taskDefinitionArn"])
        container = known["taskDefinition"]["containerDefinitions"][0]
        options = container.get("logConfiguration", {}).get("options")
        if options is None or played.output is None:
            return
        assert options["awslogs-region"] == REGION
        logs, group = self.client("logs"), options["awslogs-group"]
        with contextlib.suppress(logs.exceptions.ResourceAlreadyExistsException):
            logs.create_log_group(logGroupName=group)
        stream = f"{options['awslogs-stream-prefix']}/{container['name']}/{played.arn.split('/')[-1]}"
        logs.create_log_stream(logGroupName=group, logStreamName=stream)
        now = int(time.time() * 1000)
        lines = [line for line in played.output.read_text(errors="replace").splitlines() if line]
        if lines:
            events = [{"timestamp": now, "message": line} for line in lines]
            logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)

    def _stop(self, request: dict[str, Any], body: bytes) -> bytes:
        for played in self.tasks.values():
            if played.arn == request["task"] or played.arn.endswith(f"/{request['task']}"):
                self._kill(played)
                if not played.seen or played.seen["lastStatus"] != "STOPPED":
                    played.seen = failed_task(request.get("reason", ""), None, 143, "UserInitiated")
        return body

    def _kill(self, played: Played) -> None:
        """End everything in the container, as when its first process ends."""
        if played.process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + 5
            while (found := _session(played.process.pid)) and time.monotonic() < deadline:
                for pid in found:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                played.process.poll()
                time.sleep(0.05)
        played.process.wait(5)

    def _interfaces(self, request: dict[str, Any], body: bytes) -> bytes:
        text = body.decode()
        assert "<association>" not in text, "moto gives addresses by itself now"
        for played in self.tasks.values():
            played.addressed += 1
        if all(played.addressed <= self.address_after for played in self.tasks.values()):
            return body
        address = "<association><publicIp>127.0.0.1</publicIp><ipOwnerId>amazon</ipOwnerId></association>"
        changed, count = re.subn(r"(<networkInterfaceId>)", address + r"\1", text, count=1)
        assert count == 1, text
        return changed.encode()


def _read(headers: dict[str, str], body: bytes) -> tuple[str, dict[str, Any]]:
    """The operation that a request asks for, and its parameters."""
    scope = re.search(r"Credential=[^,]*/([a-z0-9-]+)/aws4_request", headers.get("Authorization", ""))
    service = scope[1] if scope else "?"
    if target := headers.get("X-Amz-Target"):
        return f"{service}.{target.rpartition('.')[2]}", json.loads(body or b"{}")
    form = dict(urllib.parse.parse_qsl(body.decode()))
    return f"{service}.{form.get('Action')}", form


def _session(leader: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(stat.parent.name))
    return found


def _without_none(told: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in told.items() if value is not None}


@pytest.fixture(scope="session")
def moto() -> Iterator[Moto]:
    """Moto's server, for all tests of this process."""
    server = Moto()
    yield server
    server.close()


@pytest.fixture
def aws(moto: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """An AWS in which there is nothing yet, and to which the environment leads."""
    with world(moto, tmp_path, monkeypatch) as found:
        yield found


@contextlib.contextmanager
def world(moto: Moto, directory: Path, patch: pytest.MonkeyPatch) -> Iterator[World]:
    moto.reset()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    found = World(moto, directory)
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
    commands = directory / "bin"
    commands.mkdir()
    server = commands / "swerex-remote"
    server.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = {sys.path!r}\nfrom swerex_c.cli.serve import main\nmain()\n"
    )
    server.chmod(0o755)
    found.path = f"{commands}:/usr/local/bin:/usr/bin:/bin"
    yield found
    found.close()

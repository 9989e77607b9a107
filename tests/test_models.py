"""Every model and configuration has the original's fields, defaults and discriminators, and new fields are optional."""

from __future__ import annotations

import copy
import json
import math
import pickle
import sys
import typing

import pytest
from pydantic import BaseModel, ValidationError

from swerex_c import _core
from swerex_c.deployment import config as deployment_config
from swerex_c.exceptions import NotSupportedError
from swerex_c.runtime import abstract
from swerex_c.runtime import config as runtime_config
from swerex_c.runtime.dummy import DummyRuntime
from swerex_c.runtime.local import LocalRuntime
from tests.support.original import original_python, our_environment, python_json

DUMP = r"""
import importlib, inspect, json, re, sys, typing
from pydantic import BaseModel
package = sys.argv[1]
found = {}
def plain(annotation):
    return str(annotation).replace("pathlib._local", "pathlib")
for part in ("runtime.abstract", "runtime.config", "deployment.config"):
    module = importlib.import_module(package + "." + part)
    for name, thing in vars(module).items():
        key = part + ":" + name
        if inspect.isclass(thing) and issubclass(thing, BaseModel) and thing is not BaseModel:
            found[key] = {
                "extra": thing.model_config.get("extra"),
                "fields": {
                    name: [plain(it.annotation), repr(it.get_default(call_default_factory=True)), it.is_required()]
                    for name, it in thing.model_fields.items()
                },
            }
        elif typing.get_origin(thing) is not None:
            extra = [getattr(info, "discriminator", None) for info in getattr(thing, "__metadata__", ())]
            found[key] = {"union": re.sub(rf"\b{package}(\.\w+)*\.", "", str(thing)), "discriminator": extra}
    for name in ("AbstractRuntime",):
        if hasattr(module, name):
            base = getattr(module, name)
            found[part + ":" + name] = {"abstract": sorted(base.__abstractmethods__)}
print(json.dumps(found))
"""

NEW_DEFAULTS = {
    "runtime.config:LocalRuntimeConfig": {"output_limit": 256 << 20, "read_limit": 1 << 30, "warm_sessions": 0},
    "runtime.config:RemoteRuntimeConfig": {
        "wire": "auto",
        "reconnect_timeout": 30.0,
        "answer_limit": 1 << 30,
        "command": None,
    },
}
"""Those that swerex_c/docs/api.md does not show: test_readme.py compares the others with that page."""

WIDER = {"deployment.config:FargateDeploymentConfig": {"fargate_args": ["dict[str, typing.Any]", "{}", False]}}
"""Fields that take more here: the original's take texts only, and AWS wants numbers."""


@pytest.fixture(scope="module")
def both() -> tuple[dict, dict]:
    theirs = python_json(original_python(), DUMP, "swerex")
    ours = python_json(sys.executable, DUMP, "swerex_c", env=our_environment())
    return theirs, ours


def _known(value: typing.Any) -> typing.Any:
    """Without the members of a union that are new."""
    for name in ("SSH", "Kubernetes", "Ray"):
        if isinstance(value, str):
            value = value.replace(f"{name}DeploymentConfig | ", "")
    return value


def test_all_of_the_original_is_there_with_the_same_fields(both: tuple[dict, dict]) -> None:
    """And new ones are optional."""
    theirs, ours = both
    assert len(theirs) > 30 and set(theirs) <= set(ours) and set(NEW_DEFAULTS) <= set(theirs)
    for name, model in theirs.items():
        if "fields" not in model:
            assert {key: _known(value) for key, value in ours[name].items()} == model, name
            continue
        fields = ours[name]["fields"]
        new = {key: default for key, (_, default, _) in fields.items() if key not in model["fields"]}
        assert list(fields) == [*model["fields"], *new], name
        assert {key: fields[key] for key in model["fields"]} == model["fields"] | WIDER.get(name, {}), name
        assert ours[name]["extra"] == model["extra"], name
        assert not any(fields[key][2] for key in new), name
        if name.startswith("runtime.config:"):
            assert new == {key: repr(default) for key, default in NEW_DEFAULTS.get(name, {}).items()}, name


def test_unions_are_called_as_constructors() -> None:
    made = abstract.CreateSessionRequest(session="x")
    assert made.model_dump() == abstract.CreateBashSessionRequest(session="x").model_dump()
    assert abstract.CreateSessionResponse(output="x").output == "x"
    assert type(abstract.Observation(exit_code=0)) is abstract.BashObservation
    assert type(abstract.CloseSessionRequest()) is abstract.CloseBashSessionRequest
    assert abstract.CloseSessionResponse().session_type == "bash"
    assert abstract.Observation(output="x").model_dump() == abstract.BashObservation(output="x").model_dump()


def test_a_union_takes_the_member_that_the_discriminator_names() -> None:
    class Request(BaseModel):
        action: abstract.Action

    assert type(Request(action={"action_type": "bash_interrupt"}).action) is abstract.BashInterruptAction
    assert type(Request(action={"action_type": "bash", "command": "x"}).action) is abstract.BashAction
    with pytest.raises(ValidationError):
        Request(action={"command": "x"})


DOCKER = deployment_config.DockerDeploymentConfig
WINDOW = abstract.CreateBashSessionRequest
FORBID = ("Local", "Docker", "Modal", "Fargate", "Dummy")
FINITE = {
    "Daytona": "container_timeout", "Fargate": "container_timeout",
    "Kubernetes": "time_to_live", "Modal": "deployment_timeout",
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (DOCKER, {"docker_args": ["--platform=linux/amd64"], "platform": "linux/amd64"}),
        (DOCKER, {"docker_args": ["--rm", "--platform"]}),
        (DOCKER, {"docker_args": "--platform=linux/amd64"}),
        *((WINDOW, size) for size in ({"rows": 0}, {"columns": -1}, {"columns": 70000})),
        *((getattr(deployment_config, f"{name}DeploymentConfig"), {"no_such_field": 1}) for name in FORBID),
        *((getattr(deployment_config, f"{name}DeploymentConfig"), {field: math.inf}) for name, field in FINITE.items()),
        *((getattr(runtime_config, f"{name}RuntimeConfig"), {"no_such_field": 1}) for name in ("Local", "Dummy")),
    ],
)
def test_what_is_wrong_is_refused(model: type[BaseModel], fields: dict[str, typing.Any]) -> None:
    model()
    with pytest.raises(ValidationError):
        model(**fields)


def test_configurations_are_mutable_and_copied_deeply() -> None:
    config = deployment_config.DockerDeploymentConfig(docker_args=["-v", "/a:/b"])
    other = config.model_copy(deep=True)
    other.docker_args.append("--rm")
    other.image, other.platform, other.python_standalone_dir = "other", "linux/arm64", "/opt"
    assert (config.docker_args, config.image, config.platform) == (["-v", "/a:/b"], "python:3.11", None)
    assert json.loads(other.model_dump_json())["image"] == "other"


@pytest.mark.parametrize(
    ("given", "platform", "left"),
    [
        (["--platform=linux/amd64", "--rm"], "linux/amd64", ["--rm"]),
        (["-v", "a:b", "--platform", "linux/amd64", "--rm"], "linux/amd64", ["-v", "a:b", "--rm"]),
        (["--rm"], None, ["--rm"]),
        ([], None, []),
    ],
)
def test_the_platform_is_taken_out_of_docker_args(given: list[str], platform: str | None, left: list[str]) -> None:
    data = {"docker_args": list(given)}
    config = deployment_config.DockerDeploymentConfig.model_validate(data)
    assert (config.platform, config.docker_args) == (platform, left)
    assert data == {"docker_args": given}


def test_annotations_of_models_resolve() -> None:
    for name in abstract.__all__:
        thing = getattr(abstract, name)
        if isinstance(thing, type) and issubclass(thing, BaseModel):
            typing.get_type_hints(thing)
            assert thing.__doc__, name


async def test_a_runtime_without_streaming_says_so() -> None:
    class Plain(DummyRuntime):
        stream_in_session = abstract.AbstractRuntime.stream_in_session

    with pytest.raises(NotSupportedError, match="Plain does not stream"):
        async for _ in Plain().stream_in_session(abstract.BashAction(command="x")):
            pass


async def test_a_stream_ends_with_the_observation() -> None:
    runtime = DummyRuntime()
    runtime.run_in_session_outputs = abstract.BashObservation(output="a", exit_code=0)
    items = [item async for item in runtime.stream_in_session(abstract.BashAction(command="x"))]
    assert items == ["a", runtime.run_in_session_outputs]


async def test_a_sessions_observation_is_as_pydantic_makes_it() -> None:
    """It is made without pydantic's own constructor, which takes longer."""
    async with LocalRuntime() as runtime:
        await runtime.create_session()
        made = await runtime.run("echo a; false", check="silent")
    given: dict[str, typing.Any] = {"output": "a\n", "exit_code": 1, "failure_reason": "", "output_dropped": 0}
    given["expect_string"] = "SHELLPS1PREFIX"
    wanted = abstract.BashObservation(**given)
    assert (made, repr(made), made.model_fields_set) == (wanted, repr(wanted), wanted.model_fields_set)
    assert (made.__pydantic_extra__, made.__pydantic_private__) == (None, None)
    assert list(made.__dict__) == list(abstract.BashObservation.model_fields)
    for copied in (pickle.loads(pickle.dumps(made)), made.model_copy(deep=True), copy.copy(made)):
        assert copied == wanted
    assert made.model_dump_json() == wanted.model_dump_json()
    made.output = "b"
    assert made.output == "b" and made.model_dump(exclude_unset=True) == {**given, "output": "b"}


async def test_an_action_may_be_of_another_class_or_changed_since() -> None:
    class Named(abstract.BashAction):
        who: str = "me"

    class Reads:
        """No model: its fields come from wherever it likes."""

        def __init__(self, **fields: object) -> None:
            self._fields = abstract.BashAction(**fields).model_dump()

        def __getattr__(self, name: str) -> object:
            return self._fields[name]

    changed = abstract.BashAction(command="false", check="raise")
    changed.command, changed.check = "echo changed; (exit 2)", "silent"
    fields = {"command": changed.command, "check": "silent"}
    async with LocalRuntime() as runtime:
        await runtime.create_session()
        for action in (changed, Named(**fields), Reads(**fields)):
            answer = await runtime.run_in_session(action)
            assert (answer.output, answer.exit_code) == ("changed\n", 2)


def test_the_core_makes_models_of_what_can_be_one_only() -> None:
    for given in ((), (abstract.BashObservation,), ({}, {}, ()), (abstract.BashObservation, [], ())):
        with pytest.raises(TypeError):
            _core.model(*given)
    with pytest.raises(TypeError):
        _core.model(abstract.BashObservation, {}, 3)
    with pytest.raises(AttributeError):
        _core.model(int, {}, ())


def test_each_action_has_a_list_of_patterns_of_its_own() -> None:
    first, second = abstract.BashAction(command="a"), abstract.BashAction(command="b")
    first.expect.append("x")
    assert second.expect == [] and "expect" not in second.model_fields_set

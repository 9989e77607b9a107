"""What is written twice agrees: keyword arguments and configurations, the package's names, the form without `async`."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import typing
from typing import Any

import pytest
from pydantic import BaseModel

import swerex_c
from swerex_c import DockerDeployment, sync
from swerex_c.deployment import config as deployment_config
from swerex_c.interfaces import AbstractDeployment, AbstractRuntime
from swerex_c.runtime.config import LocalRuntimeConfig, RemoteRuntimeConfig
from swerex_c.utils.load import load_class

CONFIGS: dict[str, Any] = {
    **{name: getattr(deployment_config, name) for name in deployment_config.__all__ if "DeploymentConfig" in name},
    "LocalRuntimeConfig": LocalRuntimeConfig,
    "RemoteRuntimeConfig": RemoteRuntimeConfig,
}
del CONFIGS["DeploymentConfig"], CONFIGS["DummyDeploymentConfig"]  # a union; without a field
WRITTEN_OUT = {"modal"}  # its image may also be an object of Modal's, which no configuration holds


def made_by(config: Any) -> Any:
    return load_class(getattr(config, "deployment_class", None) or config.runtime_class)


def plain(annotation: Any) -> Any:
    """Return the annotation without `Required`, which only a keyword has."""
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Required else annotation


@pytest.mark.parametrize("name", CONFIGS)
def test_an_editor_knows_the_keywords(name: str) -> None:
    config, constructor = CONFIGS[name], inspect.signature(made_by(CONFIGS[name]).__init__)
    fields = {key: field for key, field in config.model_fields.items() if key != "type"}
    named = set(constructor.parameters) - {"self", "logger", "kwargs"}
    if config.model_fields.get("type") and config.model_fields["type"].default in WRITTEN_OUT:
        assert named == set(fields)
        return
    annotated = re.fullmatch(r"Unpack\[(\w+)\]", str(constructor.parameters["kwargs"].annotation))
    assert annotated
    keywords = getattr(sys.modules[config.__module__], annotated[1])
    hints = typing.get_type_hints(keywords, include_extras=True)
    assert list(hints) == [key for key in fields if key not in named]
    assert {key: plain(hint) for key, hint in hints.items()} == {key: fields[key].annotation for key in hints}
    for key, hint in hints.items():
        assert (typing.get_origin(hint) is typing.Required) == fields[key].is_required(), key


@pytest.mark.parametrize("name", CONFIGS)
def test_help_shows_the_keywords_with_their_defaults(name: str) -> None:
    shown = inspect.signature(made_by(CONFIGS[name])).parameters
    assert set(shown) == {*CONFIGS[name].model_fields, "logger"} - {"type"}
    assert all(argument.kind is not argument.VAR_KEYWORD for argument in shown.values())


def test_help_shows_a_subclass_its_own_arguments() -> None:
    class Own(DockerDeployment):
        def __init__(self, number: int):
            super().__init__(image=str(number))

    assert list(inspect.signature(Own).parameters) == ["number"]
    assert Own(3)._config.image == "3"


def test_the_package_names_the_same_things_twice() -> None:
    tree = ast.parse(inspect.getsource(swerex_c))
    checked, _ = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.asname: str(node.module).removeprefix("swerex_c.")
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == swerex_c._MODULES
    for name in swerex_c.__all__:
        assert getattr(swerex_c, name) is not None and name in dir(swerex_c)


ASYNCHRONOUS = {"is_alive_now", "add_hook"}
"""Methods of which there is no other form: for the package itself, or called before `SyncDeployment` is made."""


@pytest.mark.parametrize(
    ("form", "original"), [(sync.SyncRuntime, AbstractRuntime), (sync.SyncDeployment, AbstractDeployment)]
)
def test_the_form_without_async_has_the_same_methods(form: type, original: type) -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        found = {name: it for name, it in vars(kind).items() if inspect.isfunction(it) and not name.startswith("_")}
        return {name: list(inspect.signature(it).parameters) for name, it in found.items() if name not in ASYNCHRONOUS}

    assert methods(form) == methods(original)


def test_every_configuration_is_compared() -> None:
    kinds = {kind for kind in vars(deployment_config).values() if inspect.isclass(kind) and issubclass(kind, BaseModel)}
    assert kinds <= {*CONFIGS.values(), deployment_config.DummyDeploymentConfig, deployment_config.IsolationConfig}

"""What DaytonaDeployment uses of Daytona's library is there: a new version that lacks it fails here, by name."""

from __future__ import annotations

import inspect
import json
import urllib.request
from typing import Any

import pytest

daytona = pytest.importorskip("daytona")

from tests.support.daytona_fixtures import KEY, DaytonaWorld, server, world  # noqa: E402
from tests.support.wait import DEADLINE  # noqa: E402

__all__ = ["server", "world"]


@pytest.mark.parametrize(
    ("of", "name", "parameters"),
    [
        ("AsyncDaytona", "create", ["params", "timeout"]),
        ("AsyncDaytona", "get", ["sandbox_id_or_name"]),
        ("AsyncDaytona", "list", ["query"]),
        ("AsyncDaytona", "close", []),
        ("AsyncSandbox", "delete", ["timeout"]),
        ("AsyncSandbox", "refresh_data", []),
        ("AsyncProcess", "create_pty_session", ["id", "on_data"]),
        ("AsyncProcess", "kill_pty_session", ["session_id"]),
        ("AsyncPtyHandle", "send_input", ["data"]),
        ("AsyncPtyHandle", "wait", []),
        ("AsyncPtyHandle", "disconnect", []),
    ],
)
def test_a_method_is_there(of: str, name: str, parameters: list[str]) -> None:
    function = getattr(_class(of), name)
    assert list(inspect.signature(inspect.unwrap(function)).parameters)[1 : 1 + len(parameters)] == parameters or set(
        parameters
    ) <= set(inspect.signature(inspect.unwrap(function)).parameters)
    if name != "list":
        assert inspect.iscoroutinefunction(inspect.unwrap(function))


def _class(name: str) -> Any:
    if hasattr(daytona, name):
        return getattr(daytona, name)
    if name == "AsyncProcess":
        from daytona._async.process import AsyncProcess

        return AsyncProcess
    from daytona.handle.async_pty_handle import AsyncPtyHandle

    return AsyncPtyHandle


@pytest.mark.parametrize(
    ("of", "fields"),
    [
        ("DaytonaConfig", ["api_key", "target"]),
        (
            "CreateSandboxFromImageParams",
            ["image", "name", "labels", "auto_stop_interval", "auto_delete_interval", "ephemeral", "ttl_minutes"],
        ),
    ],
)
def test_a_field_is_there(of: str, fields: list[str]) -> None:
    assert set(fields) <= set(getattr(daytona, of).model_fields)


def test_a_query_can_name_labels() -> None:
    assert daytona.ListSandboxesQuery(labels={"a": "b"}).labels == {"a": "b"}


@pytest.mark.parametrize("field", ["id", "name", "labels", "state", "error_reason"])
def test_a_sandbox_tells(field: str) -> None:
    assert field in daytona.AsyncSandbox.model_fields


def test_the_states_that_mean_the_end_are_there() -> None:
    from swerex_c.providers.daytona.backend import _STATES

    assert set(_STATES) <= {it.value for it in daytona.SandboxState}


def test_an_error_has_its_status() -> None:
    assert daytona.DaytonaNotFoundError("x", status_code=404).status_code == 404
    assert issubclass(daytona.DaytonaAuthenticationError, daytona.DaytonaError)


async def test_the_tests_own_server_answers_as_the_models_want(world: DaytonaWorld) -> None:
    """The library takes what it does not know and what is missing; the models, asked themselves, do not."""
    from daytona_api_client_async import ListSandboxesResponse, Sandbox
    from daytona_toolbox_api_client_async import PtyListResponse

    from swerex_c.providers.daytona.labels import client

    daytona_client = await client()
    sandbox = await daytona_client.create(daytona.CreateSandboxFromImageParams(image="debian:12"))
    try:
        toolbox = f"/toolbox/{sandbox.id}/process"
        for path, model in [
            (f"/api/sandbox/{sandbox.id}", Sandbox),
            ("/api/sandbox", ListSandboxesResponse),
            (f"{toolbox}/pty", PtyListResponse),
        ]:
            asked = urllib.request.Request(world.url + path, headers={"Authorization": f"Bearer {KEY}"})
            with urllib.request.urlopen(asked, timeout=DEADLINE) as answer:
                told = json.load(answer)
            made = model.from_dict(told)
            assert made is not None and not made.additional_properties
    finally:
        await daytona_client.delete(sandbox)
        await daytona_client.close()

"""Configuration of a deployment in a Daytona sandbox."""

from typing import ClassVar, TypedDict

from pydantic import ConfigDict, Field

from swerex_c.providers.config import ProviderConfig

__all__ = ["DaytonaDeploymentConfig", "DaytonaKeywords"]


class DaytonaDeploymentConfig(ProviderConfig):
    """Configuration of a Daytona deployment.

    As in SWE-ReX, it has no `type` and ignores unknown fields.
    """

    deployment_class: ClassVar[str] = "swerex_c.providers.daytona.deployment:DaytonaDeployment"

    model_config = ConfigDict(extra=None)

    api_key: str = Field(default="", description="Key of the Daytona account; if empty, the variable DAYTONA_API_KEY")
    target: str = Field(default="us", description="Region of the sandbox, such as us or eu")
    port: int = Field(default=8000, description="Not used; in SWE-ReX, the port of the server")
    container_timeout: float = Field(
        default=60 * 15, allow_inf_nan=False, description="Lifetime of the sandbox in seconds"
    )
    runtime_timeout: float = Field(default=60, description="Not used; in SWE-ReX, the timeout of a request")
    image: str = Field(default="python:3.11", description="Image of the sandbox")

    startup_timeout: float = 600.0
    """Seconds to wait until a command can run, which includes building the image if Daytona has to."""

    server: bool | None = None
    """True is not supported: no server runs in the sandbox."""


class DaytonaKeywords(TypedDict, total=False):
    """Keyword arguments of `DaytonaDeployment`: the fields of `DaytonaDeploymentConfig`."""

    api_key: str
    target: str
    port: int
    container_timeout: float
    runtime_timeout: float
    image: str
    startup_timeout: float
    server: bool | None

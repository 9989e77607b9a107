"""Configuration of a deployment in a Modal sandbox."""

from pathlib import PurePath
from typing import Any, ClassVar, Literal

from pydantic import Field

from swerex_c.providers.config import ProviderConfig

__all__ = ["ModalDeploymentConfig"]


class ModalDeploymentConfig(ProviderConfig):
    """Configuration of a deployment in a Modal sandbox.

    The sandbox is reached with Modal's SDK. The image needs only bash.
    """

    deployment_class: ClassVar[str] = "swerex_c.providers.modal.deployment:ModalDeployment"

    image: str | PurePath = "python:3.11"
    """Name of an image in a registry, or path of a Dockerfile."""

    startup_timeout: float = 180.0
    """Seconds to wait until a command can run, not counting the build of the image."""

    runtime_timeout: float = 60.0
    """Not used; in SWE-ReX, the timeout of requests to the server."""

    deployment_timeout: float = Field(default=3600.0, allow_inf_nan=False)
    """Seconds after which Modal ends the sandbox in any case. This limits the cost of a forgotten sandbox."""

    modal_sandbox_kwargs: dict[str, Any] = {}
    """Additional arguments for `modal.Sandbox.create`."""

    type: Literal["modal"] = "modal"
    """Discriminator of the deployment configurations. Do not change it."""

    install_pipx: bool = True
    """Not used; in SWE-ReX, it adds pipx to the image, to install the server."""

    server: bool | None = None
    """True is not supported: no server runs in the sandbox."""

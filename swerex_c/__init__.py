"""Package root: SWE-ReX's API on an engine written in C.

Importing this package is cheap: submodules are imported on first use.

    from swerex_c import LocalRuntime

    async with LocalRuntime() as runtime:
        await runtime.create_session()
        answer = await runtime.run("echo hi")

To make code that imports `swerex` use these modules instead:

    import swerex_c

    swerex_c.install()

`swerex_c.__version__` is the version of SWE-ReX's API; `swerex_c._version.__version__` is that of this distribution.
"""

from __future__ import annotations

from swerex_c._version import API_VERSION as __version__
from swerex_c._version import PACKAGE_NAME, REMOTE_EXECUTABLE_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from swerex_c.deployment.daytona import DaytonaDeployment
    from swerex_c.deployment.docker import DockerDeployment
    from swerex_c.deployment.fargate import FargateDeployment
    from swerex_c.deployment.kubernetes import KubernetesDeployment
    from swerex_c.deployment.local import LocalDeployment
    from swerex_c.deployment.modal import ModalDeployment
    from swerex_c.deployment.ray import RayDeployment
    from swerex_c.deployment.remote import RemoteDeployment
    from swerex_c.deployment.ssh import SSHDeployment
    from swerex_c.exceptions import (
        BashIncorrectSyntaxError,
        CommandTimeoutError,
        NonZeroExitCodeError,
        SandboxLostError,
        SessionDiedError,
        SwerexException,
    )
    from swerex_c.models import (
        BashAction,
        BashInterruptAction,
        BashObservation,
        CloseBashSessionRequest,
        Command,
        CommandResponse,
        CreateBashSessionRequest,
        ReadFileRequest,
        UploadRequest,
        WriteFileRequest,
    )
    from swerex_c.pool import Pool
    from swerex_c.runtime.local import LocalRuntime
    from swerex_c.runtime.remote import RemoteRuntime
    from swerex_c.swap import install, uninstall

_MODULES = {
    "deployment.daytona": ("DaytonaDeployment",),
    "deployment.docker": ("DockerDeployment",),
    "deployment.fargate": ("FargateDeployment",),
    "deployment.kubernetes": ("KubernetesDeployment",),
    "deployment.local": ("LocalDeployment",),
    "deployment.modal": ("ModalDeployment",),
    "deployment.ray": ("RayDeployment",),
    "deployment.remote": ("RemoteDeployment",),
    "deployment.ssh": ("SSHDeployment",),
    "exceptions": (
        "BashIncorrectSyntaxError",
        "CommandTimeoutError",
        "NonZeroExitCodeError",
        "SandboxLostError",
        "SessionDiedError",
        "SwerexException",
    ),
    "models": (
        "BashAction",
        "BashInterruptAction",
        "BashObservation",
        "CloseBashSessionRequest",
        "Command",
        "CommandResponse",
        "CreateBashSessionRequest",
        "ReadFileRequest",
        "UploadRequest",
        "WriteFileRequest",
    ),
    "pool": ("Pool",),
    "runtime.local": ("LocalRuntime",),
    "runtime.remote": ("RemoteRuntime",),
    "swap": ("install", "uninstall"),
}
"""Names of this module that are imported on first use, by the submodule that has them."""

__all__ = [
    "PACKAGE_NAME",
    "REMOTE_EXECUTABLE_NAME",
    "BashAction",
    "BashIncorrectSyntaxError",
    "BashInterruptAction",
    "BashObservation",
    "CloseBashSessionRequest",
    "Command",
    "CommandResponse",
    "CommandTimeoutError",
    "CreateBashSessionRequest",
    "DaytonaDeployment",
    "DockerDeployment",
    "FargateDeployment",
    "KubernetesDeployment",
    "LocalDeployment",
    "LocalRuntime",
    "ModalDeployment",
    "NonZeroExitCodeError",
    "Pool",
    "RayDeployment",
    "ReadFileRequest",
    "RemoteDeployment",
    "RemoteRuntime",
    "SSHDeployment",
    "SandboxLostError",
    "SessionDiedError",
    "SwerexException",
    "UploadRequest",
    "WriteFileRequest",
    "__version__",
    "install",
    "uninstall",
]


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(f"swerex_c.{module}"), name)
    if name == "_core":  # not imported yet, or not built
        import os.path
        from importlib import import_module

        try:
            return import_module("swerex_c._core")
        except ModuleNotFoundError as error:
            raise ImportError(
                f"{os.path.dirname(__path__[0])} is a checkout whose C extension was not built: run `pip install -e .` "
                "there, or leave that directory to import the installed package"
            ) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

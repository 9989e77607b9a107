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

from swerex_c._version import API_VERSION
from swerex_c._version import PACKAGE_NAME as PACKAGE_NAME
from swerex_c._version import REMOTE_EXECUTABLE_NAME as REMOTE_EXECUTABLE_NAME

__version__ = API_VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from swerex_c.deployment.daytona import DaytonaDeployment as DaytonaDeployment
    from swerex_c.deployment.docker import DockerDeployment as DockerDeployment
    from swerex_c.deployment.fargate import FargateDeployment as FargateDeployment
    from swerex_c.deployment.kubernetes import KubernetesDeployment as KubernetesDeployment
    from swerex_c.deployment.local import LocalDeployment as LocalDeployment
    from swerex_c.deployment.modal import ModalDeployment as ModalDeployment
    from swerex_c.deployment.ray import RayDeployment as RayDeployment
    from swerex_c.deployment.remote import RemoteDeployment as RemoteDeployment
    from swerex_c.deployment.ssh import SSHDeployment as SSHDeployment
    from swerex_c.exceptions import BashIncorrectSyntaxError as BashIncorrectSyntaxError
    from swerex_c.exceptions import CommandTimeoutError as CommandTimeoutError
    from swerex_c.exceptions import NonZeroExitCodeError as NonZeroExitCodeError
    from swerex_c.exceptions import SandboxLostError as SandboxLostError
    from swerex_c.exceptions import SessionDiedError as SessionDiedError
    from swerex_c.exceptions import SwerexException as SwerexException
    from swerex_c.models import BashAction as BashAction
    from swerex_c.models import BashInterruptAction as BashInterruptAction
    from swerex_c.models import BashObservation as BashObservation
    from swerex_c.models import CloseBashSessionRequest as CloseBashSessionRequest
    from swerex_c.models import Command as Command
    from swerex_c.models import CommandResponse as CommandResponse
    from swerex_c.models import CreateBashSessionRequest as CreateBashSessionRequest
    from swerex_c.models import ReadFileRequest as ReadFileRequest
    from swerex_c.models import UploadRequest as UploadRequest
    from swerex_c.models import WriteFileRequest as WriteFileRequest
    from swerex_c.pool import Pool as Pool
    from swerex_c.runtime.local import LocalRuntime as LocalRuntime
    from swerex_c.runtime.remote import RemoteRuntime as RemoteRuntime
    from swerex_c.swap import install as install
    from swerex_c.swap import uninstall as uninstall

_MODULES = {
    name: module
    for module, names in {
        "deployment.daytona": "DaytonaDeployment",
        "deployment.docker": "DockerDeployment",
        "deployment.fargate": "FargateDeployment",
        "deployment.kubernetes": "KubernetesDeployment",
        "deployment.local": "LocalDeployment",
        "deployment.modal": "ModalDeployment",
        "deployment.ray": "RayDeployment",
        "deployment.remote": "RemoteDeployment",
        "deployment.ssh": "SSHDeployment",
        "exceptions": "BashIncorrectSyntaxError CommandTimeoutError NonZeroExitCodeError SandboxLostError "
        "SessionDiedError SwerexException",
        "models": "BashAction BashInterruptAction BashObservation CloseBashSessionRequest Command CommandResponse "
        "CreateBashSessionRequest ReadFileRequest UploadRequest WriteFileRequest",
        "pool": "Pool",
        "runtime.local": "LocalRuntime",
        "runtime.remote": "RemoteRuntime",
        "swap": "install uninstall",
    }.items()
    for name in names.split()
}
"""Names of this module that are imported on first use, each with the submodule that has it."""

if not TYPE_CHECKING:  # type checkers follow the imports above
    __all__ = list(_MODULES.keys() | {"PACKAGE_NAME", "REMOTE_EXECUTABLE_NAME", "__version__"})


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        return getattr(import_module(f"swerex_c.{_MODULES[name]}"), name)
    if name == "_core":  # not imported yet, or not built
        import os.path

        try:
            return import_module("swerex_c._core")
        except ModuleNotFoundError as error:
            raise ImportError(
                f"{os.path.dirname(__path__[0])} is a checkout whose C extension was not built: run `pip install -e .` "
                "there, or leave that directory to import the installed package"
            ) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})

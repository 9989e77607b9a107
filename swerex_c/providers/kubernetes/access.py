"""Address and credentials of a Kubernetes cluster.

They come from a kubeconfig, or from the service account of the pod that this process runs in. The library
`kubernetes_asyncio` reads kubeconfigs, and runs the programs that they name for credentials.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from swerex_c.providers.kubernetes.errors import UnusableConfigError, one_line
from swerex_c.utils.temporary import temporary_directory

__all__ = ["Access", "load_configuration", "require"]

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory of the credentials that a pod has for its own cluster."""


def require() -> Any:
    """Import and return the library `kubernetes_asyncio`.

    Its modules `client` and `config` are imported too.

    Raises:
        ModuleNotFoundError: if the library is not installed; the message says how to install it.
    """
    try:
        import kubernetes_asyncio
        import kubernetes_asyncio.client
        import kubernetes_asyncio.config
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "kubernetes_asyncio":
            raise
        message = "Pods of Kubernetes are reached by kubernetes_asyncio: pip install 'swerex-c[kubernetes]'"
        raise ModuleNotFoundError(message, name=error.name) from None
    return kubernetes_asyncio


@dataclasses.dataclass(frozen=True)
class Access:
    """The choice of a cluster and of the credentials for it."""

    context: str | None = None
    """Context of the kubeconfig; None is its current context."""

    kubeconfig: str | None = None
    """Path of a file, or of several as in KUBECONFIG; None is that variable or ~/.kube/config."""

    in_cluster: bool | None = None
    """True uses the service account of the pod we run in; None does so where there is no kubeconfig."""

    def resolved(self) -> Access:
        """Return a copy with the defaults resolved from the environment.

        Raises:
            UnusableConfigError: if there is no kubeconfig, and we do not run in a pod.
        """
        if self.in_cluster:
            return Access(in_cluster=True)
        files = self.kubeconfig or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
        if any(it and os.path.exists(os.path.expanduser(it)) for it in files.split(os.pathsep)):
            return Access(self.context, files, False)
        if self.in_cluster is None and self.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            return Access(in_cluster=True)
        raise UnusableConfigError(f"There is no kubeconfig at {files}, and this is not a pod of a cluster")

    def unusable(self, error: BaseException) -> UnusableConfigError:
        """Return the error for a source of credentials that caused `error`."""
        origin = "The pod's service account" if self.in_cluster else f"The kubeconfig {self.kubeconfig}"
        return UnusableConfigError(f"{origin} cannot be used: {one_line(error)}")


@contextlib.asynccontextmanager
async def load_configuration(access: Access) -> AsyncIterator[tuple[Any, str]]:
    """Read and yield the library's configuration and the namespace of the context.

    The key files that the library wrote are deleted after the block.

    Raises:
        UnusableConfigError: if there is no configuration, it is malformed, or it leads to no credentials; also in place
            of any exception that the block raises.
    """
    with temporary_directory("swerex-c-") as directory:
        try:
            yield await _load(access, directory)
        except Exception as error:  # a malformed file can make the library raise any exception
            raise access.unusable(error) from error
        finally:
            # The library caches the paths of the key files that it wrote, but they are deleted with the directory.
            files = getattr(require().config.kube_config, "_temp_files", {})
            for content in [it for it, path in files.items() if path.startswith(directory)]:
                del files[content]


async def _load(access: Access, directory: str) -> tuple[Any, str]:
    library = require()
    configuration = library.client.Configuration()
    namespace = ""
    if access.in_cluster:
        library.config.load_incluster_config(client_configuration=configuration)
        with contextlib.suppress(OSError):
            namespace = (_SERVICE_ACCOUNT / "namespace").read_text().strip()
    else:
        loader = await library.config.load_kube_config(
            config_file=access.kubeconfig,
            context=access.context,
            client_configuration=configuration,
            persist_config=False,
            temp_file_path=directory,
        )
        namespace = str((loader.current_context or {}).get("context", {}).get("namespace") or "")
    # A token is read again when the server refuses it. Its file may end with a newline, which no header may contain.
    configuration.refresh_api_key_hook = None
    configuration.api_key = {name: str(key).strip() for name, key in configuration.api_key.items()}
    return configuration, namespace or "default"

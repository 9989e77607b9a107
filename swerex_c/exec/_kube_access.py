"""Which cluster of Kubernetes, and as whom: kubeconfigs, and what a pod has for its own cluster.

The library `kubernetes_asyncio` reads them, and runs the programs that they name for credentials.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from swerex_c.exec._kube_errors import Unusable, require, unusable

__all__ = ["Access", "reading", "settings"]

_SERVICE = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds what it may reach its cluster with."""


@dataclasses.dataclass(frozen=True)
class Access:
    """Which cluster, and as whom."""

    context: str | None = None
    """Of the kubeconfig; None is its current one."""

    kubeconfig: str | None = None
    """A file, or several as in KUBECONFIG; None is that variable or ~/.kube/config."""

    in_cluster: bool | None = None
    """Whether to use what a pod has for its own cluster; None does where there is no kubeconfig."""

    def settled(self) -> Access:
        """The same with what the environment says now in it."""
        if self.in_cluster:
            return Access(in_cluster=True)
        files = self.kubeconfig or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
        found = any(it and os.path.exists(os.path.expanduser(it)) for it in files.split(os.pathsep))
        inside = "KUBERNETES_SERVICE_HOST" in os.environ
        if self.in_cluster is None and not found and self.kubeconfig is None and inside:
            return Access(in_cluster=True)
        if not found:
            raise Unusable(f"There is no kubeconfig at {files}, and this is not a pod of a cluster")
        return Access(self.context, files, False)

    @property
    def origin(self) -> str:
        """What messages call that which says who we are."""
        return "The pod's service account" if self.in_cluster else f"The kubeconfig {self.kubeconfig}"


@contextlib.asynccontextmanager
async def reading(access: Access) -> AsyncIterator[tuple[Any, str]]:
    """The library's configuration, as things are now, and the namespace of the context. Its files are gone afterwards.

    Raises:
        Unusable: if there is none, or it is malformed, or no credentials can be had by it; also if that shows within
            the block.
    """
    with tempfile.TemporaryDirectory(prefix="swerex-c-") as directory:
        try:
            yield await _read(access, directory)
        except Unusable:
            raise
        except Exception as error:  # the library raises whatever a malformed file leads to
            raise unusable(error, access.origin) from error
        finally:
            # It remembers the files that it wrote keys into; they are gone with the directory.
            files = getattr(require().config.kube_config, "_temp_files", {})
            for content in [it for it, path in files.items() if path.startswith(directory)]:
                del files[content]


async def _read(access: Access, directory: str) -> tuple[Any, str]:
    configuration = require().client.Configuration()
    namespace = "default"
    if access.in_cluster:
        require().config.load_incluster_config(client_configuration=configuration)
        with contextlib.suppress(OSError):
            namespace = (_SERVICE / "namespace").read_text().strip() or namespace
    else:
        loader = await require().config.load_kube_config(
            config_file=access.kubeconfig,
            context=access.context,
            client_configuration=configuration,
            persist_config=False,
            temp_file_path=directory,
        )
        namespace = str((loader.current_context or {}).get("context", {}).get("namespace") or namespace)
    _strip(configuration)
    if (refresh := configuration.refresh_api_key_hook) is not None:

        def renewed(it: Any) -> None:
            refresh(it)
            _strip(it)

        configuration.refresh_api_key_hook = renewed
    return configuration, namespace


def settings(configuration: Any) -> list[Any]:
    """What connections are made by, to be compared: two that have the same can use the same ones."""
    names = ("host", "ssl_ca_cert", "cert_file", "key_file", "verify_ssl", "tls_server_name", "proxy")
    return [_content(getattr(configuration, it)) for it in names]


def _strip(configuration: Any) -> None:
    """A file with a token may end with the end of its line, which no header may hold."""
    configuration.api_key = {name: str(key).strip() for name, key in configuration.api_key.items()}


def _content(value: Any) -> Any:
    """A setting to compare: of a file, what is in it."""
    if isinstance(value, str) and value.startswith("/"):
        with contextlib.suppress(OSError):
            return Path(value).read_bytes()
    return value

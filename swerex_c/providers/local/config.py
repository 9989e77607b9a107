"""Configuration of deployments on this machine, directly or in an isolated view."""

from typing import ClassVar, Literal, Self, TypedDict

from pydantic import BaseModel, ConfigDict, Field, model_validator

from swerex_c.providers.config import ProviderConfig

__all__ = ["IsolationConfig", "LocalDeploymentConfig", "LocalKeywords"]


class IsolationConfig(BaseModel):
    """Configuration of an isolated view of this machine, made by bubblewrap.

    The view has private /tmp, /var/tmp and processes. It hides all homes, /run with the sockets of container engines
    and services, files with credentials in /etc (listed in `bubblewrap.HIDDEN`), outside processes, and the environment
    except PATH, HOME, USER, LOGNAME, SHELL, TERM, TZ, LANG, LANGUAGE and LC_*. It protects against mistakes, not
    attacks: a hostile program may escape, above all with a shared network, which gives access to the abstract unix
    sockets of all programs of the machine.
    """

    writable: list[str] = []
    """Absolute paths that can be changed. Paths in /tmp are visible only if listed here or in `shown`."""

    network: bool = True
    """True to share the machine's network. Without it the view has only its own loopback device."""

    root: Literal["read-only", "overlay"] = "read-only"
    """Handling of writes elsewhere: they are refused, or go to a layer in memory that ends with the view. There a user
    other than root can change only their own files in their own directories, and needs Linux 6.6."""

    hidden: list[str] = []
    """More directories that appear empty and files that are absent, as absolute paths."""

    shown: list[str] = []
    """Absolute paths to show although they are hidden by default: an interpreter in a home, a socket's directory. If
    paths of `writable`, `hidden` and `shown` are nested, the longest applies."""

    variables: list[str] = []
    """Names of more variables of this process's environment to pass to programs."""

    directory: str | None = None
    """The working directory of programs; None is the current directory when the view is made."""

    model_config = ConfigDict(extra="forbid")


class LocalDeploymentConfig(ProviderConfig):
    """Configuration of a deployment on this machine, in this process."""

    deployment_class: ClassVar[str] = "swerex_c.providers.local.deployment:LocalDeployment"

    type: Literal["local"] = "local"
    """Discriminator of the deployment type. Do not change it."""

    isolation: IsolationConfig | None = None
    """The isolated view to run programs in; None runs them on the machine as it is."""

    startup_timeout: float = 30.0
    """Maximum number of seconds for starting an isolated view."""

    warm_sessions: int = Field(default=0, ge=0)
    """Number of shells to start ahead of time, see `LocalRuntimeConfig`. Not in an isolated view."""

    @model_validator(mode="after")
    def _no_warm_sessions_in_a_view(self) -> Self:
        if self.warm_sessions and self.isolation is not None:
            raise ValueError("warm_sessions cannot be combined with isolation")
        return self


class LocalKeywords(TypedDict, total=False):
    """Keyword arguments of `LocalDeployment`: the fields of `LocalDeploymentConfig`."""

    isolation: IsolationConfig | None
    startup_timeout: float
    warm_sessions: int

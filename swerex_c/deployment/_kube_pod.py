"""The pod that a configuration describes, as Kubernetes wants to see it, and whose it is."""

from __future__ import annotations

import copy
import functools
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swerex_c.deployment import _owners
from swerex_c.exceptions import InvalidInputError

if TYPE_CHECKING:
    from swerex_c.deployment.config import KubernetesDeploymentConfig

__all__ = ["OWNER", "facts", "manifest", "name_for", "read_template", "selector_of_host", "selector_of_process"]

OWNER = "swerex_c"
"""The label that every pod of ours has; its value is the pod's name."""

_HOST = "swerex_c.host"
"""The label with the machine whose process made the pod."""

_PROCESS = "swerex_c.process"
"""The label with a name of that process that no other has."""

_WAIT = (
    "trap 'exit 0' TERM INT HUP; exec 9<> <(:) || exec sleep 2147483647; while :; do read -r -t 5 -u 9; (:); done"
)
"""What a container does while commands run in it: it reads from a pipe that never has anything in it, which takes no
program but bash. It ends when it is asked to; and whenever a child of its own ends, bash also reaps those that it
inherited from others."""

_LONGEST_NAME = 63
"""It is a label and the pod's host name too."""


def name_for(image: str) -> str:
    """A name that no other pod has, with that of the image in it."""
    tail = secrets.token_hex(8)
    last = re.sub(r"[^a-z0-9]+", "-", image.partition("@")[0].rpartition("/")[2].lower()).strip("-")
    return f"{last[: _LONGEST_NAME - len(tail) - 1].strip('-') or 'pod'}-{tail}"


@functools.cache
def _process(_: int) -> str:
    return secrets.token_hex(8)


def selector_of_process() -> str:
    """Selects the pods of this process."""
    return f"{_PROCESS}={_process(os.getpid())}"


def selector_of_host() -> str:
    """Selects the pods of processes of this machine."""
    return f"{OWNER},{_HOST}={_owners.labels('', keep=False)[_HOST]}"


def facts(pod: Mapping[str, Any]) -> dict[str, str]:
    """What `_owners` wants to know of a pod."""
    metadata = pod["metadata"]
    return {**(metadata.get("annotations") or {}), OWNER: (metadata.get("labels") or {}).get(OWNER, "")}


def read_template(template: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """The pod of a template: given as it is, as that of a controller, or as a file.

    Raises:
        InvalidInputError: if it is none.
    """
    if isinstance(template, str):
        import yaml  # the library needs it too

        try:
            read = yaml.safe_load(Path(template).expanduser().read_text())
        except (OSError, UnicodeError, yaml.YAMLError) as error:
            raise InvalidInputError(f"The pod template {template} cannot be read: {error}") from error
    else:
        read = copy.deepcopy(dict(template or {}))
    if not isinstance(read, dict) or not set(read) <= {"apiVersion", "kind", "metadata", "spec"}:
        raise InvalidInputError("A pod template has metadata and spec, and nothing beside them, as a pod has")
    if read.get("kind") not in (None, "Pod"):
        raise InvalidInputError(f"A pod template is a Pod, and no {read['kind']}")
    for part in ("metadata", "spec"):
        if not isinstance(read.setdefault(part, {}), dict):
            raise InvalidInputError(f"The {part} of the pod template is no object")
    if not all(isinstance(it, dict) and it.get("name") for it in read["spec"].get("containers") or []):
        raise InvalidInputError("Each container of a pod template has a name")
    return read


def manifest(config: KubernetesDeploymentConfig, name: str) -> dict[str, Any]:
    """The pod to ask for.

    Raises:
        InvalidInputError: if its template is none.
    """
    pod = read_template(config.pod_template)
    metadata, spec = pod["metadata"], pod["spec"]
    owner = _owners.labels(name, keep=False)
    labels = {OWNER: name, _HOST: owner[_HOST], _PROCESS: _process(os.getpid())}
    # A label cannot hold all that identifies a process.
    told = {key: value for key, value in owner.items() if key != OWNER}
    metadata.pop("generateName", None)
    metadata["name"] = name
    metadata["labels"] = {**(metadata.get("labels") or {}), **config.labels, **labels}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **config.annotations, **told}
    containers = list(spec.get("containers") or [])
    found = next((it for it in containers if it["name"] == config.container_name), None)
    if found is None:
        found = {"name": config.container_name}
        containers.insert(0, found)
    _complete(found, config)
    spec["containers"] = containers
    spec["restartPolicy"] = "Never"
    spec["automountServiceAccountToken"] = config.mount_service_account_token
    if config.time_to_live is not None:
        spec["activeDeadlineSeconds"] = max(1, round(config.time_to_live))
    if config.service_account is not None:
        spec["serviceAccountName"] = config.service_account
    if config.runtime_class is not None:
        spec["runtimeClassName"] = config.runtime_class
    if config.node_selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **config.node_selector}
    if config.tolerations:
        spec["tolerations"] = [*(spec.get("tolerations") or []), *config.tolerations]
    if config.image_pull_secrets:
        had = [it for it in spec.get("imagePullSecrets") or [] if it.get("name") not in config.image_pull_secrets]
        spec["imagePullSecrets"] = [*had, *({"name": it} for it in config.image_pull_secrets)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _complete(container: dict[str, Any], config: KubernetesDeploymentConfig) -> None:
    container["image"] = config.image
    container["command"] = list(config.command) or ["bash", "-c", _WAIT]
    container.pop("args", None)
    if config.image_pull_policy is not None:
        container["imagePullPolicy"] = config.image_pull_policy
    if config.environment:
        had = [it for it in container.get("env") or [] if it.get("name") not in config.environment]
        container["env"] = [*had, *({"name": key, "value": value} for key, value in config.environment.items())]
    resources = {**(container.get("resources") or {})}
    for part, amounts in (("requests", config.requests), ("limits", config.limits)):
        if amounts:
            resources[part] = {**(resources.get(part) or {}), **amounts}
    if resources:
        container["resources"] = resources

"""Manifest of a pod, with labels that identify the process that owns it."""

from __future__ import annotations

import copy
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swerex_c.exceptions import InvalidInputError
from swerex_c.providers import ownership

if TYPE_CHECKING:
    from swerex_c.providers.kubernetes.config import KubernetesDeploymentConfig

__all__ = ["OWNER", "facts", "manifest", "name_for", "selector_of_host"]

OWNER = "swerex_c"
"""Label of every pod that this package creates; its value is the pod's name."""

_HOST = "swerex_c.host"
"""Label with the id of the machine whose process created the pod."""

_WAIT = "trap 'exit 0' TERM INT HUP; exec 9<> <(:) || exec sleep 2147483647; while :; do read -r -t 5 -u 9; (:); done"
"""Script of the container's main process: it reads from a pipe that is always empty, which needs no program but bash.
It exits on SIGTERM, SIGINT and SIGHUP. Every 5 seconds it starts a subshell, because bash reaps the orphans that it
inherited when a child of its own ends."""

_MAX_NAME = 63
"""Maximum length of a pod's name, which is also used as a label and as the host name."""


def name_for(image: str) -> str:
    """Return a unique name for a pod that contains the name of the image."""
    tail = secrets.token_hex(8)
    last = re.sub(r"[^a-z0-9]+", "-", image.partition("@")[0].rpartition("/")[2].lower()).strip("-")
    return f"{last[: _MAX_NAME - len(tail) - 1].strip('-') or 'pod'}-{tail}"


def selector_of_host() -> str:
    """Return a label selector for the pods of all processes of this machine."""
    return f"{OWNER},{_HOST}={ownership.labels('', keep=False)[_HOST]}"


def facts(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return the ownership labels of a pod for `swerex_c.providers.ownership`."""
    metadata = pod["metadata"]
    return {**(metadata.get("annotations") or {}), OWNER: (metadata.get("labels") or {}).get(OWNER, "")}


def _read_template(template: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Return a copy of a pod template, given as a pod, as the template of a controller, or as the path of a file.

    Raises:
        InvalidInputError: if it is not a pod template.
    """
    if isinstance(template, str):
        import yaml  # a dependency of kubernetes_asyncio

        try:
            read = yaml.safe_load(Path(template).expanduser().read_text())
        except (OSError, UnicodeError, yaml.YAMLError) as error:
            raise InvalidInputError(f"The pod template {template} cannot be read: {error}") from error
    else:
        read = copy.deepcopy(dict(template or {}))
    if not isinstance(read, dict) or not set(read) <= {"apiVersion", "kind", "metadata", "spec"}:
        raise InvalidInputError("A pod template is an object with metadata and spec only")
    if read.get("kind") not in (None, "Pod"):
        raise InvalidInputError(f"The kind of a pod template is Pod, not {read['kind']}")
    for part in ("metadata", "spec"):
        if not isinstance(read.setdefault(part, {}), dict):
            raise InvalidInputError(f"The {part} of the pod template is not an object")
    if not all(isinstance(it, dict) and it.get("name") for it in read["spec"].get("containers") or []):
        raise InvalidInputError("Each container of a pod template needs a name")
    return read


def manifest(config: KubernetesDeploymentConfig, name: str) -> dict[str, Any]:
    """Return the manifest of the pod to create.

    Raises:
        InvalidInputError: if `pod_template` is not a pod template.
    """
    pod = _read_template(config.pod_template)
    metadata, spec = pod["metadata"], pod["spec"]
    owner = ownership.labels(name, keep=False)
    labels = {OWNER: name, _HOST: owner[_HOST]}
    # Annotations hold the facts that identify the process, because labels cannot hold all of them.
    facts_of_owner = {key: value for key, value in owner.items() if key != OWNER}
    metadata.pop("generateName", None)
    metadata["name"] = name
    metadata["labels"] = {**(metadata.get("labels") or {}), **config.labels, **labels}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **config.annotations, **facts_of_owner}
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

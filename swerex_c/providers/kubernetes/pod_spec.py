"""Manifest of a pod, with labels that identify the process that owns it."""

from __future__ import annotations

import copy
import json
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swerex_c.exceptions import InvalidInputError
from swerex_c.providers import ownership
from swerex_c.providers.ownership import HOST, LABEL
from swerex_c.utils.shell_script import read_script

if TYPE_CHECKING:
    from swerex_c.providers.kubernetes.config import KubernetesDeploymentConfig

__all__ = ["facts", "manifest", "name_for", "selector_of_host"]

_WAIT = read_script("providers/wait.bash")
"""Script of the container's main process."""

_MAX_NAME = 63
"""Maximum length of a pod's name, which is also used as a label and as the host name."""


def name_for(image: str) -> str:
    """Return a unique name for a pod that contains the name of the image."""
    tail = secrets.token_hex(8)
    last = re.sub(r"[^a-z0-9]+", "-", image.partition("@")[0].rpartition("/")[2].lower()).strip("-")
    return f"{last[: _MAX_NAME - len(tail) - 1].strip('-') or 'pod'}-{tail}"


def selector_of_host() -> str:
    """Return a label selector for the pods of all processes of this machine."""
    return f"{LABEL},{HOST}={ownership.labels('', keep=False)[HOST]}"


def facts(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return the ownership labels of a pod for `swerex_c.providers.ownership`."""
    metadata = pod["metadata"]
    return {**(metadata.get("annotations") or {}), LABEL: (metadata.get("labels") or {}).get(LABEL, "")}


def _read_template(template: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Return a copy of a pod template, given as a pod, as the template of a controller, or as the path of a file.

    Raises:
        InvalidInputError: if it is not a pod template.
    """
    if isinstance(template, str):
        import yaml  # a dependency of kubernetes_asyncio

        try:
            read = yaml.safe_load(Path(template).expanduser().read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise InvalidInputError(f"The pod template {template} cannot be read: {error}") from error
    else:
        read = copy.deepcopy(dict(template or {}))
    if not isinstance(read, dict) or not set(read) <= {"apiVersion", "kind", "metadata", "spec"}:
        raise InvalidInputError("A pod template is an object with metadata and spec only")
    if read.get("kind") not in (None, "Pod"):
        raise InvalidInputError(f"The kind of a pod template is Pod, not {read['kind']}")
    return read


def manifest(config: KubernetesDeploymentConfig, name: str) -> dict[str, Any]:
    """Return the manifest of the pod to create.

    Raises:
        InvalidInputError: if `pod_template` is not a pod template.
    """
    template = _read_template(config.pod_template)
    # Annotations hold the facts that identify the process, because labels cannot hold all of them.
    facts_of_owner = ownership.labels(name, keep=False)
    labels = {LABEL: facts_of_owner.pop(LABEL), HOST: facts_of_owner[HOST]}
    try:
        metadata = {**template.get("metadata", {}), "name": name}
        metadata["labels"] = {**(metadata.get("labels") or {}), **config.labels, **labels}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **config.annotations, **facts_of_owner}
        spec = _spec(template.get("spec", {}), config)
        json.dumps([metadata, spec])  # YAML has dates
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"The pod template has a field that is not as in a pod: {error!r}") from error
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _spec(template: dict[str, Any], config: KubernetesDeploymentConfig) -> dict[str, Any]:
    containers = list(template.get("containers") or [])
    found = next((it for it in containers if it["name"] == config.container_name), None)
    if found is None:
        found = {"name": config.container_name}
        containers.insert(0, found)
    _complete(found, config)
    secrets = [{"name": it} for it in config.image_pull_secrets]
    settings = {
        "containers": containers,
        "activeDeadlineSeconds": config.time_to_live and round(config.time_to_live),
        "serviceAccountName": config.service_account,
        "runtimeClassName": config.runtime_class,
        "nodeSelector": {**(template.get("nodeSelector") or {}), **config.node_selector},
        "tolerations": [*(template.get("tolerations") or []), *config.tolerations],
        "imagePullSecrets": _merged_by_name(template.get("imagePullSecrets"), secrets),
    }
    return {
        **template,
        **{name: value for name, value in settings.items() if value},
        "restartPolicy": "Never",
        "automountServiceAccountToken": config.mount_service_account_token,
    }


def _complete(container: dict[str, Any], config: KubernetesDeploymentConfig) -> None:
    resources = container.get("resources") or {}
    amounts = {part: given for part in ("requests", "limits") if (given := getattr(config, part))}
    variables = [{"name": name, "value": value} for name, value in config.environment.items()]
    settings = {
        "image": config.image,
        "command": list(config.command) or ["bash", "-c", _WAIT],
        "imagePullPolicy": config.image_pull_policy,
        "env": _merged_by_name(container.get("env"), variables),
        "resources": resources | {part: {**(resources.get(part) or {}), **given} for part, given in amounts.items()},
    }
    container.pop("args", None)
    container.update({name: value for name, value in settings.items() if value})


def _merged_by_name(template: list[dict[str, Any]] | None, ours: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Return the items of a template and ours, which replace those of the same names."""
    names = {it["name"] for it in ours}
    return [*(it for it in template or [] if it["name"] not in names), *ours]

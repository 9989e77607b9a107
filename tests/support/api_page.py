"""Write swerex_c/docs/api.md from the classes' own docstrings: `python -m tests.support.api_page`."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from swerex_c import models
from swerex_c.deployment import config
from swerex_c.interfaces import AbstractDeployment, AbstractRuntime

PAGE = Path(__file__).resolve().parents[2] / "swerex_c/docs/api.md"

HEAD = """\
# Requests, responses and configurations

A method of a runtime takes one request and returns one response. A deployment is made from its configuration
(`DockerDeploymentConfig(image="python:3.11").get_deployment()`), or takes the same fields as arguments. Times are in
seconds. In a container or on a host, the environment and directory of "the runtime's process" are those of programs
there. Models are in `swerex_c.runtime.abstract`, configurations in `swerex_c.deployment.config`.
`python -m tests.support.api_page` writes this page.
"""


def one_line(text: str | None) -> str:
    """Return the first paragraph as one line of a table."""
    first = textwrap.dedent(text or "").strip().split("\n\n")[0]
    return " ".join(first.split()).replace("|", "\\|")


def declared(kind: type) -> dict[str, tuple[str, str]]:
    """Return the annotation and the docstring of each field of a class and of its bases, as they are written."""
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(kind.__mro__):
        if not issubclass(base, BaseModel) or base is BaseModel:
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign):
                is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                text = str(below.value.value) if is_text else ""  # type: ignore[union-attr]
                found[ast.unparse(field.target)] = ast.unparse(field.annotation), text
    return found


def default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        value: Any = field.default_factory()  # type: ignore[call-arg]
    elif field.default is PydanticUndefined:
        return "required"
    else:
        value = field.default
    return f"`{value!r}`" if not isinstance(value, BaseModel) else f"`{type(value).__name__}()`"


def table(kind: type[BaseModel]) -> str:
    fields = declared(kind)
    lines = ["| Field | Type | Default | |", "|---|---|---|---|"]
    for name, field in kind.model_fields.items():
        annotation, text = fields[name]
        cells = [
            f"`{name}`",
            "`" + annotation.replace("|", "\\|") + "`",
            default(field),
            one_line(text or field.description),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def section(kind: type[BaseModel]) -> str:
    parts = [f"### {kind.__name__}", one_line(kind.__doc__)]
    return "\n\n".join(parts + ([table(kind)] if kind.model_fields else []))


def methods(kind: type) -> str:
    lines = ["| Method | |", "|---|---|"]
    for name, method in vars(kind).items():
        if not name.startswith("_") and inspect.isfunction(method) and method.__doc__:
            lines.append(f"| `{name}` | {one_line(method.__doc__)} |")
    return "\n".join(lines)


def page() -> str:
    classes = [vars(models)[name] for name in models.__all__]
    requests = [kind for kind in classes if inspect.isclass(kind) and issubclass(kind, BaseModel)]
    configs = [getattr(importlib.import_module(config.__name__), name) for name in config.__all__]
    configs = [kind for kind in configs if inspect.isclass(kind) and issubclass(kind, BaseModel)]
    parts = [HEAD.rstrip(), "## Methods of a runtime", methods(AbstractRuntime)]
    parts += ["## Methods of a deployment", methods(AbstractDeployment)]
    parts += ["## Requests and responses", *map(section, requests)]
    parts += ["## Configurations of deployments", *map(section, configs)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())

"""Test that the libraries of providers are imported when they are used, and named when they are missing."""

from __future__ import annotations

import sys

import pytest

from tests.support.original import our_environment, python_output

NEEDS = {
    "kubernetes": ("KubernetesDeploymentConfig()", "kubernetes_asyncio"),
    "modal": ("ModalDeploymentConfig()", "modal"),
    "daytona": ("DaytonaDeploymentConfig()", "daytona"),
    "fargate": ("FargateDeploymentConfig(image='x')", "boto3"),
    "ray": ("RayDeploymentConfig()", "ray"),
}
"""By extra: a configuration, and the library."""


@pytest.mark.parametrize("extra", NEEDS)
def test_a_missing_library_is_told(extra: str) -> None:
    config, library = NEEDS[extra]
    code = f"""if True:
        import asyncio, sys
        sys.modules[{library!r}] = None
        from swerex_c.deployment.config import *
        from swerex_c.exceptions import DeploymentStartupError, NotAvailableError
        try:
            asyncio.run({config}.get_deployment().start())
        except (DeploymentStartupError, NotAvailableError) as error:
            print(error)
    """
    assert f"pip install 'swerex-c[{extra}]'" in python_output(sys.executable, code, env=our_environment())


def test_imports_bring_in_no_library() -> None:
    modules = "deployment.modal, deployment.daytona, deployment.fargate, utils.aws, utils.aws_teardown".split(", ")
    code = f"import sys, {', '.join(f'swerex_c.{module}' for module in modules)}; print(*sys.modules)"
    loaded = {name.partition(".")[0] for name in python_output(sys.executable, code, env=our_environment()).split()}
    assert not loaded & {"modal", "daytona", "boto3", "botocore"}

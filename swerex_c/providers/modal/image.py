"""Describe Modal images. Nothing is built here, and no request is sent to Modal."""

from __future__ import annotations

import functools
import logging
import os
import re
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from swerex_c.utils.aws_client import explained
from swerex_c.utils.load import load_library
from swerex_c.utils.log import get_logger

if TYPE_CHECKING:
    import modal

__all__ = ["sdk"]


sdk = functools.partial(load_library, "modal", "modal")
"""Function that imports and returns the module `modal`, or raises a NotAvailableError."""


class _ImageBuilder:
    """A builder of `modal.Image` objects from file paths and image names."""

    def __init__(self, *, install_pipx: bool = True, logger: logging.Logger | None = None):
        """Create a builder whose `auto` adds pipx to the image, with apt, if `install_pipx` is true."""
        self.logger = logger or get_logger("rex_image_builder")
        self._install_pipx = install_pipx

    def from_file(self, image: PurePath, *, build_context: PurePath | None = None) -> modal.Image:
        """Return the image of a Dockerfile, built in `build_context` or its directory."""
        self.logger.info(f"Building image from file {image}")
        context = Path(image).resolve().parent if build_context is None else Path(build_context)
        self.logger.debug(f"Using build context {context}")
        return sdk().Image.from_dockerfile(str(image), context_dir=str(context))

    def from_registry(self, image: str) -> modal.Image:
        """Return an image of a registry; DOCKER_USERNAME and DOCKER_PASSWORD log in."""
        self.logger.info(f"Building image from docker registry {image}")
        user, password = os.environ.get("DOCKER_USERNAME"), os.environ.get("DOCKER_PASSWORD")
        if not user or not password:
            self.logger.warning("DOCKER_USERNAME and DOCKER_PASSWORD not set. Using public images.")
            return sdk().Image.from_registry(image)
        self.logger.debug("Docker login credentials were provided")
        secret = sdk().Secret.from_dict({"REGISTRY_USERNAME": user, "REGISTRY_PASSWORD": password})
        return sdk().Image.from_registry(image, secret=secret)

    def from_ecr(self, image: str) -> modal.Image:
        """Return an image of Amazon's registry, with the credentials of boto3.

        Raises:
            ValueError: if boto3 finds no credentials.
            AwsError: if the credentials that boto3 finds cannot be loaded.
        """
        self.logger.info(f"Building image from ECR {image}")
        boto3 = load_library("boto3", "modal")
        with explained("get the credentials for an image of ECR"):
            session = boto3.Session()
            found = session.get_credentials()
            if found is None:
                raise ValueError("AWS credentials not found. Please configure your AWS credentials.")
            frozen = found.get_frozen_credentials()
        secret = {"AWS_ACCESS_KEY_ID": frozen.access_key, "AWS_SECRET_ACCESS_KEY": frozen.secret_key}
        if frozen.token:
            secret["AWS_SESSION_TOKEN"] = frozen.token
        named = re.search(r"\.ecr[^.]*\.([a-z0-9-]+)\.amazonaws\.com", image)
        region = named[1] if named else session.region_name
        if region:
            secret["AWS_REGION"] = region
        return sdk().Image.from_aws_ecr(image, secret=sdk().Secret.from_dict(secret))

    def ensure_pipx_installed(self, image: modal.Image) -> modal.Image:
        """Return the image with pipx added."""
        return image.apt_install("pipx").run_commands("pipx ensurepath")

    def auto(self, image_spec: str | modal.Image | PurePath) -> modal.Image:
        """Return the image for an image object, a Dockerfile or a registry's name.

        Raises:
            FileNotFoundError: if `image_spec` is a path, and there is no such file.
        """
        if not isinstance(image_spec, str | PurePath):
            image = image_spec
        elif Path(image_spec).is_file():
            image = self.from_file(Path(image_spec))
        elif isinstance(image_spec, PurePath):
            raise FileNotFoundError(f"File {image_spec} does not exist")
        elif "amazonaws.com" in image_spec:
            image = self.from_ecr(image_spec)
        else:
            image = self.from_registry(image_spec)
        return self.ensure_pipx_installed(image) if self._install_pipx else image

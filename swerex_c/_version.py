"""Versions and names of this distribution and of the one that it replaces.

They are defined only here.
"""

__version__ = "0.1.0"

API_VERSION = "1.4.0"
"""Version of the SWE-ReX API that this package implements; callers compare it with the version they need."""

PACKAGE_NAME = "swe-rex"
"""Distribution that contains the server's command, as callers write it into the start command of a container."""

REMOTE_EXECUTABLE_NAME = "swerex-remote"
"""Name of the server's command."""

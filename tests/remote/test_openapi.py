"""The description of the HTTP server holds: schemathesis asks for all that it promises, and for what it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server_process import KEY, REMOTE, environment, serving

CHECKS = (
    "positive_data_acceptance,response_schema_conformance,status_code_conformance,"
    "content_type_conformance,response_headers_conformance,missing_required_header,unsupported_method,ignored_auth"
)
"""All but two. What the runtime raises comes with the status 511, as in the original, which one of them takes for a
crash; and numbers and booleans may stand for each other, as in the original, which the other takes for negligence."""


@pytest.mark.slow
def test_the_description_holds(tmp_path: Path) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    # A runtime that does nothing, because what is asked of it is anything. Uploads would be written all the same.
    dummy = "from swerex_c import server; from swerex_c.runtime.dummy import DummyRuntime as D; server.runtime = D(); "
    with serving(tmp_path / "log", command=[*REMOTE[:-1], dummy + REMOTE[-1]]) as server:
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "-H", f"X-API-Key: {KEY}",
            "--checks", CHECKS, "--max-examples", "30", "--phases", "coverage,fuzzing", "--exclude-path", "/upload",
            "--request-timeout", "10", "--seed", "1", "--no-color",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=tmp_path, env=environment())
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]
        assert "Tested: 11" in done.stdout
        assert "Traceback" not in server.said()

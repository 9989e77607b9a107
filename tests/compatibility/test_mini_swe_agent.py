"""mini-swe-agent from PyPI, unmodified, with ours in the place of the original: a scripted run in a container."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.docker_engine import Engine
from tests.support.images import locked
from tests.support.original import ROOT
from tests.support.processes import ran

REQUIREMENTS = [
    *("mini-swe-agent==2.4.6", "jinja2", "markupsafe", "platformdirs", "python-dotenv", "pyyaml", "requests"),
    "tenacity",
]
"""Without the clients of models, which it imports when one is asked for, and which are nearly all that it requires."""

PLACE = ROOT / ".cache" / "mini-swe-agent"
SECONDS = 200
pytestmark = pytest.mark.timeout(400)  # the first one may have an image to make

AGENT = """if True:
    import json, sys
    if {install}:
        import swerex_c
        swerex_c.install()
    import asyncio
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.extra.swerex_docker import SwerexDockerEnvironment
    from minisweagent.models.test_models import DeterministicModel, make_output
    import swerex.deployment.docker

    script, image, container = json.loads(sys.argv[1])
    environment = SwerexDockerEnvironment(image=image, cwd="/tmp", timeout=60, deployment_extra_kwargs=container)
    try:
        model = DeterministicModel(outputs=[make_output("Next.", [dict(command=step)], 0.1) for step in script])
        agent = DefaultAgent(model, environment, system_template="A script.", instance_template="{{{{task}}}}")
        done = agent.run("the task")
        observed = [message["content"] for message in agent.messages if "returncode" in message["content"]]
        late = environment.execute(dict(command="echo before; sleep 60"), timeout=1)
        after = environment.execute(dict(command="cat first"))
        name = environment.deployment.container_name
    finally:
        asyncio.run(environment.deployment.stop())
    print(json.dumps([swerex.deployment.docker.__name__, done, observed, late, after, name]))
"""

SCRIPT = [
    "echo out; echo err >&2; exit 3",
    "pwd; echo hello >first; cat",
    "cat <<'EOF' >greet.py\nprint(f\"it's {6 * 7}\")\nEOF\npython3 greet.py",
    "printf '\\377'; ls greet.py first",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat greet.py",
]
OBSERVED = [
    "<returncode>3</returncode>\n<output>\nout\nerr\n</output>",
    "<returncode>0</returncode>\n<output>\n/tmp\n</output>",
    "<returncode>0</returncode>\n<output>\nit's 42\n</output>",
    "<returncode>0</returncode>\n<output>\n\\xfffirst\ngreet.py\n</output>",
]


@pytest.fixture(scope="session")
def mini_swe_agent() -> Path:
    """A directory to import it from, with what it needs and this environment may not have. Made once."""
    ready = PLACE / "ready"
    wanted = " ".join([sys.version, *REQUIREMENTS])
    with locked(PLACE.with_suffix(".lock")):
        if not ready.exists() or ready.read_text() != wanted:
            command = [sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--no-deps", "--target", str(PLACE)]
            done = ran(*command, *REQUIREMENTS, seconds=100)
            if done.returncode != 0:
                why = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
                pytest.skip(f"mini-swe-agent cannot be installed here: {why}")
            ready.write_text(wanted)
    return PLACE


@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("swap", ["install", "run"])
def test_a_run_in_a_container(swap: str, mini_swe_agent: Path, docker: Engine, debian_py: str, tmp_path: Path) -> None:
    agent = ["-c", AGENT.format(install=swap == "install")]
    agent.append(json.dumps([SCRIPT, debian_py, {"docker_args": ["--network", "none"], "pull": "never"}]))
    environment = {
        **docker.environment,
        **{"PYTHONPATH": f"{ROOT}{os.pathsep}{mini_swe_agent}", "HOME": str(tmp_path), "MSWEA_SILENT_STARTUP": "1"},
        **{"MSWEA_GLOBAL_CONFIG_DIR": str(tmp_path), "SWE_REX_LOG_STREAM_LEVEL": "WARNING"},
    }
    run = [sys.executable, "-m", "swerex_c", "run", "--"] if swap == "run" else []
    done = ran(*run, sys.executable, *agent, seconds=SECONDS, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    module, submitted, observed, late, after, name = json.loads(done.stdout.splitlines()[-1])
    assert module == "swerex_c.providers.docker.deployment"
    assert submitted == {"exit_status": "Submitted", "submission": 'print(f"it\'s {6 * 7}")\n'}
    assert observed == OBSERVED
    assert (late["returncode"], late["extra"]["exception_type"]) == (-1, "CommandTimeoutError")
    assert late["output"] == late["extra"]["exception"] == "Timeout (1.0s) exceeded while running command"
    assert after == {"output": "hello\n", "returncode": 0, "exception_info": ""}
    assert docker.docker("ps", "-aq", "--filter", f"name={name}") == ""

"""What an agent does to its deployment from its start to its stop: the calls, and what they answered.

    python agents_day.py PLACE ANSWERS

PLACE is a JSON object: `home` is the directory of the agent's user and `root` one to work in, both in the place;
`repository` and `tools` are what it brings from here. `deployment` is the configuration, or `remote` that of a runtime.
With `swap`, swerex_c stands in for the original. ANSWERS is the file that gets a JSON object with an answer for each
step. Everything is imported by the names of the original; every call has an event loop of its own.
"""

import asyncio
import json
import shlex
import sys
from pathlib import Path

PLACE = json.loads(sys.argv[1])
if PLACE.get("swap"):
    import swerex_c

    swerex_c.install()

from pydantic import TypeAdapter  # noqa: E402
from swerex.deployment.config import DeploymentConfig, get_deployment  # noqa: E402
from swerex.exceptions import BashIncorrectSyntaxError  # noqa: E402
from swerex.runtime.abstract import (  # noqa: E402
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)
from swerex.runtime.remote import RemoteRuntime  # noqa: E402

HOME, ROOT = PLACE["home"], PLACE["root"]
ANSWERS = {}
PROGRAM = """\
def greet(name):
    return f"Good day, {name}!"


print(greet("wörld"))"""


def plain(text):
    """Return it without the parts that differ from place to place."""
    return text.replace(ROOT, "ROOT").replace(HOME, "HOME")


def attempt(call):
    """Return what is returned, or the name and the text of what is raised."""
    try:
        return call()
    except Exception as raised:
        return [type(raised).__name__, plain(str(raised))]


class Day:
    def __init__(self, deployment, runtime):
        self.deployment = deployment
        self.runtime = runtime

    def communicate(self, command, *, timeout=30, check="silent", **more):
        """Run a command as SWE-agent does, which always wants the exit code."""
        action = BashAction(command=command, timeout=timeout, check=check, set_last_action=True, **more)
        answer = asyncio.run(self.runtime.run_in_session(action))
        return [answer.exit_code, plain(answer.output)]

    def read(self, path, **more):
        return plain(asyncio.run(self.runtime.read_file(ReadFileRequest(path=path, **more))).content)

    def write(self, path, content):
        asyncio.run(self.runtime.write_file(WriteFileRequest(path=path, content=content)))

    def begin(self):
        self.write(f"{HOME}/.bashrc", "export FROM_STARTUP=read\nPS1='me> '\n")
        request = CreateBashSessionRequest(startup_source=[f"{HOME}/.bashrc"], startup_timeout=10)
        asyncio.run(self.runtime.create_session(request))
        exports = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PIP_PROGRESS_BAR": "off", "GIT_PAGER": "cat"}
        setters = " && ".join(f"export {name}={shlex.quote(value)}" for name, value in exports.items())
        ANSWERS["variables"] = self.communicate(setters)
        ANSWERS["startup file"] = self.communicate('echo "$FROM_STARTUP"')
        alive = self.deployment or self.runtime
        ANSWERS["alive"] = bool(asyncio.run(alive.is_alive(timeout=10)))

    def bring_repository(self):
        asyncio.run(self.runtime.upload(UploadRequest(source_path=PLACE["repository"], target_path=f"{ROOT}/work")))
        owner = Command(command=f'chown -R "$(id -u):$(id -g)" {ROOT}/work', shell=True)
        owned = asyncio.run(self.runtime.execute(owner))
        ANSWERS["owner"] = [owned.exit_code, owned.stdout, owned.stderr]
        reset = "git status && git restore . && git reset --hard && git checkout -q HEAD && git clean -fdq"
        ANSWERS["reset"] = self.communicate(f"cd {ROOT}/work && export ROOT=$(pwd -P) && {reset}", timeout=120)

    def install_tools(self):
        tools = sorted(Path(PLACE["tools"]).iterdir())
        there = [f"{HOME}/tools/{tool.name}" for tool in tools]

        async def upload():
            pairs = zip(tools, there, strict=True)
            requests = [UploadRequest(source_path=str(tool), target_path=target) for tool, target in pairs]
            await asyncio.gather(*map(self.runtime.upload, requests))

        asyncio.run(upload())
        for target in there:
            lines = [f"export PATH={target}/bin:$PATH", f"chmod +x {target}/bin/*"]
            lines += [f"cd {target} && source install.sh", f"chmod +x {target}/bin/*"]
            ANSWERS[f"install {target.rpartition('/')[2]}"] = self.communicate(" && ".join(lines), timeout=300)
        ANSWERS["back"] = self.communicate(f"cd {ROOT}/work")
        path = asyncio.run(self.runtime.run_in_session(BashAction(command="echo $PATH", check="silent"))).output.strip()

        async def available():
            names = ("replace", "state", "number", "missing-tool")
            fields = {"shell": True, "check": True, "env": {"PATH": path}}
            commands = [Command(command=f"command -v {name}", **fields) for name in names]
            return await asyncio.gather(*map(self.runtime.execute, commands), return_exceptions=True)

        *found, missing = asyncio.run(available())
        ANSWERS["available"] = [*(plain(answer.stdout) for answer in found), type(missing).__name__]

    def use_tools(self):
        ANSWERS["variable of a tool"] = self.communicate('echo "$NUMBERED"')
        ANSWERS["tool"] = self.communicate("number greet.py")
        ANSWERS["here-document"] = self.communicate(f"replace greet.py << 'end_of_text'\n{PROGRAM}\nend_of_text")
        ANSWERS["state"] = [self.communicate("state"), json.loads(self.read(f"{HOME}/state.json"))]
        ANSWERS["the program"] = self.communicate("python3 greet.py")

    def fail(self):
        try:
            ANSWERS["syntax"] = self.communicate(f"touch {ROOT}/ran; if true; then (echo")
        except BashIncorrectSyntaxError as raised:
            # An agent's template prints both; the name of the shell in the text is the place's own.
            info = {name: "syntax error" in text for name, text in raised.extra_info.items()}
            ANSWERS["syntax"] = [type(raised).__name__, info]
        ANSWERS["nothing of it ran"] = self.communicate(f"test -e {ROOT}/ran")
        ANSWERS["timeout"] = attempt(lambda: self.communicate("echo before; sleep 100", timeout=0.7))
        asyncio.run(self.runtime.run_in_session(BashInterruptAction()))
        ANSWERS["file after the timeout"] = self.read(f"{HOME}/state.json")
        ANSWERS["next command"] = self.communicate("echo next")

    def interact(self):
        def talk(command, expect=(), **more):
            return self.communicate(command, timeout=20, is_interactive_command=True, expect=list(expect), **more)

        started = talk("python3 -q", [">>> "])
        ANSWERS["debugger"] = [started[0], talk("6 * 7", [">>> "])[1].split()[-1:]]
        leave = BashAction(command="exit()", is_interactive_quit=True, timeout=20)
        answer = asyncio.run(self.runtime.run_in_session(leave))
        ANSWERS["debugger left"] = [answer.exit_code, self.communicate("echo outside")]

    def submit(self):
        ANSWERS["diff"] = self.communicate("git diff")
        patch = f"git add -A && git diff --cached > {HOME}/model.patch"
        ANSWERS["submit"] = self.communicate(f"cd $ROOT && {patch} && echo '<<SUBMISSION>>'")
        ANSWERS["patch"] = self.read(f"{HOME}/model.patch")

    def end(self):
        asyncio.run(self.runtime.close_session(CloseBashSessionRequest()))
        ANSWERS["closed"] = attempt(lambda: self.communicate("true"))


def main():
    deployment = None
    if "remote" in PLACE:
        runtime = RemoteRuntime(**PLACE["remote"])
    else:
        deployment = get_deployment(TypeAdapter(DeploymentConfig).validate_python(PLACE["deployment"]))
        asyncio.run(deployment.start())
        runtime = deployment.runtime
    try:
        day = Day(deployment, runtime)
        for part in (
            *(day.begin, day.bring_repository, day.install_tools, day.use_tools),
            *(day.fail, day.interact, day.submit, day.end),
        ):
            if raised := attempt(part):
                ANSWERS[f"raised in {part.__name__}"] = raised
    finally:
        asyncio.run((deployment.stop if deployment else runtime.close)())
    Path(sys.argv[2]).write_text(json.dumps(ANSWERS))


main()

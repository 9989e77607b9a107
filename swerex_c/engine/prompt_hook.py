"""Measure the PROMPT_COMMAND of the startup files, which runs after each command of a session.

The first shell of a process runs it once or twice in a subshell, and reports its time.
"""

from __future__ import annotations

import logging
import re

from swerex_c.utils.visible import visible

__all__ = ["COSTLY_SECONDS", "add_probe", "remove_probe"]

COSTLY_SECONDS = 0.0005
"""Seconds for each command above which a hook is reported: several times the duration of a short command."""

_PROBE = """\
; [[ -z ${PROMPT_COMMAND[*]-} || -z ${EPOCHREALTIME-} ]] || (builtin set +eux; _swerex_c=("${EPOCHREALTIME/[.,]/}"); \
for _ in 1 2; do for _hook in "${PROMPT_COMMAND[@]}"; do builtin eval "$_hook"; done </dev/null &>/dev/null; \
_swerex_c+=("${EPOCHREALTIME/[.,]/}"); (( _swerex_c[1] - _swerex_c[0] < 20000 )) || builtin break; done; \
builtin printf "%s " TOKEN "${_swerex_c[@]}" "${PROMPT_COMMAND[@]}" $'TOKEN\\n' >/dev/tty) || builtin :
"""
"""Script that runs the hook in a subshell, so that it changes no variable, and prints the times in microseconds and the
hook itself. The second run counts, since the first one may load something; a hook that takes over 20 ms is run once. It
continues the last line, so that no later line number changes. Bash before 5.0 cannot tell the time, and measures
nothing."""

_SHOWN = 100
"""Maximum characters of a hook in the log."""

_probed = False


def add_probe(script: bytes, token: str) -> bytes:
    """Return the startup script of the first session of this process with the measurement at its end.

    Args:
        token: text that no startup file prints.
    """
    global _probed
    if _probed:
        return script
    _probed = True
    return script.rstrip(b"\n") + _PROBE.replace("TOKEN", token).encode()


def remove_probe(output: str, token: str, logger: logging.Logger) -> str:
    """Return the startup files' output without the measurement, and log a costly hook."""
    if token not in output:
        return output
    found = re.search(rf"{token} (\d+) (\d+) (?:(\d+) )?(.*?) {token}\r?\n ?", output, re.DOTALL)
    if found is None:
        return output
    times = [int(found[i]) for i in (1, 2, 3) if found[i]]
    seconds = (times[-1] - times[-2]) / 1e6
    if seconds > COSTLY_SECONDS:
        logger.warning(
            "PROMPT_COMMAND of the startup files adds %.1f ms to each command of a session (%s): "
            "unset it in a file of `startup_source`, or set HOME in `env` to a directory without a .bashrc",
            seconds * 1000, visible(found[4])[:_SHOWN],
        )  # fmt: skip
    return output[: found.start()] + output[found.end() :]

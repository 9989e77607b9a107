"""Sessions where the kernel does not tell what the shell is doing: /proc/PID/syscall cannot be opened.

Some kernels do not have it, others keep it from everybody. The shell's marks decide there, an element of PROMPT_COMMAND
puts them back before each prompt, and a still shell whose prompts are hidden is asked. The behaviour tests
have to hold all the same, but for a few; they run in a Python of their own, in which a preloaded library refuses
that file. So does the random tester, with `--closed`.
"""

from __future__ import annotations

import pathlib

import pytest

from swerex_c.runtime.sandbox import SandboxRuntime
from tests.support.behaviour_runs import inherited, run_rooms, run_tests
from tests.support.closed_syscall import build_preload
from tests.support.local_backend import Here
from tests.support.original import run_python
from tests.support.session import Shell

pytestmark = pytest.mark.slow

LEFT_OUT = (
    # Neither the prompt nor PROMPT_COMMAND can carry a mark, and of commands that say nothing of prompts only the
    # kernel tells whether a silent shell reads something by itself: they time out.
    "test_prompts.py::test_prompts_may_be_changed[readonly PS1='a ' PS2='b ' PS0='c ' PROMPT_COMMAND=:]",
    "test_redefinitions.py::test_answers_stay_right[spoils5]",
    # The element of PROMPT_COMMAND is a command: a DEBUG trap that counts counts it.
    "test_state.py::test_steps[debug trap that counts]",
    # Nor does anything else tell that a newline is a key that the user has bound.
    "test_redefinitions.py::test_a_newline_that_is_bound[emacs]",
    # Only the kernel tells that the shell itself reads: an end of input at its prompt would end it.
    "test_interrupts.py::test_what_the_shell_waits_for[while read x; do :; done-",
    "test_interrupts.py::test_the_error_says_that_the_shell_holds_it[while :; do read x; done-",
    "test_interrupts.py::test_an_error_in_every_prompt_has_no_end",
    # And whether a bash that waits for a line without readline does so at its prompt.
    "test_interrupts.py::test_another_bash_in_its_place[bash --norc --noediting]",
    "test_interrupts.py::test_another_bash_in_its_place[bash --noediting --rcfile /dev/null -i]",
    # And that something has thrown a command away, where no prompt can be seen.
    "test_attacks.py::test_what_is_typed_is_taken_by_somebody_else[thrown away, ",
    # A perfect copy of the coming mark, and then a read of the shell's own: it is asleep as at its prompt.
    "test_spoofing.py::test_marks_then_a_wait[read",
    "test_spoofing.py::test_marks_then_a_wait[IFS= read",
    "test_spoofing.py::test_marks_then_a_wait[mapfile",
    "test_spoofing.py::test_marks_then_a_wait[select",
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {**inherited(), "LD_PRELOAD": build_preload(tmp_path_factory.mktemp("closed"))}


def test_an_emulator_shows_the_system_calls_of_the_machine_below(tmp_path: pathlib.Path) -> None:
    """No session waits for the shell to come to a read that is never seen."""
    program = """if True:
        from tests.support.session import Shell
        sh = Shell()
        assert not sh.aio.sessions["default"].core.facts()["kernel_proof"]
        sh.take([("exec 2>/dev/null; PS1=x", "", 0), ("echo hi; (exit 3)", "hi\\n", 3)])
        sh.close()
        print("right")
    """
    done = run_python(program, LD_PRELOAD=build_preload(tmp_path, foreign=True))
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


_ROOMS = [
    ("state", 90), ("prompts", 65), ("lifecycle", 22), ("concurrency", 6), ("hidden_prompts", 20), ("text_out", 40),
    ("programs", 25), ("echo", 10), ("interrupts", 25), ("redefinitions", 8), ("attacks", 10), ("spoofing", 60),
    ("time", 45), ("text_in", 116),
]  # fmt: skip


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("room", "at_least"), _ROOMS)
def test_it_behaves(environment: dict[str, str], room: str, at_least: int) -> None:
    assert run_rooms([room], LEFT_OUT, environment) >= at_least


@pytest.mark.timeout(1000)
def test_the_contract_holds(environment: dict[str, str]) -> None:
    assert run_tests(environment, "-k", "[local", "tests/contracts/test_session.py") >= 100


@pytest.mark.timeout(1000)
def test_it_behaves_in_a_place_that_does_not_tell_either(environment: dict[str, str]) -> None:
    """Hidden prompts strand nothing there, nothing is typed to what reads, and what never ran has no answer."""
    names = "strand_nothing or for_who_reads or what_never_ran"
    there = {**environment, "SWX_PLACE": "here"}
    assert run_tests(there, "-k", names, "tests/behaviour/test_hidden_prompts.py") >= 15


def test_prompts_that_the_first_command_hides(shells: type[Shell]) -> None:
    """It waits until it is known what the shell's wait at its prompt looks like, with the file open too."""
    shells(aio=SandboxRuntime(Here("env"))).take([("unset PS1 PROMPT_COMMAND", "", 0), ("echo a", "a\n", 0)])

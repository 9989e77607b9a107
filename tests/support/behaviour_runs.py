"""The behaviour tests and the random tester, run by a test in a process of their own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.processes import ran

LEFT_OUT = (
    # `env` becomes the shell: who kills the shell kills the program that carries its terminal.
    "test_lifecycle.py::test_the_command_that_ends_the_shell[kill -",
    "test_lifecycle.py::test_the_command_that_ends_the_shell[from a child]",
    "test_lifecycle.py::test_death_while_others_wait",
    "test_lifecycle.py::test_orphans_on_the_terminal_do_not_hide_a_death",
    # Marks alone tell the end of a command there: who copies them can forge it, and what reads then gets the next line.
    "test_spoofing.py::test_a_program_that_plays_the_shell",
    "test_spoofing.py::test_marks_",
    "test_spoofing.py::test_perfect_marks_",
    "test_spoofing.py::test_the_last_words_of_a_shell",
    # The terminal's modes are not looked at: echo stays off.
    "test_echo.py::test_lines_for_programs_are_echoed",
    "test_echo.py::test_modes_are_the_users",
    "test_echo.py::test_nothing_typed_is_output",
    "test_text_in.py::test_an_answer_that_a_program_reads_costs_nothing",
    "test_state.py::test_a_program_that_dies_without_restoring_the_terminal[os._exit(137)-a[3] &= ~termios.ISIG",
    # Nor who reads it: what a command has left there may take the beginning of the next one.
    "test_time.py::test_a_reader_left_behind_takes_no_letter_of_the_next_command",
    "test_time.py::test_a_reader_that_a_short_command_leaves_behind_takes_nothing",
    # Nor can keys be taken back that a program has pushed there.
    "test_text_in.py::test_keys_",
    # Nor whether the shell waits for a command before the next one is typed: only then it clears O_NONBLOCK.
    "test_state.py::test_steps[much output to a nonblocking terminal",
    # A line for a program, or sent as one, has at most 4,095 bytes, and says so.
    "test_text_in.py::test_a_long_line_for_",
    "test_text_in.py::test_a_long_line_at_the_prompt[5000-",
    "test_text_in.py::test_a_long_line_at_the_prompt[100000-",
    "test_text_in.py::test_a_long_line_behind_the_line_that_starts_its_program",
    "test_text_in.py::test_what_a_program_leaves_of_a_long_line_is_no_",
    # A command that a terminal does not carry is typed as an eval, whose trace, `$_` and PIPESTATUS are its own.
    "test_state.py::test_steps[last argument that cannot be typed",
    "test_prompts.py::test_long_last_argument_outlives_a_question",
    "test_state.py::test_steps[pipestatus that cannot be typed",
    "test_state.py::test_trace_of_a_command_that_cannot_be_typed",
    # What comes through a helper of the shell's standard output cannot be waited for.
    "test_state.py::test_exec_through_a_helper_that_is_late",
    # As where the kernel does not tell: readonly prompts and PROMPT_COMMAND, an alias for a brace, a newline as a key.
    "test_redefinitions.py::test_answers_stay_right[spoils1]",
    "test_redefinitions.py::test_answers_stay_right[spoils5]",
    # An input that was opened for reading alone: the session is lost, as docs/limits.md says.
    "test_redefinitions.py::test_answers_stay_right[spoils14]",
    "test_redefinitions.py::test_answers_stay_right[spoils15]",
    "test_redefinitions.py::test_a_newline_that_is_bound[emacs]",
    "test_state.py::test_steps[line editing turned on inside a longer command",
    "test_hidden_prompts.py::test_readline_behind_hidden_prompts[; ",
    # A shell that another one has replaced is asked if it is a bash that edits its lines, else not: a timeout.
    "test_interrupts.py::test_another_bash_in_its_place[bash --norc --noediting]",
    "test_interrupts.py::test_another_bash_in_its_place[bash --noediting --rcfile /dev/null -i]",
    "test_interrupts.py::test_another_shell_in_its_place",
    # The shells on the way to the sandbox do not pass SHELLOPTS on.
    "test_lifecycle.py::test_a_strict_parent",
    # The prompts are put back in time for this one to end.
    "test_interrupts.py::test_an_error_in_every_prompt_has_no_end",
    # A shell that waits for more of a command, in an open quote of an alias's, shows no START mark: a timeout.
    "test_attacks.py::test_a_quote_is_left_open_before_our_command",
    # To open a place takes descriptors of its own.
    "test_attacks.py::test_a_new_loop_without_descriptors",
    # Nothing tells there that something has thrown a command away before the shell has read it.
    "test_attacks.py::test_what_is_typed_is_taken_by_somebody_else[thrown away",
    # TERM is xterm there; the start script stays in the history of an own HISTFILE; a function `stty` loses sync.
    "test_state.py::test_environment_of_a_session",
    "test_state.py::test_steps[history is the users",
    "test_state.py::test_steps[shadowed builtins",
)


def run_rooms(rooms: Sequence[str], left_out: Sequence[str], environment: dict[str, str]) -> int:
    """Run rooms of the behaviour tests in a pytest of their own, and return how many have passed."""
    deselected = [f"--deselect=tests/behaviour/{test}" for test in left_out]
    return run_tests(environment, *deselected, *(f"tests/behaviour/test_{room}.py" for room in rooms))


def run_tests(environment: dict[str, str], *words: str) -> int:
    """Run tests in a pytest of their own, and return how many have passed."""
    options = ["-q", "-p", "no:cacheprovider", "-m", "not idle"]
    command, root = [sys.executable, "-m", "pytest", *options, *words], Path(__file__).parents[2]
    done = ran(*command, seconds=None, cwd=root, env=environment)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout[-500:]
    return int(passed[1])


def inherited() -> dict[str, str]:
    """Return the environment for a pytest that a test starts: it finds the engine where this one does."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_") and k != "CI_RESULTS"}
    return kept | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}

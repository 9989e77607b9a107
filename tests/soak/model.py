"""What a shell answers: commands made from random numbers, with their output and exit code.

An operation is a name and a seed; `step` makes of it what is done to a session that is in the state of the model, and
changes that. A list of operations is a whole history, and any part of one is a history too.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Model", "Operation", "Step", "operations", "step"]


class Operation(NamedTuple):
    """What is done, but for what depends on the state."""

    name: str
    seed: int


@dataclass
class Step:
    """A command, and how it is asked for."""

    command: str
    output: str = ""
    code: int | None = 0
    """None: any."""
    way: str = "run"
    """run, stream, match, interrupt, cancel, queue, talk, or many (a command for each line, sent at once)."""
    match: str = ""


@dataclass
class Model:
    """What is known of a shell."""

    code: int = 0
    shows_errors: bool = True
    variables: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    pipefail: bool = False
    frozen: set[str] = field(default_factory=set)
    """Variables that are read-only."""
    forks: bool = False
    """PROMPT_COMMAND starts a process. Together with a trap on SIGCHLD bash mistakes the first word of a line."""
    trapped: bool = False
    """SIGCHLD is."""
    keywords: bool = False
    """`set -k`: what looks like an assignment is none of a command's arguments."""
    interrupts: bool = True
    """SIGINT is not trapped, so that it ends a read of the shell's own."""
    modes: str = ""
    """echo: what is typed to a program is shown; odd: that may get something else."""
    settled: bool = True
    """`$?` and PIPESTATUS are those of the last command: not after one that was cut short."""


Maker = Callable[[Model, random.Random], Step]
_MAKERS: dict[str, tuple[Maker, int]] = {}


def _operation(weight: int) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        _MAKERS[maker.__name__.strip("_")] = maker, weight
        return maker

    return register


def operations(source: random.Random, count: int) -> list[Operation]:
    names = list(_MAKERS)
    weights = [weight for _, weight in _MAKERS.values()]
    return [Operation(name, source.getrandbits(32)) for name in source.choices(names, weights, k=count)]


def step(model: Model, operation: Operation) -> Step:
    """Make a step, and bring the model to the state behind it."""
    made = _MAKERS[operation.name][0](model, random.Random(operation.seed))
    if operation.name != "runs_nothing":  # which changes nothing, and answers with 0
        model.code = model.code if made.code is None else made.code
        model.settled = made.way in ("run", "stream", "many")
    return made


def _word(source: random.Random, most: int = 12) -> str:
    return "".join(source.choices(string.ascii_letters + string.digits, k=source.randint(1, most)))


def _end(source: random.Random) -> tuple[str, int]:
    """What ends a command, and its exit code."""
    code = source.choice([0, 0, 1, 2, 7, 126, 127, 128, 130, 137, 255])
    return f"(exit {code})", code


def _way(source: random.Random) -> str:
    return source.choice(["run"] * 6 + ["stream"])


# ---- output ----


@_operation(12)
def _prints(model: Model, source: random.Random) -> Step:
    word = _word(source, source.choice([1, 12, 300]))
    newline = source.choice(["", "\n", "\n\n"])
    end, code = _end(source)
    text = f"printf '%s{newline}' {word}".replace("\n", "\\n")
    return Step(f"{text}; {end}", word + newline, code, _way(source))


@_operation(4)
def _prints_odd_bytes(model: Model, source: random.Random) -> Step:
    """Bytes that are no UTF-8, controls, and beginnings of escape sequences."""
    text, shown = source.choice(
        [
            ("a\\rb\\n", "a\rb\n"),
            ("\\t\\a\\b.", "\t\a\b."),
            ("\\0a", "\0a"),
            ("\\xc3\\xa9\\xe2\\x82\\xac", "é€"),
            ("\\e[31mred\\e[0m\\n", "red\n"),
            ("]7733;\\n", "]7733;\n"),
            ("\\e]0;title\\ax", "x"),
        ]
    )
    return Step(f"printf $'%b' '{text}'", shown, 0, _way(source))


@_operation(3)
def _prints_much(model: Model, source: random.Random) -> Step:
    size = source.choice([4095, 4096, 4097, 70_000, 300_000])
    return Step(f"head -c {size} /dev/zero | tr '\\0' x", "x" * size, 0, _way(source))


@_operation(3)
def _prints_from_elsewhere(model: Model, source: random.Random) -> Step:
    word = _word(source)
    text = source.choice(
        ["echo {0} >/dev/tty", "(echo {0}) >&0", "sh -c 'echo {0}'", "echo {0} | cat | cat", "echo $(echo {0})"]
    )
    return Step(text.format(word), word + "\n")


@_operation(3)
def _errs(model: Model, source: random.Random) -> Step:
    word = _word(source)
    end, code = _end(source)
    return Step(f"echo {word} >&2; {end}", word + "\n" if model.shows_errors else "", code)


# ---- what is left of the command before ----


@_operation(6)
def _asks_for_the_code(model: Model, source: random.Random) -> Step:
    if not model.settled:
        return Step("true")
    return Step('echo "$?"', f"{model.code}\n")


@_operation(3)
def _pipes(model: Model, source: random.Random) -> Step:
    codes = [source.choice([0, 1, 3, 9]) for _ in range(source.randint(2, 6))]
    last = next((code for code in reversed(codes) if code), 0) if model.pipefail else codes[-1]
    ends = " | ".join(f"(exit {code})" for code in codes)
    return Step(ends, "", last)


@_operation(3)
def _asks_for_variables(model: Model, source: random.Random) -> Step:
    if not model.variables:
        return Step("a=1; echo $a", "1\n")
    name = source.choice(sorted(model.variables))
    return Step(f'printf %s "${name}"', model.variables[name], 0, _way(source))


@_operation(4)
def _sets_variables(model: Model, source: random.Random) -> Step:
    name, value = f"v{source.randint(0, 5)}", _word(source)
    model.variables[name] = value
    return Step(f"{name}={value}")


# ---- texts ----


@_operation(4)
def _here_document(model: Model, source: random.Random) -> Step:
    lines = [_word(source) for _ in range(source.randint(1, 30))]
    end, code = _end(source)
    text = "\n".join(lines)
    return Step(f"cat <<'_E'\n{text}\n_E\n{end}", text + "\n", code, _way(source))


@_operation(4)
def _several_lines(model: Model, source: random.Random) -> Step:
    words = [_word(source) for _ in range(source.randint(2, 8))]
    end, code = _end(source)
    loop = "for w in " + " ".join(words) + "; do\n  echo $w\ndone"
    plain = "\n".join(f"echo {word}" for word in words)
    return Step(f"{source.choice([loop, plain])}\n{end}", "".join(f"{word}\n" for word in words), code)


@_operation(3)
def _long_text(model: Model, source: random.Random) -> Step:
    filler = "x" * source.choice([4000, 4090, 4096, 9000, 20_000])
    end, code = _end(source)
    texts = [
        f"echo a\n: {filler}\necho b\n{end}",
        f": {filler}; echo a; echo b; {end}",
        f"echo a; cat >/dev/null <<_E\n{filler}\n_E\necho b\n{end}",
    ]
    return Step(source.choice(texts), "a\nb\n", code)


@_operation(3)
def _aliases(model: Model, source: random.Random) -> Step:
    name, word = f"q{source.randint(0, 5)}", _word(source)
    filler = source.choice(["", ": " + "y" * 9000 + "\n"])
    model.aliases[name] = word
    end, code = _end(source)
    if model.keywords:
        model.aliases.pop(name)
        return Step("true")
    return Step(f"alias {name}='echo {word}'\n{name} b\n{filler}echo end\n{end}", f"{word} b\nend\n", code)


@_operation(2)
def _uses_an_alias(model: Model, source: random.Random) -> Step:
    if not model.aliases:
        return Step(":")
    name = source.choice(sorted(model.aliases))
    return Step(f"{name} c", f"{model.aliases[name]} c\n")


@_operation(2)
def _ends_in_a_backslash(model: Model, source: random.Random) -> Step:
    return Step(
        *source.choice(
            [("echo a\\", "a\\\n"), ("cat <<< a\\\nb\necho end \\", "ab\nend \\\n"), ("# <<E\necho end \\", "end \\\n")]
        )
    )


@_operation(2)
def _runs_nothing(model: Model, source: random.Random) -> Step:
    return Step(source.choice(["", " ", "# c", "\n\n", "  # c\n"]))


# ---- the shell's own state ----

_PROMPTS = [
    "PS1='$ '", "PS1=", "PS1='\\u@\\h \\# \\! $? '", "unset PS1", "PS0=x", "PS0=", "unset PS0", "PS2='> '", "unset PS2",
    "PS1='a\nb'", "PS0='\\e[1mtwo\nlines'", "PS1=(a b)", "unset PS1 PS0 PS2", "export PS1", "shopt -u promptvars",
    "shopt -s promptvars", "PS4='>'", "HISTSIZE=0", "HISTSIZE=10", "local_=1; PS1+=x", "declare -u PS1", "PS1=$PS1$PS1",
]  # fmt: skip
_COMMANDS = [
    "PROMPT_COMMAND='PS1=x'", "PROMPT_COMMAND=:", "PROMPT_COMMAND=false", "unset PROMPT_COMMAND",
    "PROMPT_COMMAND+=('PS1=y')",
    "PROMPT_COMMAND='PS0=z; PS1=\"$? \"'", "PROMPT_COMMAND=('PS1=a' 'PS1=b')",
]  # fmt: skip


@_operation(6)
def _prompts(model: Model, source: random.Random) -> Step:
    command = source.choice(_PROMPTS)
    if model.frozen and any(name in command for name in ("PS0", "PS1", "PS2")):
        return Step("true")
    return Step(command)


@_operation(3)
def _prompt_commands(model: Model, source: random.Random) -> Step:
    command = source.choice([*_COMMANDS, "PROMPT_COMMAND='(exit 9)'"])
    if model.frozen and "PS" in command:
        return Step("true")
    forks = "(exit" in command
    if forks and model.trapped:
        return Step("true")
    model.forks = forks or (model.forks and "+=" in command)
    return Step(command)


@_operation(1)
def _freezes(model: Model, source: random.Random) -> Step:
    name = source.choice(["PS0", "PS1", "PS2"])
    if name in model.frozen or model.forks or model.keywords:
        return Step("true")
    model.frozen.add(name)
    return Step(f"unset PROMPT_COMMAND; readonly {name}=" + source.choice(["x", "", "'$ '"]))


@_operation(5)
def _options(model: Model, source: random.Random) -> Step:
    command = source.choice(
        "set -u/set +u/set -o pipefail/set +o pipefail/set -f/set +f/shopt -s extglob/shopt -u extglob/"
        "IFS=:/unset IFS/IFS=/set -b/set +b/set -h/set -k/set +k/set -B/shopt -s nullglob/"
        "shopt -u sourcepath/set -P/set -C/set +C/set -a/set +a/set -E/set -T/set +T/set -m/"
        "shopt -s checkwinsize/shopt -s lastpipe/shopt -s histappend/LC_ALL=C/unset LC_ALL/set -o posix/"
        "set +o posix/shopt -s expand_aliases".split("/")
    )
    model.keywords = command == "set -k" or (model.keywords and command != "set +k")
    model.pipefail = command == "set -o pipefail" or (model.pipefail and command != "set +o pipefail")
    return Step(command)


@_operation(3)
def _traps(model: Model, source: random.Random) -> Step:
    command = source.choice(
        [
            "trap : DEBUG",
            "trap - DEBUG",
            "trap : ERR",
            "trap - ERR",
            "trap : CHLD",
            "trap - CHLD",
            "trap : RETURN",
            "trap : WINCH",
        ]
    )
    if command == "trap : CHLD" and model.forks:
        return Step("true")
    model.trapped = command == "trap : CHLD" or (model.trapped and command != "trap - CHLD")
    return Step(command)


@_operation(2)
def _traps_interrupts(model: Model, source: random.Random) -> Step:
    command = source.choice(["trap : INT", "trap - INT", "trap - INT", "trap '' INT"])
    model.interrupts = command == "trap - INT"
    return Step(command)


_MODES = [
    "echo", "-echo", "sane", "raw echo", "raw", "-icanon", "parmrk", "-isig", "igncr", "-icrnl", "intr x",
    "echo echonl", "opost", "erase a", "eof b", "min 0 time 1", "cols 40", "noflsh", "-iexten", "sane echo",
]  # fmt: skip


@_operation(6)
def _modes(model: Model, source: random.Random) -> Step:
    modes = source.choice(_MODES)
    if modes in ("sane", "sane echo") or (modes == "echo" and not model.modes):
        model.modes = "echo"
    elif modes == "-echo" and model.modes == "echo":
        model.modes = ""
    elif modes not in ("-echo", "cols 40", "noflsh", "echo"):
        model.modes = "odd"
    return Step(f"stty {modes}")


@_operation(4)
def _descriptors(model: Model, source: random.Random) -> Step:
    command = source.choice(
        [
            "exec 2>/dev/null",
            "exec 2>/dev/tty",
            "exec 2>&0",
            "exec 2>&-",
            "exec 2>&1",
            "exec 3>/dev/null",
            "exec 3>&-",
            "exec 7<>/dev/tty",
        ]
    )
    if " 2>" in command:
        model.shows_errors = command not in ("exec 2>/dev/null", "exec 2>&-")
    return Step(command)


# ---- jobs ----


@_operation(3)
def _background(model: Model, source: random.Random) -> Step:
    """A process that outlives its command, and is no job: nothing tells of jobs behind hidden prompts."""
    word = _word(source)
    return Step(f"(sleep 0.0{source.randint(2, 9)} &); echo {word}", word + "\n")


# ---- ways to ask ----


@_operation(4)
def _matches(model: Model, source: random.Random) -> Step:
    before, after = _word(source).replace("PAT", "pat"), _word(source)
    end, code = _end(source)
    return Step(f"printf '%s%s%s' {before} 'P''AT' {after}; {end}", before, code, "match", "PAT")


@_operation(3)
def _interrupted(model: Model, source: random.Random) -> Step:
    word = _word(source)
    holds = source.choice(
        [
            "sleep 30",
            "cat",
            "sleep 30 | cat",
            "while :; do sleep 0.01; done",
            "sh -c 'read x'",
            "read x",

        ]
    )
    if not model.interrupts and holds.startswith(("while", "{")):
        holds = "sleep 30"
    return Step(f"echo {word}; {holds}", f"{word}\n", None, "interrupt")


@_operation(2)
def _cancelled(model: Model, source: random.Random) -> Step:
    return Step("sleep 30", "", None, "cancel")


@_operation(2)
def _queued(model: Model, source: random.Random) -> Step:
    """Behind a command one that is cancelled while it waits, which never runs."""
    model.variables["v9"] = "kept"
    return Step("v9=kept; sleep 0.5\nv9=ran", "", None, "queue")


@_operation(3)
def _many(model: Model, source: random.Random) -> Step:
    words = [_word(source) for _ in range(source.randint(2, 6))]
    return Step("\n".join(f"echo {word}" for word in words), "".join(f"{word}\n" for word in words), 0, "many")


@_operation(3)
def _talks(model: Model, source: random.Random) -> Step:
    words = [_word(source) for _ in range(2)]
    if model.modes:
        return Step("true")
    return Step(f"sh -c 'printf ready; read x; echo got $x'\n{words[0]}", f"got {words[0]}", None, "talk", "ready")

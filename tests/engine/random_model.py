"""What a shell answers: commands made from random numbers, their output and exit code, and the state that they leave.

An operation is a name and a seed. `plan` makes steps of operations, each for a shell in the state of the model, which
it then brings up to date. Any part of a list of operations is a history too, so that one can be shortened.

Most steps are composed of atoms, simple commands whose output, trace and exit code are known by themselves; the
model says where the output goes, what traps and traces print beside it, and whether the shell survives.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

__all__ = ["Model", "Operation", "Step", "brief", "operations", "plan"]


def brief(value: object) -> str:
    """Return its representation, without what is long or repeats itself."""
    text = re.sub(r"(.)\1{30,}", lambda found: f"<{len(found[0])} of {found[1]}>", repr(value))
    return text if len(text) < 400 else f"{text[:200]} ... {text[-200:]}"


class Operation(NamedTuple):
    """What is done, but for what depends on the state."""

    name: str
    seed: int


@dataclass(frozen=True, repr=False)
class Step:
    """A command, how it is asked for, and the answer that is right."""

    command: str
    output: str = ""
    code: int | None = 0
    """None: any."""
    way: str = "run"
    """A method of the tester."""
    match: str = ""
    error: str = ""
    """The class of the error that it raises."""
    dies: bool = False
    """The shell ends with it, or stays busy: the last step of a history."""
    delay: float = 0.0
    """Seconds until a cancellation, or a timeout."""

    def __repr__(self) -> str:
        told = [f"{each.name}={brief(getattr(self, each.name))}" for each in fields(self)[1:]
                if getattr(self, each.name) != each.default]  # fmt: skip
        return f"Step({', '.join([brief(self.command), *told])})"


@dataclass
class Atom:
    """A simple command."""

    text: str
    out: str = ""
    err: str = ""
    code: int = 0
    last: str | None = None
    """`$_` afterwards, if it is known."""
    trace: str | None = None
    """What `set -x` shows; None: the text."""
    simple: int = 1
    """How often a DEBUG trap runs: 0 for a subshell."""
    statuses: list[int] | None = None
    """PIPESTATUS of a pipeline."""
    aborts: bool = False
    """Its failure ends the whole command, but not the shell."""
    by_tty: bool = False
    """`out` goes to the terminal, whatever has been redirected."""
    after: Callable[[Model], None] | None = None


@dataclass
class Model:
    """What is known of a shell."""

    carried: bool = False
    """It is in a place: what cannot be typed there is an eval, whose `$_` and PIPESTATUS are its own."""
    code: int | None = 0
    last: str | None = None
    statuses: list[int] | None = None
    cwd: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    options: set[str] = field(default_factory=lambda: set("himBs"))
    pipefail: bool = False
    out: str = "tty"
    """tty, or file: `~/o$$`."""
    err: str = "tty"
    """tty, file, null or closed."""
    file: str | None = None
    hook: str = ""
    """What else is printed: x (a trace), D, E or bye (by traps on DEBUG, ERR, EXIT). One at a time."""
    chld: bool = False
    interrupts: bool = True
    """SIGINT is not trapped."""
    frozen: bool = False
    evals: bool = False
    """Texts of several lines are not typed: an alias is in the way of brace groups, or a trap on SIGCHLD was."""
    commands: bool = False
    """PROMPT_COMMAND has commands of the user's, which traps and traces show too."""
    detached: bool = False
    """The descriptor is closed by which bash gives its terminal to programs."""
    odd_modes: bool = False
    """The terminal has modes that change what programs read, or show it."""
    jobs: int = 0

    @property
    def calm(self) -> bool:
        """Nothing is printed but by the command itself, and a failure does not end the shell."""
        return not self.hook and not self.options & set("evk") and self.out == "tty"


Maker = Callable[[Model, random.Random], Step | None]
"""Makes a step, or none where the state does not allow it."""
MAKERS: dict[str, tuple[Maker, int]] = {}


def _operation(weight: int) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        MAKERS[maker.__name__.strip("_")] = maker, weight
        return maker

    return register


def operations(source: random.Random, count: int) -> list[Operation]:
    """Choose operations of some kinds, so that others do not hide what is wrong with these."""
    names = ["commands", "asks", *(name for name in MAKERS if source.random() < 0.4)]
    weights = [MAKERS[name][1] for name in names]
    return [Operation(name, source.getrandbits(32)) for name in source.choices(names, weights, k=count)]


def plan(model: Model, history: Iterable[Operation], is_left_out: Callable[[list[Step]], bool]) -> list[Step]:
    """Return the steps of a history. Those that `is_left_out` knows, the last of a list, are not done."""
    steps: list[Step] = []
    for operation in history:
        before = deepcopy(model)
        made = MAKERS[operation.name][0](model, random.Random(operation.seed))
        if made is None or is_left_out([*steps, made]):
            model = before
            continue
        steps.append(made)
        if made.dies:
            break
    return steps


def _word(source: random.Random, most: int = 12) -> str:
    return "".join(source.choices(string.ascii_letters + string.digits, k=source.randint(1, most)))


def _code(source: random.Random) -> int:
    return source.choice([0, 0, 1, 2, 7, 126, 127, 128, 130, 137, 255])


# ---- simple commands, and what is composed of them ----


def compose(
    model: Model, atoms: list[Atom], separator: str = "; ", way: str = "run", typed: bool = True
) -> Step | None:
    """Return the step that runs atoms, and bring the model to the state behind it.

    typed: not sent by `eval`, which `set -v` shows, and whose `$_`, PIPESTATUS and trace are its own.
    """
    text = separator.join(atom.text for atom in atoms)
    if (len(text) > 4000 and (model.carried or model.evals)) or ("\n" in text and model.evals):
        typed = False
    if not typed and ("v" in model.options or (model.carried and model.hook)):
        return None
    shown = ""
    dies = False

    def write(target: str, words: str) -> None:
        nonlocal shown
        if target == "tty":
            shown += words
        elif target == "file" and model.file is not None:
            model.file += words

    for atom in atoms:
        if model.hook == "D":
            write(model.out, "D\n" * (atom.simple or "T" in model.options))
        if model.hook == "x":
            write(model.err, f"+ {atom.text if atom.trace is None else atom.trace}\n")
        write("tty" if atom.by_tty else model.out, atom.out)
        write(model.err, atom.err)
        model.code = 1 if atom.err and model.err == "closed" and not atom.aborts else atom.code
        model.statuses = [model.code] if atom.statuses is None else (atom.statuses or None)
        if atom.simple:  # a subshell leaves it alone
            model.last = atom.last
        if model.code and model.hook == "E":
            write(model.out, "E\n")
        if atom.after is not None:
            atom.after(model)
        if model.code and "e" in model.options:
            dies = True
            if model.hook == "bye":
                write(model.out, "bye\n")
            break
        if atom.aborts:
            break
    if model.chld or model.hook in ("D", "E") or not typed:
        model.last = None
    if not typed:
        model.statuses = None
    return Step(text, shown, model.code, way, dies=dies)


BYTES = [
    (r"a\rb\n", "a\rb\n"), (r"\t\a\b.", "\t\a\b."), (r"\0a", "\0a"), (r"\xc3\xa9\xe2\x82\xac", "é€"), (r"\n\n", "\n\n"),
    (r"\e[31mred\e[0m\n", "red\n"), (r"]7733;\n", "]7733;\n"), (r"\e]0;title\ax", "x"), (r"\e]7733;1;2\a", ""),
    (r"[1]+  Done      sleep 0.02\n", "[1]+  Done      sleep 0.02\n"), ("$ ", "$ "), (r"\xff.", r"\xff."),
]  # fmt: skip
SIZES = [100, 4000, 4090, 4095, 4096, 4097, 9000, 20_000, 140_000]


def _exit(code: int) -> Atom:
    return Atom(f"(exit {code})", code=code, simple=0, trace=f"exit {code}")


def _echo(word: str) -> Atom:
    return Atom(f"echo {word}", f"{word}\n", last=word)


def _atom(model: Model, source: random.Random) -> Atom:
    """Return any simple command; `echo` for those that the state does not allow, so that others stay what they are."""
    word, code = _word(source), _code(source)
    size = source.choice(SIZES[:2] if model.carried and model.hook else SIZES)
    text, shown = source.choice(BYTES)
    name, to = f"v{source.randint(0, 5)}", source.choice(["/", "/usr", "/usr/lib"])
    value = model.variables.get(name, "")
    codes = [source.choice([0, 1, 3, 9]) for _ in range(source.choice([2, 3, 6, 30]))]
    ends = next((each for each in reversed(codes) if each), 0) if model.pipefail else codes[-1]
    allowed = {
        "variable": name in model.variables,
        "unbound": "u" in model.options and "e" not in model.options and not model.hook,
        "racy": model.hook in ("", "bye"),  # processes that run at once have traces and traps of their own
    }
    kind, atom = source.choice([
        ("", Atom(f"printf %s {word}", word, last=word)),
        ("", replace(_echo(word), text=f"echo {word} 1>&2", out="", err=f"{word}\n", trace=f"echo {word}",
                     last=None if model.err == "closed" else word)),
        ("", _exit(code)),
        ("", Atom(f"{name}={word}", last="", statuses=[], after=lambda model: model.variables.update({name: word}))),
        ("", Atom(f"sh -c 'echo {word}'", f"{word}\n", last=f"echo {word}")),
        ("", Atom(f"printf %{size}s ''", " " * size, last="")),
        ("", Atom(f"printf '{text}'", shown, last=text)),
        ("", Atom("false", code=1, last="false")),
        ("", Atom(f"cd {to}", last=to, after=lambda model: setattr(model, "cwd", to))),
        ("", replace(_echo(word), text=f"echo {word} >/dev/tty", by_tty=True, trace=f"echo {word}")),
        ("", Atom(f": {'x' * size}", last="x" * size)),
        ("variable", Atom(f'echo "${name}"', f"{value}\n", last=value, trace=f"echo {value}")),
        ("unbound", Atom('echo "$nope"', "", "bash: nope: unbound variable\n", 1, simple=0, statuses=[], aborts=True)),
        ("racy", Atom(" | ".join(f"(exit {each})" for each in codes), code=ends, simple=0, statuses=codes)),
        ("racy", Atom(f"echo {word} | cat | cat", f"{word}\n", statuses=[0, 0, 0])),
        ("racy", Atom(f"head -c {size}0 /dev/zero | tr '\\0' x", "x" * (size * 10), statuses=[0, 0])),
        ("racy", Atom(f"(sleep 0.0{source.randint(2, 9)} &)", simple=0)),
    ])  # fmt: skip
    return atom if allowed.get(kind, True) else _echo(word)


@_operation(30)
def _commands(model: Model, source: random.Random) -> Step | None:
    count, separator = source.choice([1, 1, 1, 2, 3, 5]), source.choice(["; ", "\n"])
    scratch, atoms = deepcopy(model), []
    for _ in range(count):
        atoms.append(_atom(scratch, source))
        compose(scratch, atoms[-1:])
    return compose(model, atoms, separator, source.choice(["run"] * 4 + ["stream"]))


@_operation(8)
def _here_documents(model: Model, source: random.Random) -> Step | None:
    lines = [_word(source) for _ in range(source.choice([1, 3, 30]))]
    if source.random() < 0.2:
        lines.append("x" * source.choice(SIZES))
    text = "".join(f"{line}\n" for line in lines)
    here = source.choice([f"cat <<'_E'\n{text}_E", f"cat <<-_\n\t{text}\t_", f"cat <<< '{text[:-1]}'"])
    return compose(model, [Atom(here, text, last="cat", trace="cat"), _exit(_code(source))], "\n")


@_operation(5)
def _aliases(model: Model, source: random.Random) -> Step | None:
    """The second line needs an alias of the first: it is not typed, but sent by eval."""
    if model.options & set("vk"):
        return None
    name, word = f"q{source.randint(0, 5)}", _word(source)
    model.aliases[name] = word
    atoms = [
        Atom(f"alias {name}='echo {word}'", last=f"{name}=echo {word}", trace=f"alias '{name}=echo {word}'"),
        Atom(f"{name} b", f"{word} b\n", last="b", trace=f"echo {word} b"),
        Atom(": " + "y" * 9000) if source.random() < 0.3 else _echo("end"),
        _exit(_code(source)),
    ]
    return compose(model, atoms, "\n", typed=False)


@_operation(3)
def _uses_aliases(model: Model, source: random.Random) -> Step | None:
    if not model.aliases:
        return None
    name, word = source.choice(sorted(model.aliases.items()))
    return compose(model, [Atom(f"{name} c", f"{word} c\n", last="c", trace=f"echo {word} c")])


@_operation(3)
def _ends_in_a_backslash(model: Model, source: random.Random) -> Step | None:
    end = Atom("echo end \\", "end \\\n", last="\\", trace=r"echo end '\'")
    before = source.choice([[], [Atom("cat <<< a\\\nb", "ab\n", trace="cat")], [_echo("a")]])
    if not before and source.random() < 0.5:
        end.text = f"# <<E\n{end.text}"
    atoms = [*before, end]
    return compose(model, atoms, "\n", typed=False)


@_operation(3)
def _runs_nothing(model: Model, source: random.Random) -> Step | None:
    return Step(source.choice(["", " ", "# c", "\n\n", "  # c\n", "\t"]))


@_operation(2)
def _has_no_syntax(model: Model, source: random.Random) -> Step | None:
    text = source.choice(["if", "echo 'a", "echo )", "echo a; }", "{ echo a", "a() {"])
    return Step(text, error="BashIncorrectSyntaxError")


@_operation(15)
def _asks(model: Model, source: random.Random) -> Step | None:
    """What lasts: exit codes, the last argument, the directory, options, a variable, jobs."""
    if model.hook == "x":
        return compose(model, [replace(_echo(str(model.code)), text="echo $?", trace=f"echo {model.code}")
                               if model.code is not None else _echo("a")])  # fmt: skip
    if model.jobs and model.calm and source.random() < 0.3:
        return compose(model, [Atom("jobs -r | grep -c 'sleep 1000'", f"{model.jobs}\n", statuses=[0, 0])], way="jobs")
    letters = "".join(letter for letter in "abefhikmnprtuvxBCEHPTs" if letter in model.options)
    statuses = None if model.statuses is None else " ".join(map(str, model.statuses))
    state = {"${PIPESTATUS[@]}": statuses, "$-": letters, "${v0-}": model.variables.get("v0", ""), "$?": model.code,
             "$_": model.last, "$PWD": model.cwd}  # fmt: skip
    known = {text: str(value) for text, value in state.items() if value is not None}
    answer = "|".join(known.values())
    last = answer.split(" ", len(model.statuses or [0]) - 1)[-1]  # PIPESTATUS makes words of its own
    return compose(model, [Atom(f'echo "{"|".join(known)}"', answer + "\n", last=last)])


# ---- the shell's own state ----

CHANGES = {
    "prompts": (12, [
        "PS1='$ '", "PS1=", r"PS1='\u@\h \# \! $? '", "unset PS1", "PS0=x", "PS0=", "unset PS0", "PS2='> '",
        "unset PS2", "PS1='a\nb'", "PS0='\\e[1mtwo\nlines'", "PS1=(a b)", "unset PS1 PS0 PS2", "export PS1",
        "shopt -u promptvars", "shopt -s promptvars", "HISTSIZE=0", "PS1+=x", "declare -u PS1", "PS1=$PS1$PS1",
        "declare -i PS1", r"PS1='$PS1 $? \# \!'", "PS0=$'\\e[1mtwo\\nlines\\a'", "PROMPT_DIRTRIM=1", "declare -a PS0",
        "unset PROMPT_DIRTRIM", "PS1='$(echo p)'", "PROMPT_COMMAND='PS1=x'", "PROMPT_COMMAND=:", "PROMPT_COMMAND=false",
        "unset PROMPT_COMMAND", "PROMPT_COMMAND+=('PS1=y')", "PROMPT_COMMAND='PS0=z; PS1=\"$? \"'", "declare -r PS0=x",
        "PROMPT_COMMAND=('PS1=a' 'PS1=b')", "PROMPT_COMMAND='(exit 9)'", r"""PROMPT_COMMAND='PS1="\u@\h "'""",
        "unset PS1 PROMPT_COMMAND", "PROMPT_COMMAND='unset PS1'", "declare -r PROMPT_COMMAND", "declare -r PS1='$ '",
        "declare -r PS1=", "declare -r PS2=x",
    ]),
    "options": (8, [
        *(f"set {sign}{letter}" for letter in "uefabhkmBCEPTv" for sign in "-+"), "set -o pipefail", "set +o pipefail",
        *(f"shopt {sign} {name}" for name in ("extglob", "nullglob", "lastpipe", "histappend", "checkwinsize",
                                              "sourcepath", "cmdhist") for sign in ("-s", "-u")),
        "IFS=:", "unset IFS", "IFS=", "LC_ALL=C", "unset LC_ALL", "set -o posix", "set +o posix", "set -o emacs",
        "set +o emacs", "set -o vi", "enable -n eval", "enable eval", "enable -n printf", "enable printf",
        "alias {='echo BAD'", "unalias -a", "alias eval='echo BAD'", "ulimit -n 64", "umask 77",
        "TERM=dumb", "TMOUT=900",
    ]),
    "hooks": (5, ["set -x", "set +x", "trap 'echo D' DEBUG", "trap - DEBUG", "trap 'echo E' ERR", "trap - ERR",
                  "trap 'echo bye' EXIT", "trap - EXIT"]),
    "traps": (4, [f"trap {sign} {name}" for name in ("CHLD", "RETURN", "WINCH", "USR1", "INT") for sign in ":-"]),
    "modes": (6, [f"stty {mode}" for mode in (
        "echo", "-echo", "sane", "raw echo", "raw", "-icanon", "parmrk", "-isig", "igncr", "-icrnl", "intr x", "-onlcr",
        "echo echonl", "opost", "erase a", "eof b", "min 0 time 1", "cols 40", "noflsh", "-iexten", "sane echo",
        "istrip", "inlcr", "eol z", "lnext y", "kill k", "werase w", "ixany ixoff", "rows 2", "-opost")]),
    "descriptors": (6, [f"exec {each}" for each in (
        "2>/dev/null", "2>/dev/tty", "2>&0", "2>&-", "2>&1", "3>/dev/null", "3>&-", "7<>/dev/tty", "255>&-",
        "0</dev/tty", ">|~/o$$", ">/dev/tty")]),
}  # fmt: skip
HOOKS = {"set -x": "x", "trap 'echo D' DEBUG": "D", "trap 'echo E' ERR": "E", "trap 'echo bye' EXIT": "bye"}
HOOK_ENDS = {"x": "set +x", "D": "trap - DEBUG", "E": "trap - ERR", "bye": "trap - EXIT"}


def _is_allowed(model: Model, kind: str, text: str) -> bool:
    """Return whether the model knows the state behind the change."""
    verbose, strict = "v" in model.options, "e" in model.options
    if kind == "hooks":  # one at a time, and nothing else that it could show
        return HOOK_ENDS.get(model.hook) == text or (text in HOOKS and not (model.hook or model.commands or verbose))
    if model.hook == "x" and (kind == "options" or model.err != "tty"):
        return False
    if kind == "prompts":
        # Assignments before each prompt fail; under `set -k` a list of variables is asked for.
        failing = text.startswith("declare -") and (model.commands or "k" in model.options)
        shown = model.hook in ("x", "D", "E") or ((verbose or strict) and "COMMAND" in text)
        return not (failing or shown or (model.frozen and "P" in text))
    if text in ("set -v", "set -e"):  # which concern the commands of prompts and traps too
        return not (model.commands or (text == "set -v" and (model.chld or model.hook)))
    if kind == "modes":
        return not model.detached
    return not (("k" in model.options and "alias" in text) or (verbose and "CHLD" in text))


def _apply(model: Model, kind: str, text: str) -> None:
    """Bring the model to the state behind a change."""
    words = text.split()
    if words[0] == "set" and len(words) == 2:
        (model.options.add if words[1][0] == "-" else model.options.discard)(words[1][1])
    if "pipefail" in text:
        model.pipefail = words[1] == "-o"
    if text == "unalias -a":
        model.aliases.clear()
    if kind == "hooks":
        model.hook = HOOKS.get(text, "")
    if kind == "prompts":
        model.commands |= "PROMPT_COMMAND" in text
        model.frozen |= text.startswith("declare -") and "-a" not in text
    if kind == "traps":
        model.chld = words[1] == ":" if words[2] == "CHLD" else model.chld
        model.interrupts = words[1] == "-" if words[2] == "INT" else model.interrupts
    model.evals |= text.startswith("alias {") or "CHLD" in text
    if kind == "modes":
        model.odd_modes |= text not in ("stty -echo", "stty cols 40", "stty noflsh")
    if kind == "descriptors":
        model.detached |= "255" in text
        if words[1].startswith("2>"):
            model.err = {"2>/dev/null": "null", "2>&-": "closed", "2>&1": model.out}.get(words[1], "tty")
        if words[1].startswith(">"):
            model.out = "tty" if "tty" in text else "file"
            model.file = model.file if "tty" in text else ""
        if model.err == "file":
            model.file = None  # prompts are written there too


def _change(kind: str, texts: list[str]) -> Maker:
    def maker(model: Model, source: random.Random) -> Step | None:
        text = source.choice(texts)
        if not _is_allowed(model, kind, text):
            return None
        trace = "exec" if kind == "descriptors" else None
        return compose(model, [Atom(text, statuses=[], trace=trace, after=lambda model: _apply(model, kind, text))])

    return maker


MAKERS |= {kind: (_change(kind, texts), weight) for kind, (weight, texts) in CHANGES.items()}


@_operation(2)
def _reads_the_file(model: Model, source: random.Random) -> Step | None:
    if model.file is None or model.out == "file" or model.hook == "x" or model.err == "file":
        return None
    return compose(model, [Atom("cat ~/o$$", model.file)])


@_operation(1)
def _ends(model: Model, source: random.Random) -> Step | None:
    if not model.calm:
        return None
    code = source.choice([1, 3, 255])
    text = source.choice([f"echo a; exit {code}", f"exec sh -c 'echo a; exit {code}'", "echo a; kill -9 $$",
                          f"set -e; echo a; (exit {code}); echo b",
                          "echo a; exec </dev/null", "echo a; exec <&-"])  # fmt: skip
    if "kill" in text:  # in a place the client is the shell
        return None if model.carried else Step(text, "a\n", 137, dies=True)
    return Step(text, "a\n", 0 if "<" in text else code, dies=True)


# ---- other ways to ask ----


def _calm(weight: int) -> Callable[[Maker], Maker]:
    """Register what is only done to a calm shell. What it leaves in `$?`, `$_` and PIPESTATUS is not known."""

    def register(maker: Maker) -> Maker:
        def only_calm(model: Model, source: random.Random) -> Step | None:
            if not model.calm:
                return None
            model.code = model.last = model.statuses = None
            return maker(model, source)

        only_calm.__name__ = maker.__name__
        return _operation(weight)(only_calm)

    return register


@_calm(4)
def _background(model: Model, source: random.Random) -> Step | None:
    """A job, and its notice behind a later command: neither is output of that one."""
    if "b" in model.options:
        return None
    word = _word(source)
    if source.random() < 0.3:
        model.jobs += 1
        return Step(f"sleep 1000 & printf {word}", word, way="jobs")
    more = source.choice(["", "; sleep 0.1"])
    return Step(f"sleep 0.0{source.randint(1, 9)} &\nprintf {word}{more}", word, way="jobs")


@_calm(4)
def _matches(model: Model, source: random.Random) -> Step | None:
    before, after = _word(source).lower(), _word(source)  # no PAT by chance
    return Step(f"printf '%s%s%s' {before} 'P''AT' {after}; (exit {_code(source)})", before, None, "matches", "PAT")


@_calm(3)
def _interrupted(model: Model, source: random.Random) -> Step | None:
    word = _word(source)
    holds = ["sleep 30", "cat", "sleep 30 | cat", "sh -c 'read x'", "read x", "sleep 60 & wait", "x=$(sleep 60)"]
    if model.detached:  # what reads the terminal is stopped
        holds = ["sleep 30", "sleep 60 & wait"]
    elif model.interrupts:
        holds += ["while :; do :; done", "while read x; do :; done"]
    return Step(f"echo {word}; {source.choice(holds)}", f"{word}\n", None, "interrupted", delay=0.3)


@_calm(3)
def _late(model: Model, source: random.Random) -> Step | None:
    """It ends by itself, after its timeout."""
    return Step(f"sleep 0.5; v8={_word(source)}", "", None, "late", delay=source.choice([0.001, 0.05, 0.2]))


@_calm(2)
def _cancelled(model: Model, source: random.Random) -> Step | None:
    return Step("sleep 30", "", None, "cancelled", delay=source.random() / 50)


@_calm(2)
def _queued(model: Model, source: random.Random) -> Step | None:
    """Behind a command one that is cancelled while it waits, which never runs."""
    return Step("v9=kept; until [ -e GATE ]; do sleep 0.05; done\nv9=ran", "", None, "queued")


@_calm(3)
def _many(model: Model, source: random.Random) -> Step | None:
    words = [_word(source) for _ in range(source.randint(2, 6))]
    return Step("\n".join(f"echo {word}" for word in words), "".join(f"{word}\n" for word in words), 0, "many")


@_calm(3)
def _talks(model: Model, source: random.Random) -> Step | None:
    if model.detached or model.odd_modes:
        return None
    word = _word(source) * source.choice([1, 1, 300 if model.carried else 900])
    return Step(f"sh -c 'printf ready; read x; echo got ${{#x}}'\n{word}", f"got {len(word)}", None, "talks", "ready")

"""Demo tasks of a batch: tiny repositories with a bug, and steps that fix it."""

from __future__ import annotations

import random

from swerex_c.examples._tasks import Step, Task

__all__ = ["demo_tasks"]

_BUGS = [
    ("total(values)", "return sum(values[1:])", "return sum(values)", "total([1, 2, 3])", "6"),
    ("longest(words)", "return min(words, key=len)", "return max(words, key=len)", 'longest(["a", "abc"])', '"abc"'),
    ("is_even(number)", "return number % 2 == 1", "return number % 2 == 0", "is_even(4)", "True"),
    ("initials(name)", "return name[0]", 'return "".join(w[0] for w in name.split())', 'initials("ada king")', '"ak"'),
    ("clamp(n, low, high)", "return max(low, max(n, high))", "return max(low, min(n, high))", "clamp(7, 0, 5)", "5"),
]
"""A function, its wrong line, its right line, a call and the result that the test wants."""


def demo_tasks(count: int, *, seed: int = 0) -> list[Task]:
    """Generate demo tasks that depend only on the arguments.

    In every tenth task the agent's edit fails the check. The tasks need bash, git and python3 in the environment.
    """
    chance = random.Random(seed)
    return [_demo_task(number, chance) for number in range(1, count + 1)]


def _demo_task(number: int, chance: random.Random) -> Task:
    function, bug, mended, call, answer = chance.choice(_BUGS)
    name = function.partition("(")[0]
    module = f"{chance.choice(['util', 'core', 'tools', 'helpers'])}_{number}"
    head = f"def {function}:"
    doc = f'    """Part of exercise {number}."""'
    source = f"{head}\n{doc}\n    {bug}"
    test = (
        f"import unittest\n\nimport {module}\n\n\nclass Test{number}(unittest.TestCase):\n"
        f"    def test_{name}(self):\n        self.assertEqual({module}.{call}, {answer})"
    )
    new = "return None" if number % 10 == 0 else mended
    run_tests = "python3 -m unittest -q"
    return Task(
        id=f"demo-{number:05d}",
        setup=[
            f"cat > {module}.py <<'EOF'\n{source}\nEOF",
            f"cat > test_{module}.py <<'EOF'\n{test}\nEOF",
            "git init -q . && git add -A && git -c user.name=demo -c user.email=demo@example.org commit -q -m first",
        ],
        actions=[
            Step(command="ls"),
            Step(command=f"cat {module}.py"),
            Step(command=run_tests),
            Step(command=f"grep -n {name} test_{module}.py"),
            Step(command=f"cat > {module}.py <<'EOF'\n{head}\n{doc}\n    {new}\nEOF"),
            Step(command=run_tests),
        ],
        check=run_tests,
        patch="git diff",
        timeout=300,
    )

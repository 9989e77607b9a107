"""What is looked for and what is done in the rows: patterns, and an agent's small day."""

from __future__ import annotations

__all__ = ["ACTIONS", "LITERALS", "NEEDLE", "PATTERNS", "REGEXES"]

PATTERNS = [f"needle-{i:02d}-in-the-stack" for i in range(10)] + [
    r"error: [a-z]+ at line \d+",
    r"\(gdb\) $",
    r">>> $",
    r"In \[\d+\]: ",
    r"Traceback \(most recent call last\)",
    r"(?:fatal|panic): .+",
    r"password( for \w+)?: ",
    r"\[y/N\] ?",
    r"segmentation fault",
    r"found [0-9]{4} of [0-9]{4}!",
]
NEEDLE = "found 1234 of 5678!"
LITERALS = [f"needle-{i:02d}-in-the-stack" for i in range(20)]
REGEXES = [
    r"error: [a-z]+ at line \d+",
    r"\(gdb\) $",
    r"Traceback \(most recent call last\)",
    r"(?:fatal|panic): .+",
    r"found [0-9]{4} of [0-9]{4}!",
]

ACTIONS: list[tuple[str, str | None, int]] = [
    ("cd $(mktemp -d) && git init -q . && git config user.name a && git config user.email a@b.c", "", 0),
    ("cat >calc.py <<'EOF'\ndef add(a, b):\n    return a - b  # wrong\nEOF", "", 0),
    (
        "cat >test_calc.py <<'EOF'\nimport unittest\nfrom calc import add\n\n"
        "class T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(add(1, 2), 3)\nEOF",
        "",
        0,
    ),
    ("git add -A && git commit -qm first", "", 0),
    ("ls -1", "calc.py\ntest_calc.py\n", 0),
    ("grep -n wrong calc.py", "2:    return a - b  # wrong\n", 0),
    ("python3 -m unittest -q 2>&1 | tail -1", "FAILED (failures=1)\n", 0),
    ("sed -i 's/a - b  # wrong/a + b/' calc.py", "", 0),
    ("python3 -m unittest -q 2>&1 | tail -1", "OK\n", 0),
    ("git diff --stat | tail -1", " 1 file changed, 1 insertion(+), 1 deletion(-)\n", 0),
    ("cat calc.py", "def add(a, b):\n    return a + b\n", 0),
    ("seq 20000", None, 0),
    ("find /usr/include -name 'std*.h' | sort", None, 0),
    ("false", "", 1),
    ("export X=1; echo $X; pwd >/dev/null", "1\n", 0),
    ("git commit -qam second && git log --oneline | wc -l", "2\n", 0),
    ('rm -rf "$PWD"; cd /', "", 0),
]
"""What an agent does to mend a fault: commands, what they print (None: too long to say here), their exit codes."""

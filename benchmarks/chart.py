"""The chart of README.md, as SVG for light and for dark pages: `python -m benchmarks --chart [RECORD]`.

It is written by hand, because it has four bars, and a page shows it without any style sheet.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from measure import HERE
from rows import Result

__all__ = ["BARS", "PICTURES", "draw_chart", "has_bars"]

PICTURES = HERE / "pictures"

BARS = {
    "original": ("SWE-ReX", "#cf222e", "#ff7b72"),
    "pexpect, as it comes": ("pexpect, as it comes", "#9a6700", "#d29922"),
    "pexpect": ("pexpect, tuned", "#57606a", "#9198a1"),
    "ours": ("swerex_c", "#0969da", "#4493f8"),
}
"""Lines of the row `true`, from the top: their name, and their colour on a light and on a dark page."""

THEMES = {"light": ("#ffffff", "#1f2328", "#d1d9e0"), "dark": ("#0d1117", "#f0f6fc", "#3d444d")}
"""Colours of the background, the text and the lines: GitHub's."""

WIDTH, TOP, BAR, STEP, LEFT, RIGHT = 760, 52, 22, 36, 180, 110
"""Pixels: of the whole, above the bars, of a bar, from bar to bar, and beside the axis for names and numbers."""


def has_bars(record: Result) -> bool:
    lines = record["rows"].get("true", {}).get("lines", {})
    return all("p50_us" in lines.get(name, {}) and not lines[name].get("wrong") for name in BARS)


def draw_chart(record: Result, directory: Path = PICTURES) -> list[Path]:
    """Write the chart of a record that `has_bars`; its files."""
    directory.mkdir(exist_ok=True)
    made = []
    for number, theme in enumerate(THEMES):
        path = directory / f"command-{theme}.svg"
        path.write_text(svg(record, number))
        made.append(path)
    return made


def svg(record: Result, theme: int) -> str:
    paper, ink, rule = list(THEMES.values())[theme]
    times = {name: record["rows"]["true"]["lines"][name]["p50_us"] / 1000 for name in BARS}
    tick = 20
    ticks = range(0, int(max(times.values())) + tick, tick)
    scale = (WIDTH - LEFT - RIGHT) / ticks[-1]
    bottom = TOP + STEP * len(BARS)
    height = bottom + 78
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="14" role="img">',
        f"<title>{escape(sentence(times))}</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="{paper}"/>',
        text(16, 28, "Time of one command (true) in a session", ink, "start", ' font-weight="bold"'),
    ]
    for value in ticks:
        x = LEFT + value * scale
        parts.append(f'<path d="M{x:.1f} {TOP - 8}V{bottom}" stroke="{rule}"/>')
        parts.append(text(x, bottom + 18, str(value), ink, "middle"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, bottom + 38, "milliseconds (median)", ink, "middle"))
    for i, (name, (title, *colours)) in enumerate(BARS.items()):
        y = TOP + STEP * i
        width = max(2.0, times[name] * scale)
        parts.append(text(LEFT - 10, y + 16, title, ink, "end"))
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colours[theme]}"/>')
        number = f"{written(times[name])} ms"
        behind = f'width="{10 * len(number)}" height="{BAR}" fill="{paper}"'  # no line of the axis crosses the number
        parts.append(f'<rect x="{LEFT + width + 4:.1f}" y="{y}" {behind}/>')
        parts.append(text(LEFT + width + 8, y + 16, number, ink, "start", ' font-weight="bold"'))
    parts.append(text(16, height - 14, machine(record["machine"]), ink, "start", ' font-size="11"'))
    return "\n".join([*parts, "</svg>", ""])


def text(x: float, y: float, words: str, colour: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y}" fill="{colour}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def written(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 10 else f"{milliseconds:.3f}"


def sentence(times: dict[str, float]) -> str:
    named = [f"{BARS[name][0]} {written(value)} ms" for name, value in times.items()]
    return f"Time of one command in a session: {'; '.join(named)}"


def machine(about: Result) -> str:
    day = str(about["date"]).split()[0]
    kernel = re.sub(r"(\d+\.\d+).*", r"\1", about["kernel"])
    bash = re.sub(r".*version (\d+\.\d+).*", r"bash \1", about["bash"])
    where = f"{about['cpu']}, {about['processors']} processors, {kernel}, {bash}, {about['python']}"
    return f"{day}, {where}; one interleaved run, every answer checked"

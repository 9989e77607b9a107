"""Pictures of a record, as SVG: latencies, output by its size, sessions by their number. Needs matplotlib."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from rows import Result

__all__ = ["draw"]

OURS = "#1f6feb"
FLOOR = "#57606a"
OTHERS = ["#bf8700", "#8250df", "#1a7f37", "#cf222e", "#0a7ea4", "#953800", "#6e7781"]


def colour(name: str, others: dict[str, str]) -> str:
    if name.startswith(("ours", "core")):
        return OURS
    if name.startswith(("bare C", "engine")):
        return FLOOR
    return others.setdefault(name, OTHERS[len(others) % len(OTHERS)])


def lines_of(record: Result, key: str) -> dict[str, Result]:
    return {n: it for n, it in record["rows"].get(key, {}).get("lines", {}).items() if "error" not in it}


def draw(record: Result, directory: Path) -> list[Path]:
    """Write the pictures that a record has the numbers for; their files."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "swerex_c", "font.size": 9, "axes.spines.top": False})
    from matplotlib import pyplot, ticker

    plain = ticker.FuncFormatter(lambda value, _: f"{value:,.10g}")

    directory.mkdir(exist_ok=True)
    made: list[Path] = []

    def keep(figure: Any, name: str) -> None:
        path = directory / f"{name}.svg"
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
        made.append(path)

    others: dict[str, str] = {}
    latency = {n: it for n, it in lines_of(record, "true").items() if "p50_us" in it}
    if latency:
        figure, axes = pyplot.subplots(figsize=(7, 0.32 * len(latency) + 1.4))
        names = sorted(latency, key=lambda name: -latency[name]["p50_us"])
        for i, name in enumerate(names):
            line, paint = latency[name], colour(name, others)
            axes.hlines(i, line["lowest_us"], line["p50_us"], color=paint)
            axes.plot(line["lowest_us"], i, "|", color=paint, ms=9)
            axes.plot(line["p50_us"], i, "o", color=paint)
            if "pinned_us" in line:
                axes.plot(line["pinned_us"], i, "o", color=paint, mfc="none")
            rightmost = max(line["p50_us"], line.get("pinned_us", 0))
            axes.text(rightmost * 1.15, i, f"{line['p50_us']:,.0f}", va="center")
        axes.set_yticks(range(len(names)), names)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(plain)
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
        axes.set_xlabel("microseconds for `true`: median (dot), lowest round (bar), on one processor (ring)")
        axes.margins(x=0.12)
        axes.grid(axis="x", alpha=0.3)
        keep(figure, "latency")

    for name, pattern, across, up, value in (
        ("output", r"output-(\d+)", "megabytes of output", "seconds", lambda it: it["p50_us"] / 1e6),
        ("sessions", r"fleet-(\d+)", "sessions at once", "commands a second", lambda it: it["per_second"]),
    ):
        curves: dict[str, list[tuple[int, float]]] = {}
        for key in record["rows"]:
            if found := re.fullmatch(pattern, key):
                for line, it in lines_of(record, key).items():
                    if line in ("ours, bounded", "ours, streamed"):  # these do less than the others
                        continue
                    curves.setdefault(line, []).append((int(found[1]), value(it)))
        curves = {line: sorted(points) for line, points in curves.items() if points}
        if not any(len(points) > 1 for points in curves.values()):
            continue
        figure, axes = pyplot.subplots(figsize=(7, 4))
        for line, points in curves.items():
            style = "--" if line in ("core", "engine") else "-"
            axes.plot(*zip(*points, strict=True), style, marker="o", ms=4, color=colour(line, others), label=line)
        axes.set_xscale("log")
        axes.set_yscale("log")
        sizes = sorted({size for points in curves.values() for size, _ in points})
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.yaxis.set_major_formatter(plain)
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
        axes.grid(alpha=0.3)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.legend(frameon=False)
        keep(figure, name)
    return made


if __name__ == "__main__":
    record_file = Path(sys.argv[1])
    print(*draw(json.loads(record_file.read_text()), record_file.parent), sep="\n")

"""Pictures of a record, as SVG: latencies, output by its size, sessions by their number. Needs matplotlib."""

from __future__ import annotations

import re
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
    from matplotlib import pyplot

    directory.mkdir(exist_ok=True)
    made: list[Path] = []

    def keep(figure: Any, name: str) -> None:
        path = directory / f"{name}.svg"
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
        made.append(path)

    others: dict[str, str] = {}
    latency = {n: it["p50_us"] for n, it in lines_of(record, "true").items() if "p50_us" in it}
    if latency:
        figure, axes = pyplot.subplots(figsize=(7, 0.32 * len(latency) + 1.1))
        names = sorted(latency, key=lambda name: -latency[name])
        axes.barh(names, [latency[name] for name in names], color=[colour(name, others) for name in names])
        axes.set_xscale("log")
        axes.set_xlabel("microseconds for `true`, median (log scale)")
        for i, name in enumerate(names):
            axes.text(latency[name] * 1.1, i, f"{latency[name]:,.0f}", va="center")
        axes.margins(x=0.12)
        keep(figure, "latency")

    for name, pattern, across, up, value in (
        ("output", r"output-(\d+)", "megabytes of output", "seconds", lambda it: it["p50_us"] / 1e6),
        ("sessions", r"fleet-(\d+)", "sessions at once", "commands a second", lambda it: it["per_second"]),
    ):
        curves: dict[str, list[tuple[int, float]]] = {}
        for key in record["rows"]:
            if found := re.fullmatch(pattern, key):
                for line, it in lines_of(record, key).items():
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
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.legend(frameon=False)
        keep(figure, name)
    return made

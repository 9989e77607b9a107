"""What the benchmarks say of two runs, and of growth: by numbers whose answer is known."""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import swerex_c

DIRECTORY = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def benchmarks() -> Iterator[None]:
    """The modules of the benchmarks, which are a program and no package."""
    sys.path.insert(0, str(DIRECTORY))
    yield
    sys.path.remove(str(DIRECTORY))


@pytest.fixture
def record() -> Any:
    return importlib.import_module("record")


def run(*values: float) -> dict[str, Any]:
    rounds = {str(i): value for i, value in enumerate(values)}
    return {"rows": {"true": {"lines": {"ours": {"rounds": rounds}}}}}


@pytest.mark.parametrize(
    ("before", "after", "certain"),
    [
        ((1.0, 1.1, 0.9, 1.05, 0.95), (1.5, 1.6, 1.4, 1.55, 1.45), True),
        ((1.0, 1.1, 0.9, 1.05, 0.95), (0.5, 0.6, 0.4, 0.55, 0.45), True),
        ((1.0, 1.1, 0.9, 1.05, 0.95), (1.02, 1.12, 0.92, 1.07, 0.97), False),
        ((1.0, 1.001, 0.999, 1.0005, 0.9995), (1.05, 1.051, 1.049, 1.0505, 1.0495), False),
        ((1.0, 3.0, 0.5, 2.0, 1.5), (2.0, 4.0, 0.7, 1.0, 3.0), False),
    ],
)
def test_only_what_is_certain_is_called_slower_or_faster(
    record: Any, before: tuple[float, ...], after: tuple[float, ...], certain: bool
) -> None:
    (found,) = record.compare(run(*before), run(*after))
    assert found.certain == certain


def test_few_rounds_say_nothing(record: Any) -> None:
    assert list(record.compare(run(1.0, 1.0, 1.0), run(9.0, 9.0, 9.0))) == []


def test_the_rank_test_is_exact(record: Any) -> None:
    """Four beside four that are all larger: two of the 70 ways to share them out are as far apart."""
    assert record.rank_test([1, 2, 3, 4], [5, 6, 7, 8]) == pytest.approx(2 / 70)
    assert record.rank_test([1, 1, 1, 1], [1, 1, 1, 1]) == 1


def test_the_exponent_of_growth() -> None:
    growth = importlib.import_module("growth")
    assert growth.exponent([(1, 3), (10, 30), (100, 300)]) == pytest.approx(1)
    assert growth.exponent([(1, 3), (10, 300), (100, 30000)]) == pytest.approx(2)
    assert growth.exponent([(1, 3), (10, 30)]) is None


def test_growth_is_looked_up_by_the_sizes_in_the_names_of_rows() -> None:
    growth = importlib.import_module("growth")
    sizes = {"output-1": 2.0, "output-8": 16.0, "output-64": 128.0, "output-words": 1.0, "line-64": 1.0}
    rows = {name: {"lines": {"ours": {"p50_us": value}}} for name, value in sizes.items()}
    (times, *_) = growth.GROWTHS
    assert times.exponents({"rows": rows}) == {"ours": pytest.approx(1)}


def test_a_goal_says_what_a_record_has_of_it() -> None:
    goals = importlib.import_module("goals")

    def verdict(text: str, **line: float) -> tuple[float | None, bool]:
        found = {it.text: it for it in goals.targets({"rows": {"true": {"lines": {"ours": line}}}})}
        return found[text].value, found[text].met

    name = "true, asyncio: on one processor, by the C loop"
    assert verdict(name, pinned_ratio=1.9) == (1.9, True)
    assert verdict(name, pinned_ratio=2.1) == (2.1, False)
    assert verdict(name) == (None, False)


def test_a_record_is_found_by_the_beginning_of_its_name_and_has_its_tables_beside_it(
    record: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "RECORDS", tmp_path)
    names = ("cpu", "kernel", "bash", "python", "command")
    about = {
        **dict.fromkeys(names, "x"),
        "date": "2026-01-02 03:04 UTC",
        "commit": "abc",
        "processors": 2,
        "load_before": 0.1,
    }
    line = {"p50_us": 1234.0, "p99_us": 5678.0, "wrong": 0, "count": 7, "ratio": 1.5}
    rows = {"true": {"title": "true | it", "kind": "latency", "baseline": "bare C", "lines": {"ours": line}}}
    path = record.write({"machine": about, "rows": rows, "absent": {"tmux": "no program"}})
    assert record.find("2026-01-02") == record.latest() == path
    with pytest.raises(LookupError):
        record.find("2025")
    report = importlib.import_module("report").write_report(record.read("2026-01-02"), path.parent, []).read_text()
    assert "| ours | 1.23 ms | 5.68 ms | 1.50x |" in report
    assert "| MISS | true, asyncio: median, by the C loop |" not in report  # a record of 1.5 meets a goal of 2
    assert "| pass | true, asyncio: median, by the C loop | 1.5 x | at most 2 x |" in report
    assert "tmux (no program)" in report


def test_ratios_are_of_the_same_round_and_the_lowest_round_is_the_best_median() -> None:
    rows = importlib.import_module("rows")

    def result(number: int, *samples: float) -> dict[str, Any]:
        return {"round": number, "count": len(samples), "wrong": 0, "samples_us": list(samples)}

    row = rows.Workload("true", "", [], pinned=True)
    row.results = {
        "bare C": [result(0, 10, 10, 10), result(1, 30, 30, 30)],
        "ours": [result(0, 20, 1, 20), result(1, 90)],
    }
    row.pinned_results = {"bare C": [result(0, 5)], "ours": [result(0, 15)]}
    line = row.summary("ours")
    assert line["ratio"] == 2.5 and line["lowest_us"] == 20 and line["lowest_ratio"] == 2
    assert line["pinned_us"] == 15 and line["pinned_ratio"] == 3


def test_a_process_is_pinned_with_its_threads_and_children() -> None:
    worker_base = importlib.import_module("worker_base")
    allowed = os.sched_getaffinity(0)
    one = {min(allowed)}
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    with subprocess.Popen(["sleep", "100"]) as child:
        try:
            worker_base.pin("self", one)
            places = [os.sched_getaffinity(it) for it in (0, thread.native_id or 0, child.pid)]
            worker_base.pin("self", allowed)
            assert places == [one] * 3 and os.sched_getaffinity(child.pid) == allowed
        finally:
            worker_base.pin("self", allowed)
            ended.set()
            thread.join()
            child.kill()


def test_a_row_that_there_is_not_is_named_before_anything_is_measured() -> None:
    command = [sys.executable, str(DIRECTORY / "bench.py"), "--quick", "--no-install", "--only", "output-8,nosuch"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no rows nosuch; there are true, " in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
def test_what_was_measured_before_an_interrupt_is_kept(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    rows = ["--only", "idle-10,idle-30", "--contenders", "core"]
    command = [sys.executable, str(DIRECTORY / "bench.py"), "--quick", "--no-install", *rows, "--json", str(kept)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        while "10 idle sessions" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
    assert process.returncode == 1 and "interrupted" in said and "Traceback" not in said
    assert list(json.loads(kept.read_text())["rows"]) == ["idle-10"]


def test_an_engine_that_is_needed_and_not_there_is_a_failure() -> None:
    command = [sys.executable, str(DIRECTORY / "bench.py"), "--quick", "--no-install", "--only", "encode-100"]
    command += ["--contenders", "ours", "--need", "bytes: ours,docker: ours"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    failures = [line for line in done.stdout.splitlines() if line.startswith("failed")]
    assert (done.returncode, failures) == (1, ["failed: docker: ours: no row of this run has it"])


def on_records(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    environment = {**os.environ, "SWX_ORIGINAL_PYTHON": sys.executable, **more}
    return subprocess.run(
        command, cwd=DIRECTORY.parent, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_records_of_too_few_rounds_are_not_compared_in_silence(tmp_path: Path) -> None:
    line = {"rounds": {str(number): 1.0 for number in range(4)}}
    for name, lines in (("long", {"ours": line}), ("quick", {"ours": {"rounds": {"0": 1.0}}})):
        (tmp_path / name).write_text(json.dumps({"rows": {"true": {"lines": lines}}}))
    long, quick = str(tmp_path / "long"), str(tmp_path / "quick")
    assert "same" in on_records("--compare", long, long).stdout
    done = on_records("--compare", long, quick)
    assert (done.returncode, done.stdout) == (2, "") and "no line has 4 rounds in both records" in done.stderr


def test_a_report_keeps_the_pictures_that_cannot_be_drawn_here(tmp_path: Path) -> None:
    place = tmp_path / "record"
    shutil.copytree(max(DIRECTORY.glob("record/*/latency.svg")).parent, place)
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not here')")
    before = (place / "tables.md").read_text()
    done = on_records("--report", str(place), PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    assert done.returncode == 0 and "no new pictures: ImportError: not here" in done.stderr
    assert "![latency](latency.svg)" in before and "![latency](latency.svg)" in (place / "tables.md").read_text()


def test_the_chart_of_the_readme_is_that_of_the_newest_record(record: Any, tmp_path: Path) -> None:
    chart = importlib.import_module("chart")
    measured = json.loads(record.latest(chart.has_bars).read_text())
    readme = (DIRECTORY.parent / "README.md").read_text()
    for drawn in chart.draw_chart(measured, tmp_path):
        assert drawn.read_text() == (chart.PICTURES / drawn.name).read_text(), "draw it: python -m benchmarks --chart"
        assert f"benchmarks/pictures/{drawn.name}" in readme
    for name, (title, *_) in chart.BARS.items():
        milliseconds = chart.written(measured["rows"]["true"]["lines"][name]["p50_us"] / 1000)
        assert re.search(rf"{title.split(',')[0]}[\w ,]* {milliseconds} ms", readme), (title, milliseconds)


def test_what_is_kept_of_an_output_has_to_be_its_ends(tmp_path: Path) -> None:
    worker_output, operations = map(importlib.import_module, ("worker_output", "measuring.operations"))
    path = tmp_path / "file"
    data = b"".join(b"%06d\n" % i for i in range(1000))
    path.write_bytes(data)
    assert worker_output.are_its_ends(data[:100] + data[-50:], len(data) - 150, str(path))
    assert worker_output.are_its_ends(data, 0, str(path))
    assert not worker_output.are_its_ends(data[:100] + data[-50:], len(data) - 151, str(path))
    assert not worker_output.are_its_ends(data[:100] + data[-51:-1], len(data) - 150, str(path))
    assert not operations.is_file((data[:-1] + b"x", 0), str(path))
    assert operations.is_file((data.decode(), 0), str(path))


def test_a_limit_of_open_files_is_named_where_it_is_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = importlib.import_module("measure")
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    with pytest.raises(measure.BenchError, match=r"ulimit -n 1100\b.* 1000 here"):
        measure.check_descriptors(1000)
    measure.check_descriptors(700)
    assert given == [(800, 1000)]


def test_counts_beyond_their_tolerance_are_slower_and_another_compiler_widens_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = importlib.import_module("counts")
    tools = {"compiler": "cc 12", "python": "cpython 3.11.2", "platform": "linux-x86_64"}
    monkeypatch.setattr(counts, "tools", lambda: tools)

    def slower(tools: dict[str, str], now: float) -> bool:
        (found,) = counts.changes({"tools": tools, "counts": {"runtime": 1000.0}}, {"runtime": now, "new": 1.0})
        return bool(found.slower)

    assert [slower(tools, number) for number in (900, 1029, 1031)] == [False, False, True]
    assert [slower({**tools, "compiler": "cc 13"}, number) for number in (1031, 1299, 1301)] == [False, False, True]


def test_the_tree_is_held_to_a_count_of_each_piece_of_work() -> None:
    counts = importlib.import_module("counts")
    assert counts.read_baseline()["counts"].keys() == counts.WORKS.keys()


@pytest.mark.parametrize(
    ("factor", "slower"),
    [(1.0, False), (1.1, False), (0.7, False), (1.3, True)],
    ids=["same", "tenth", "faster", "third"],
)
def test_times_are_slower_by_much_and_for_certain(factor: float, slower: bool) -> None:
    gate = importlib.import_module("gate")
    before = [20.0, 21.0, 19.5, 20.5, 22.0, 20.2, 21.1, 19.9, 20.7]
    assert gate.Verdict("true", before, [it * factor for it in before[1:] + before[:1]]).slower == slower


def test_one_round_that_was_slow_is_not_slower() -> None:
    gate = importlib.import_module("gate")
    before = [20.0, 21.0, 19.5, 20.5, 22.0, 20.2, 21.1, 19.9, 20.7]
    assert not gate.Verdict("true", before, [*before[:5], 90.0, 95.0, 99.0, 91.0]).slower


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    if shutil.which("valgrind") is None:
        pytest.skip("no valgrind")
    found: dict[str, str] = importlib.import_module("measuring.machine").environment(tmp_path)
    return found


@pytest.mark.slow
def test_counts_of_the_same_engine_are_the_same_and_a_slower_engine_is_caught(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """Slower by a hundred turns of a loop for each read of the terminal."""
    bench, counts = importlib.import_module("bench"), importlib.import_module("counts")
    slow = tmp_path / "csrc"
    shutil.copytree(DIRECTORY.parent / "csrc", slow)
    begin = re.compile(r"swx_session_readable\(swx_session \*\w+, int64_t \w+\)\n\{\n")
    (path,) = [it for it in slow.glob("*.c") if begin.search(it.read_text())]
    path.write_text(begin.sub(r"\g<0>    for (volatile int i = 0; i < 100; i++) {}\n", path.read_text()))

    def count(sources: Path) -> float:
        counter = counts.Counter(tmp_path, environment, bench.build_engine(tmp_path, sources))
        result = counter.ask("engine")
        assert result["wrong"] == 0
        return float(result["instructions"])

    first = count(DIRECTORY.parent / "csrc")
    baseline = {"tools": counts.tools(), "counts": {"engine": first}}
    (same,) = counts.changes(baseline, {"engine": count(DIRECTORY.parent / "csrc")})
    (slower,) = counts.changes(baseline, {"engine": count(slow)})
    assert not same.slower and slower.slower


WASTE = """
quick = BashSession.run

async def slow(self, action):
    sum(range(4000))
    return await quick(self, action)

BashSession.run = slow
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_same_package_is_not_slower_and_a_slower_one_is_caught(environment: dict[str, str], tmp_path: Path) -> None:
    """Slower by some 50 us of computing for each command: by its instructions, and by the times beside the other."""
    counts, gate, measure = [importlib.import_module(it) for it in ("counts", "gate", "measure")]
    slow = tmp_path / "slow"
    shutil.copytree(Path(swerex_c.__file__).parent, slow / "swerex_c")
    path = slow / "swerex_c" / "engine" / "session.py"
    path.write_text(path.read_text() + WASTE)

    def count(place: str | None) -> float:
        counter = counts.Counter(tmp_path, environment, "", place)
        try:
            return float(counter.ask("runtime")["instructions"])
        finally:
            counter.close()

    first = count(None)
    baseline = {"tools": counts.tools(), "counts": {"runtime": first}}
    (same,) = counts.changes(baseline, {"runtime": count(None)})
    (slower,) = counts.changes(baseline, {"runtime": count(str(slow))})
    assert not same.slower and abs(same.share) < 0.01
    assert slower.slower

    paths = {"one": measure.our_path(), "two": measure.our_path(), "slow": str(slow)}
    workers = {
        name: measure.Worker("ours", sys.executable, {**environment, **({"PYTHONPATH": path} if path else {})})
        for name, path in paths.items()
    }
    try:
        request = {"operation": "command", "text": "true", "count": 200, "warm": 20}

        def verdicts(before: str, now: str) -> list[bool]:
            sides = {("before", "ours"): workers[before], ("now", "ours"): workers[now]}
            return [it.slower for it in gate.compared(sides, "ours", "true", request)]

        assert verdicts("one", "two") == [False, False]
        assert verdicts("one", "slow")[0]
    finally:
        for worker in workers.values():
            worker.close()


def test_slow_once_is_not_slower_for_the_gate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gate = importlib.import_module("gate")
    same = gate.Verdict("true: CPU", [10.0 + i / 100 for i in range(9)], [10.005 + i / 100 for i in range(9)])
    slow = gate.Verdict("true: CPU", same.before, [2 * it for it in same.before])
    other = gate.Verdict("output: CPU", slow.before, slow.now)
    for first, second, slower in ((same, same, False), (slow, same, False), (slow, other, False), (slow, slow, True)):
        answers = iter([[first], [second]])
        monkeypatch.setattr(gate, "against", lambda *_, answers=answers: next(answers))
        assert gate.slower_twice("before", None, tmp_path) is slower

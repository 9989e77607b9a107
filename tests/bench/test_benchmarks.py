"""`python -m benchmarks`: answers, records and pictures."""

from __future__ import annotations

import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks import pictures
from tests.support.original import ROOT, original_python
from tests.support.processes import ran


def benchmarks(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return ran(sys.executable, "-m", "benchmarks", *arguments, cwd=ROOT, env=environment or None)


def test_a_wrong_answer_is_told_and_is_the_status() -> None:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    function = {"BASH_FUNC_true%%": "() { builtin echo surprise; }"}  # every bash finds it in its environment
    done = benchmarks("--answers", "--only", "true", PATH=path, **function)
    assert done.returncode == 1
    assert done.stdout.count("WRONG") == len(done.stdout.splitlines()) >= 4, done.stdout


def test_interrupts_arrive_though_the_caller_ignores_them() -> None:
    """As under nohup, which its shells would hand down to what they run."""
    command = f'trap "" INT; exec "{sys.executable}" -m benchmarks --answers --only interrupt'
    done = ran("bash", "-c", command, cwd=ROOT)
    assert done.returncode == 0 and "bare terminal            right" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_the_originals_client_can_upload_the_file_of_a_row() -> None:
    done = benchmarks("--answers", "--only", "remote-upload", "--peers-python", original_python())
    assert done.returncode == 0 and "SWE-ReX, server          right" in done.stdout, done.stdout


def test_wrong_use_ends_with_2() -> None:
    for arguments in (["--only", "nothing"], ["--chart", "1999"]):
        done = benchmarks(*arguments)
        assert done.returncode == 2 and "Traceback" not in done.stderr, arguments


def test_every_record_can_be_read() -> None:
    files = sorted(pictures.RECORDS.glob("*/run.json"))
    assert files
    for path in files:
        assert pictures.find(path.parent.name) == path and pictures.read(path)["rows"]


def test_pictures_are_drawn_and_the_figures_of_the_page_are_those_of_the_record(tmp_path: Path) -> None:
    path = pictures.find()
    newest = pictures.read(path)
    made = pictures.draw(newest, tmp_path)
    assert {path.name for path in made} == {f"{name}-{it}.svg" for name in pictures.CHARTS for it in pictures.THEMES}
    for picture in made:
        texts = [it.text or "" for it in ElementTree.parse(picture).iter() if it.tag.endswith("text")]
        assert "swerex_c" in texts and any("every answer checked" in it for it in texts)
    page = Path(shutil.copy(ROOT / "README.md", tmp_path))
    pictures.figures(newest, page)
    assert page.read_text() == (ROOT / "README.md").read_text()
    page = Path(shutil.copy(pictures.SPEED, tmp_path))
    pictures.speed(newest, path, page)
    assert page.read_text() == pictures.SPEED.read_text()

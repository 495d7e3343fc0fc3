"""Where output goes: a reader that leaves, a full disk, a terminal without block characters, a folder that is gone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLKIT = f"{sys.executable} -m toolkit"
PLAN = f"{TOOLKIT} plan --params 7B --gpus 8 --explain"


def bash(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=30,
        check=False,
        errors="replace",
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("command", [PLAN, f"{TOOLKIT} clusters --json"])
def test_a_reader_that_leaves_is_no_failure(command: str) -> None:
    done = bash(f"{command} | head -c 100 >/dev/null; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (0, "")
    done = bash(f"{command} | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", ["plan --params 7B --gpus 8", "clusters", "--help", "models gpt2 --json"])
def test_a_full_disk_is_a_sentence(arguments: str) -> None:
    done = bash(f"{TOOLKIT} {arguments} > /dev/full")
    assert done.returncode == 2
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_bars_are_drawn_with_what_the_terminal_has(encoding: str) -> None:
    done = bash(PLAN, PYTHONIOENCODING=encoding)
    assert done.returncode == 0
    bars = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("  activations  ")]
    assert bars and set(bars[0]) == {"█" if encoding == "utf-8" else "#"}


def test_names_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xe2\x80\xa8\xc3\xbc")
    command = f"{TOOLKIT} plan --recipe tiny --cluster local-cpu --gpus 2 --out '{folder}'"
    assert bash(command, PYTHONIOENCODING="ascii").returncode == 0
    emitted = bash(f"{TOOLKIT} emit '{folder}/plan.json' --out '{folder}2'", PYTHONIOENCODING="ascii")
    assert emitted.returncode == 0 and "plan.json" in emitted.stdout


def test_a_working_folder_that_is_gone_is_a_sentence(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    plan = "plan --recipe tiny --cluster local-cpu --gpus 2 --out x"
    for arguments in (plan, "launch tiny --cluster local-cpu --gpus 2 --dry-run"):
        gone.mkdir(exist_ok=True)
        done = bash(f"cd '{gone}' && rmdir '{gone}' && {TOOLKIT} {arguments}")
        assert done.returncode == 2 and "error:" in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["recipes show tiny", "plan --params 7B --gpus 8", "models"])
def test_streams_that_are_closed_are_no_failure(command: str, closed: str) -> None:
    assert bash(f"{TOOLKIT} {command} {closed}").returncode == 0
    assert bash(f"{TOOLKIT} plan --params 7B --gpus 0 {closed}").returncode == 2


def test_ctrl_c_is_told_and_is_no_finding() -> None:
    code = (
        "import os, signal; from toolkit.cli import main as cli;"
        "cli.COMMANDS['models'] = ('a.module', ''); real = cli.importlib.import_module;"
        "cli.importlib.import_module = lambda name: os.kill(os.getpid(), signal.SIGINT) or real('toolkit.cli.models');"
        "cli.main(['models'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip(), done.stdout) == (130, "interrupted", "")

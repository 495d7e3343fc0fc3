"""Processes that write a checkpoint of Megatron's and are killed: the rank writes it, and it is the same checkpoint."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.pretrain.writers import Told
from tests import finetune_runs
from tests.recipes.test_pretrain import pretrain_plan, write

DEADLY = """
import os, signal, sys
from recipes import program
from recipes.pretrain import train, writers
rank, write_all = os.getpid(), writers._write_all
def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)
writers._tell = kill
writers._write_all = lambda *given: write_all(*given) if os.getpid() == rank else kill()
program.leave(train.main(sys.argv[1:]))
"""


def test_what_a_forked_process_tells() -> None:
    told, value = Told(), {0: b"x" * 2**20, 1: ["y"]}
    with pytest.raises(queue.Empty):
        told.get_nowait()
    if (child := os.fork()) == 0:
        told.put(value)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0 and told.get_nowait() == value
    again = Told()
    again.again = lambda: again.put("written by the rank")
    assert again.get_nowait() == "written by the rank"


def _saved(folder: Path, *start: str) -> tuple[dict[str, bytes], str]:
    """The files of the checkpoint after step 2, of a run that has gone on since; and what was said."""
    folder.mkdir()
    words = write(folder, pretrain_plan(processes=1))
    words += ["--max-steps", "3", "--save-steps", "2", "--keep", "3"]
    done = subprocess.run(
        [sys.executable, *start, *words], capture_output=True, text=True, timeout=240, env=finetune_runs.environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {path.name: path.read_bytes() for path in (folder / "run" / "checkpoint-2").glob("*.distcp")}
    assert found
    return found, done.stdout


@pytest.mark.slow
def test_a_killed_writer_costs_no_checkpoint(tmp_path: Path) -> None:
    """The run stood still until the watchdog ended it; in the background, its job was not even started again."""
    plain, said = _saved(tmp_path / "plain", "-m", "recipes.pretrain.train")
    assert "warning" not in said
    at_once, said = _saved(tmp_path / "once", "-c", DEADLY)
    assert "of rank 0 was killed (exit code -9); the rank writes it itself" in said and at_once == plain
    later, said = _saved(tmp_path / "later", "-c", DEADLY.replace("sys.argv[1:]", "[*sys.argv[1:], '--async-save']"))
    assert "the process that writes a checkpoint was killed; the rank writes it itself" in said and later == plain

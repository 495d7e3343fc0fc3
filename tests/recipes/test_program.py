"""How a training program starts where it cannot: a sentence and exit code 2 before torch is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plans import all_plans
from toolkit.emit.bundle import bundle

PROGRAMS = {"finetune": "tiny", "pretrain": "tiny-megatron"}
WORLD = {name: all_plans()[plan].cluster.num_gpus for name, plan in PROGRAMS.items()}


def start(which: str, folder: Path, *arguments: str, **environment: str) -> str:
    for name, text in bundle(all_plans()[PROGRAMS[which]], str(folder)).items():
        if not (folder / name).exists():
            (folder / name).write_text(text)
    mine = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(WORLD[which])} | environment
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MASTER_")}
    code = (
        f"import sys\nsys.modules['torch'] = None\nfrom recipes.{which}.train import main\nsys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--plan", str(folder / "plan.json"), *arguments],
        capture_output=True,
        text=True,
        env=clean | mine,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 2, done
    return done.stderr


@pytest.mark.parametrize("which", PROGRAMS)
@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK"])
@pytest.mark.parametrize("value", ["abc", "", "-1", "1.0", "²"])
def test_what_is_no_number_of_a_process(which: str, name: str, value: str, tmp_path: Path) -> None:
    assert f"{name} is {value!r}" in start(which, tmp_path, **{name: value, "PYTHONIOENCODING": "utf-8"})


@pytest.mark.parametrize("which", PROGRAMS)
def test_a_rank_beyond_the_world(which: str, tmp_path: Path) -> None:
    assert "RANK is 99" in start(which, tmp_path, RANK="99")


@pytest.mark.parametrize("which", PROGRAMS)
def test_processes_that_cannot_meet_and_a_folder_that_cannot_be(which: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = start(which, tmp_path, "--output-dir", str(tmp_path / "file" / "run"))
    assert "file/run" in said
    if WORLD[which] > 1:
        assert "MASTER_ADDR and MASTER_PORT not set" in said


def test_a_configuration_nested_without_end(tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_text("[" * 100_000)
    assert "ds_config.json" in start("finetune", tmp_path)

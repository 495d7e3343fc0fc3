"""How a training program starts where it cannot: a sentence and exit code 2 before torch is imported."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from recipes import options, program
from tests.plans import all_plans
from toolkit.emit.bundle import bundle
from toolkit.errors import Problem, ToolkitError
from toolkit.runtime import checkpoint, experiment, outcome
from toolkit.runtime.lease import Lease

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


def test_a_slow_first_process_still_says_what_all_of_them_found(tmp_path: Path) -> None:
    """torchrun stops the others when one has ended: whoever is faster than local rank 0 must not be that one."""
    (tmp_path / "plan.json").write_text("{")
    command = [sys.executable, "-m", "recipes.finetune.train", "--plan", str(tmp_path / "plan.json")]
    place = os.environ | {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    second = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=place)
    try:
        time.sleep(1.0)
        first = subprocess.run(command, capture_output=True, text=True, env=place | {"RANK": "0", "LOCAL_RANK": "0"})
        assert second.poll() is None
    finally:
        second.terminate()
        output, errors = second.communicate(timeout=60)
    assert first.returncode == 2 and first.stderr.startswith("error: ") and "plan.json" in first.stderr
    assert (output, errors) == ("", "")


def test_what_one_process_alone_found_is_said_by_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: argparse.Namespace) -> int:
        raise ToolkitError("this node has no such file", remedy="copy it there")

    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(options, "SAID_BY_THE_FIRST", 0.2)
    began = time.perf_counter()
    assert program.told(run, argparse.Namespace()) == 2
    assert time.perf_counter() - began >= 0.2
    assert capsys.readouterr().err == "error: this node has no such file\n  copy it there\n"


@pytest.mark.parametrize("wrong", [("--bogus", "1"), ("--plan", "absent.json")])
def test_a_start_that_is_refused_tells_its_batch_script_why(wrong: tuple[str, str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = run / ".attempt" / "7-0-0" / "0"
    said = start("pretrain", tmp_path, "--output-dir", str(run), *wrong)
    assert not run.exists()  # without a batch script it leaves nothing
    words.parent.mkdir(parents=True)
    said = start("pretrain", tmp_path, f"--output-dir={run}", *wrong, TOOLKIT_ATTEMPT="7-0-0")
    assert words.read_text() == "failed input\n"
    found = outcome.read(run)
    assert found is not None and (found.state, found.kind, found.attempt) == ("failed", "input", "7-0-0")
    assert found.reason.partition("; ")[0] == said.removeprefix("error: ").partition("\n")[0]


def test_in_a_job_one_rank_says_what_all_have_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """srun ends those of other nodes as rank 0 ends."""
    monkeypatch.setattr(options, "SAID_BY_THE_FIRST", 0.2)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("RANK", "8")
    for job, least in (("", 0.0), ("7-0-0", 0.2)):
        monkeypatch.setenv("TOOLKIT_ATTEMPT", job)
        began = time.perf_counter()
        options.say(Problem("no"))
        assert time.perf_counter() - began >= least
        assert capsys.readouterr().err == "error: no\n"


def test_a_rank_that_is_refused_says_so_to_its_batch_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own words are all that it changes in the directory of another run."""
    (tmp_path / ".attempt" / "42-0-0").mkdir(parents=True)
    monkeypatch.setenv("TOOLKIT_ATTEMPT", "42-0-0")
    with Lease(tmp_path, {"SLURM_JOB_ID": "41"}):
        with pytest.raises(ToolkitError) as error, program.attended(tmp_path, 0):
            pass
        assert sorted(path.name for path in tmp_path.iterdir()) == [".attempt", ".lease.1"]
    said = (tmp_path / ".attempt" / "42-0-0" / "0").read_text()
    assert said == f"refused {error.value.problems[0].message}\n" and "(job 41)" in said


@pytest.mark.parametrize("which", PROGRAMS)
def test_a_checkpoint_of_another_experiment_is_refused_before_torch_with_all_that_differs(
    which: str, tmp_path: Path
) -> None:
    other = msgspec.structs.replace(all_plans()[PROGRAMS[which]].contract, seed=7, learning_rate=0.25)
    path = tmp_path / "run" / "checkpoint-3"
    path.mkdir(parents=True)
    (path / "weights").write_bytes(b"1")
    checkpoint.commit(path, experiment.facts(other) | {"step": 3})
    said = start(which, tmp_path, MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    assert said.count("error: ") == 1 and f"{path} belongs to another experiment: " in said
    assert "seed is 7 there and " in said and "learning_rate is 0.25 there and " in said
    assert sorted(each.name for each in (tmp_path / "run").iterdir()) == ["checkpoint-3", "latest"]

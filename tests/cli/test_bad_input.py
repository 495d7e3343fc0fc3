"""What nobody means to type: a sentence and exit code 2, at once, and nothing on stdout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLAN = ("plan", "--params", "7B", "--gpus", "8")


def toolkit(*argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toolkit", *argv], capture_output=True, text=True, cwd=cwd, timeout=20, check=False
    )


def refused(*argv: str, cwd: Path | None = None) -> str:
    done = toolkit(*argv, cwd=cwd)
    assert "Traceback" not in done.stderr, done.stderr
    assert (done.returncode, done.stdout) == (2, ""), done
    return done.stderr


@pytest.mark.parametrize(
    "option", ["--sequence-length", "--global-batch", "--tp", "--dp-shard", "--micro-batch", "--accumulation", "--vpp"]
)
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "1" + "0" * 18, "9" * 40])
def test_numbers_that_no_job_has_are_refused(option: str, value: str) -> None:
    assert option in refused(*PLAN, option, value)


def test_the_largest_numbers_that_are_taken_give_an_answer() -> None:
    for option in ("--sequence-length", "--global-batch"):
        done = toolkit(*PLAN, option, "1000000000")
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    os.mkfifo(tmp_path / "tiny.toml")
    pipe, toml = str(tmp_path / "config.json"), str(tmp_path / "tiny.toml")
    for argv in (
        ("plan", "--gpus", "8", "--model", pipe),
        ("plan", "--gpus", "8", "--model", str(tmp_path)),
        ("plan", "--gpus", "8", "--recipe", toml),
        ("plan", "--params", "7B", "--gpus", "8", "--cluster", toml),
        ("models", pipe),
        ("recipes", toml),
        ("emit", pipe, "--out", str(tmp_path / "out")),
        ("launch", pipe),
    ):
        assert "not a regular file" in refused(*argv), argv


def test_a_device_without_end_is_not_read() -> None:
    assert "not a regular file" in refused("plan", "--gpus", "8", "--model", "/dev/zero")
    assert "not a regular file" in refused("plan", "--gpus", "8", "--recipe", "/dev/zero")


def test_a_file_that_is_much_too_large_is_not_read(tmp_path: Path) -> None:
    for name in ("config.json", "plan.json", "tiny.toml"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(2**40)  # sparse
    assert "larger than" in refused("plan", "--gpus", "8", "--model", str(tmp_path))
    assert "larger than" in refused("plan", "--gpus", "8", "--recipe", str(tmp_path / "tiny.toml"))
    assert "larger than" in refused("emit", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out"))


def test_an_unknown_calibration_names_those_that_are_there() -> None:
    assert "known: assumed" in refused(*PLAN, "--calibration", "nowhere")


@pytest.mark.parametrize("out", ["", "x" * 300, "d/" * 2000])
def test_a_folder_that_cannot_be(out: str, tmp_path: Path) -> None:
    refused("plan", "--recipe", "tiny", "--cluster", "local-cpu", "--gpus", "2", "--json", "--out", out, cwd=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_rank_that_there_is_not_is_refused(tmp_path: Path) -> None:
    said = refused(*PLAN, "--framework", "ddp", "--method", "lora", "--pick", "999", "--out", str(tmp_path / "out"))
    assert "--pick 999: there are" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("accelerator", ["a100", "v100", "h100", "mi250x"])
def test_precisions_that_are_offered_are_taken(accelerator: str) -> None:
    """The remedy names what --precision takes and nothing else: tf32 is a rate of the hardware only."""
    for precision in ("bf16", "fp16", "fp32", "fp8"):
        done = toolkit(*PLAN, "--accelerator", accelerator, "--precision", precision)
        if "use --precision with one of:" in done.stderr:
            offered = done.stderr.partition("one of: ")[2].splitlines()[0].split(", ")
            assert set(offered) <= {"bf16", "fp16", "fp32", "fp8"} - {precision}


def test_an_empty_calibration_is_none() -> None:
    assert "unknown calibration ''" in refused(*PLAN, "--calibration", "")


def test_a_budget_that_is_too_large_asks_for_a_smaller_one_that_works() -> None:
    said = refused("plan", "--compute-optimal", "1e30", "--gpus", "64")
    assert "smaller budget" in said and "config.json" not in said
    largest = said.partition("at most about ")[2].split()[0]
    assert "smaller budget" in refused("plan", "--compute-optimal", str(1.1 * float(largest)), "--gpus", "64")
    assert "budget" not in toolkit("plan", "--compute-optimal", str(0.97 * float(largest)), "--gpus", "64").stderr

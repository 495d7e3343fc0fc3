"""``toolkit validate`` from outside: JSON as designed, tables, and sentences for what is no file of runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.validate.runs import written

ERRORS = {"rows", "median_abs_relative_error", "p90_abs_relative_error", "bias", "rank_correlation"}


def toolkit(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "toolkit", "validate", *argv], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def runs(tmp_path: Path) -> str:
    path = tmp_path / "runs.csv"
    path.write_bytes(written({}, {"id": "b", "tp": ""}))
    return str(path)


def test_json(runs: str) -> None:
    done = toolkit(runs, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for group in ("by_source", "by_framework", "by_accelerator"):
        assert list(found["summary"][group].values()) == [found["summary"]["all"]]
    assert set(found["summary"]["all"]["step_time"]) >= ERRORS <= set(found["summary"]["all"]["peak_memory"])
    assert set(found["summary"]["all"]["verdicts"]) >= {"rows", "oom_called_fit", "fit_called_no"}
    assert [each["id"] for each in found["rows"]] == ["a"]
    assert [(each["id"], each["reason"]) for each in found["skipped"]] == [("b", "missing: tp")]


def test_tables(runs: str) -> None:
    text = toolkit(runs).stdout
    for word in ("by source", "by framework", "by accelerator", "skipped", "1: missing: tp", "1 of 2 rows scored"):
        assert word in text
    assert "by source" not in toolkit(runs, "--brief").stdout


def refused(*argv: str) -> str:
    done = toolkit(*argv)
    assert "Traceback" not in done.stderr, done.stderr
    assert (done.returncode, done.stdout) == (2, ""), done
    return done.stderr


def test_what_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "nothing.csv", tmp_path / "pipe"):
        assert "cannot be read" in refused(str(path))
    (tmp_path / "empty.csv").touch()
    assert "lacks columns: gpu; n_gpus; seq_len; model" in refused(str(tmp_path / "empty.csv"))


def test_a_bad_cell_leaves_out_its_row_alone(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(written({}, {"tp": "two"}, {"n_gpus": -1}))
    done = toolkit(str(path))
    assert done.returncode == 0 and "1 of 3 rows scored" in done.stdout, done.stderr
    assert "tp = 'two'" in done.stdout and "n_gpus = '-1'" in done.stdout
    assert done.stderr == "note: 1 id stands for more than one row: a (3 rows)\n"


def test_an_unknown_calibration(runs: str) -> None:
    assert "nobody" in refused(runs, "--calibration", "nobody")


def test_a_fit_is_written_and_used(tmp_path: Path) -> None:
    rows = [
        {"id": f"{source}{tp}", "source": source, "tp": tp, "step_time_s": 9 + tp}
        for source in "ab"
        for tp in (1, 2, 4)
    ]
    runs, fitted = tmp_path / "runs.csv", tmp_path / "mine.toml"
    runs.write_bytes(written(*rows))
    done = toolkit(str(runs), "--fit", str(fitted), "--leave-one-source-out", "--json")
    assert done.returncode == 0, done.stderr
    fit = json.loads(done.stdout)["fit"]["step_time"]
    assert fit["rows"] == 6 and set(fit["by_source"]) == {"a", "b"}
    assert {"stated", "fitted", "left_out"} < set(fit["all"])
    for each in fit["coefficients"].values():
        assert each["low"] <= each["fitted"] <= each["high"]
    again = toolkit(str(runs), "--calibration", str(fitted), "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["calibration"] == str(fitted)
    assert "exists" in refused(str(runs), "--fit", str(fitted))
    assert "fit of step time" in toolkit(str(runs), "--leave-one-source-out", "--brief").stdout


def test_residuals_are_written_and_become_ones_own(runs: str, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "residuals"
    done = toolkit(runs, "--residuals", str(folder / "assumed.json"), "--brief")
    assert done.returncode == 0, done.stderr
    table = json.loads((folder / "assumed.json").read_text())
    assert [run[0] for run in table["step_time"]["runs"]] == ["a"] and table["calibration"] == "assumed"
    assert "exists" in refused(runs, "--residuals", str(folder / "assumed.json"))
    assert "not the name of a file" in refused(runs, "--residuals", str(tmp_path))


def test_too_few_runs_to_fit(runs: str) -> None:
    assert "no three runs" in refused(runs, "--leave-one-source-out")


def test_the_experts_list(runs: str) -> None:
    text = toolkit(runs, "--experts").stdout
    assert "1 published strategies of 1 jobs" in text and "published  megatron tp2 pp2" in text

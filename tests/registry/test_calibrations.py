"""Calibrations by name and by file; what is no calibration is a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.registry.calibrations import load_calibration

ROW = 'unit = "1"\nmeaning = "m"\nlow = 0.8\nhigh = 1.0\n'
HEAD = 'name = "mine"\nsummary = "s"\n'


def written(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(HEAD + text)
    return str(path)


def refused(reference: str) -> str:
    with pytest.raises(ToolkitError) as error:
        load_calibration(reference)
    return str(error.value)


def test_every_shipped_coefficient_lies_in_its_range_and_says_where_it_is_from() -> None:
    found = load_calibration()
    assert found.reference == found.name == "assumed"
    for name, row in found.coefficients.items():
        assert row.low <= row.value <= row.high, name
        assert row.meaning and row.unit and row.source, name


def test_a_file_changes_what_it_names_and_leaves_the_rest(tmp_path: Path) -> None:
    path = written(tmp_path, f'[coefficients.sustained_matmul_fraction]\nvalue = 0.85\nstatus = "measured"\n{ROW}')
    found, usual = load_calibration(path), load_calibration()
    assert found["sustained_matmul_fraction"] == 0.85
    assert (found.name, found.reference) == ("mine", path)
    assert found.coefficients.keys() == usual.coefficients.keys()
    assert found["context_bytes"] == usual["context_bytes"]


def test_all_faults_of_a_file_are_told(tmp_path: Path) -> None:
    bad = f"[coefficients.sustained_matmul_fractoin]\nvalue = 0.85\n{ROW}"
    bad += f"[coefficients.memory_fraction]\nvalue = nan\n{ROW}"
    bad += f'[coefficients.context_bytes]\nvalue = 0.9\nstatus = "guessed"\n{ROW}'
    message = refused(written(tmp_path, bad))
    for word in ("did you mean sustained_matmul_fraction", "memory_fraction is nan", "status 'guessed'"):
        assert word in message


@pytest.mark.parametrize(
    "text", ["[coefficients]\nx = 1\n", "nonsense = [", "name = 2\n", 'extra = "x"\n[coefficients]\n']
)
def test_what_is_no_calibration(tmp_path: Path, text: str) -> None:
    assert "mine.toml" in refused(written(tmp_path, text))


def test_a_file_that_is_not_there() -> None:
    assert "cannot be read" in refused("./nobody.toml")
    assert "cannot be read" in refused("/")


def test_ones_own_assumed_is_completed_by_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = load_calibration()
    folder = tmp_path / "calibration"
    folder.mkdir()
    (folder / "assumed.toml").write_text(
        f'name = "assumed"\nsummary = "s"\n[coefficients.sustained_matmul_fraction]\nvalue = 0.81\n{ROW}'
    )
    monkeypatch.setenv("TOOLKIT_DATA", str(tmp_path))
    load_calibration.cache_clear()
    try:
        found = load_calibration()
        assert found["sustained_matmul_fraction"] == 0.81 and found["context_bytes"] == usual["context_bytes"]
    finally:
        monkeypatch.undo()
        load_calibration.cache_clear()

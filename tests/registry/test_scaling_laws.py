"""Laws of the user's own folder: added to those that are shipped, or refused in a sentence."""

from pathlib import Path

import pytest

from toolkit.errors import ToolkitError
from toolkit.estimate.scaling_laws import compute_optimal
from toolkit.registry.scaling_laws import CHOSEN, POSSIBLE, scaling_laws

LAW = """
[ours]
title = "our own fit"
E = {E}
A = {A}
B = {B}
alpha = {alpha}
beta = {beta}
least_parameters = 1e7
most_parameters = 1e9
source = "our wiki"
"""
GOOD = {"E": 1.7, "A": 400.0, "B": 1000.0, "alpha": 0.34, "beta": 0.33}


def write(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: float) -> None:
    (folder / "scaling_laws").mkdir()
    (folder / "scaling_laws" / "ours.toml").write_text(LAW.format(**GOOD | changes))
    monkeypatch.setenv("TOOLKIT_DATA", str(folder))


def test_an_own_law_is_shown_beside_the_published_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, monkeypatch)
    assert list(scaling_laws()) == [CHOSEN, "hoffmann-2022", "ours"]


@pytest.mark.parametrize(
    "changes", [{"alpha": 0.0}, {"beta": -0.3}, {"A": -1.0}, {"alpha": 1e-9}, {"B": 1e300}, {"E": -1}]
)
def test_what_is_no_law_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, float]) -> None:
    write(tmp_path, monkeypatch, **changes)
    with pytest.raises(ToolkitError, match=f"scaling law ours: {next(iter(changes))} is"):
        scaling_laws()


@pytest.mark.parametrize("flop", [1e16, 1e30])
@pytest.mark.parametrize("end", [0, 1])
def test_every_possible_law_has_an_optimum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flop: float, end: int
) -> None:
    extremes = {name: bounds[end] for name, bounds in POSSIBLE.items()}
    write(tmp_path, monkeypatch, **extremes | {"A": POSSIBLE["A"][1 - end]})
    found = compute_optimal(flop, scaling_laws()["ours"])
    assert found.parameters > 0 and found.tokens > 0 and found.loss >= extremes["E"]

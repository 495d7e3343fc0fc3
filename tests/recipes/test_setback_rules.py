"""How far a run goes back, and when it gives up: one rank, checkpoints without tensors."""

import argparse
import math
from pathlib import Path
from typing import Any

import pytest

from recipes import option_table, setbacks
from recipes.setbacks import Setbacks, Share
from tests.runtime.test_skipped import saved
from toolkit.runtime import checkpoint, outcome, skipped
from toolkit.runtime.divergence import DIVERGED, Diverged
from toolkit.runtime.telemetry import Telemetry, read_events, read_run, run_record
from toolkit.runtime.together import Alone


def options(*words: str) -> argparse.Namespace:
    return option_table.finetune().read(["--plan", "plan.json", *words])


def a_run(folder: Path, *words: str) -> Setbacks:
    said: list[str] = []

    def say(text: str, **_: Any) -> None:
        said.append(text)

    telemetry = Telemetry(folder, run_record("test", b"{}", 1, "cpu"))
    rules = setbacks.rules(options(*words))
    made = Setbacks(rules, folder, 8, [], telemetry, "cpu", say, Alone(), Share(0, 1, 2))
    made.said = said  # type: ignore[attr-defined]
    return made


def goes_back(run: Setbacks, step: int) -> int:
    """After a loss that is not finite in this step."""
    assert run.look(step, math.nan, 1.0, lambda: False)
    run.go_back()
    return run.listed.setbacks[-1].back_to


def test_each_setback_in_a_row_goes_back_one_further_and_the_fourth_ends_the_run(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        saved(tmp_path, step)
    run = a_run(tmp_path, "--on-nan", "skip")
    assert goes_back(run, 7) == 6
    assert goes_back(run, 7) == 4
    assert [path.name for path in checkpoint.complete(tmp_path)] == ["checkpoint-2", "checkpoint-4"]
    assert (tmp_path / "latest").read_text() == "checkpoint-4\n"
    assert goes_back(run, 7) == 2
    assert run.batches == (6, 7, 8)  # step 7 read the next one each time
    assert run.look(7, math.nan, 1.0, lambda: False)
    with pytest.raises(Diverged, match="gone back 3 times"):
        run.go_back()
    assert read_run(tmp_path).skipped_batches == (6, 7, 8) and skipped.read(tmp_path) == run.listed
    assert [event.kind for event in read_events(tmp_path)] == ["nan", "setback"] * 3 + ["nan"]


def test_a_checkpoint_after_the_bad_step_ends_the_row(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    saved(tmp_path, 4)
    run = a_run(tmp_path, "--on-nan", "skip", "--setbacks", "1")
    assert goes_back(run, 5) == 4
    saved(tmp_path, 6, run.batches)
    assert goes_back(run, 8) == 6
    again = a_run(tmp_path, "--on-nan", "skip", "--setbacks", "1")  # another start knows of it
    assert again.look(7, math.nan, 1.0, lambda: False)
    with pytest.raises(Diverged, match="gone back 1 times"):
        again.go_back()


def test_a_damaged_checkpoint_is_passed_over_and_without_any_the_run_stops(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    (saved(tmp_path, 4) / "state").write_bytes(b"stale")
    run = a_run(tmp_path, "--on-nan", "skip")
    assert goes_back(run, 6) == 2
    (tmp_path / "checkpoint-2" / "state").write_bytes(b"stale")
    assert run.look(6, math.nan, 1.0, lambda: False)
    with pytest.raises(Diverged, match="no valid checkpoint before it"):
        run.go_back()


@pytest.mark.parametrize(
    ("step", "back_to", "many", "left_out"),
    [(5, 4, 1, (4,)), (9, 4, 3, (7, 8, 9)), (5, 4, 4, (4, 5, 6, 7)), (9, 0, 4, (6, 7, 8, 9))],
)
def test_what_is_left_out_lies_on_both_sides_and_after_the_checkpoint(
    tmp_path: Path, step: int, back_to: int, many: int, left_out: tuple[int, ...]
) -> None:
    saved(tmp_path, back_to)
    run = a_run(tmp_path, "--on-nan", "skip", "--skip-batches", str(many))
    assert goes_back(run, step) == back_to
    assert run.batches == left_out and step - 1 in left_out
    assert run.next_sample(back_to) == 8 * (back_to + (many if left_out[0] == back_to else 0))


def test_stop_is_an_outcome_of_its_own_kind_and_a_warning_is_none(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    presence = outcome.Presence(tmp_path)
    with pytest.raises(Diverged) as raised, presence.watched():
        run.look(3, 2.0, math.inf, lambda: False)
    assert raised.value.exit_code == DIVERGED
    found = outcome.read(tmp_path)
    assert found is not None and found.kind == "diverged" and "gradient norm is not finite" in found.reason
    run = a_run(tmp_path, "--spike-window", "3")
    for step in (1, 2, 3):
        assert not run.look(step, 2.0, 1.0, lambda: False)
    assert not run.look(4, 9.0, 1.0, lambda: False)
    assert any(text.startswith("warning: step 4: loss 9, the median is 2") for text in run.said)  # type: ignore[attr-defined]
    assert not run.look(5, math.nan, math.nan, lambda: True)  # fp16 lowers its scale

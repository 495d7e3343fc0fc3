"""Which batch a step reads when some are left out, and which checkpoints are of that run."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.runtime import checkpoint, skipped
from toolkit.runtime.skipped import Setback, Skipped

lists = st.sets(st.integers(0, 30)).map(sorted)


@given(lists, st.integers(1, 5))
def test_steps_read_what_is_not_left_out_in_its_order(left_out: list[int], global_batch: int) -> None:
    stays = [batch for batch in range(80) if batch not in left_out]
    assert [skipped.batch_of(place, left_out) for place in range(40)] == stays[:40]
    samples = [sample for batch in stays for sample in range(batch * global_batch, (batch + 1) * global_batch)]
    read = [skipped.sample_of(index, global_batch, left_out) for index in range(40 * global_batch)]
    assert read == samples[: 40 * global_batch]


@given(lists, lists, st.integers(0, 40))
def test_checkpoints_agree_where_they_have_read_the_same(one: list[int], other: list[int], step: int) -> None:
    def read(left_out: list[int]) -> list[int]:
        return [batch for batch in range(80) if batch not in left_out][:step]

    assert skipped.agree(step, one, other) == (read(one) == read(other))


def saved(folder: Path, step: int, batches: tuple[int, ...] = ()) -> Path:
    path = checkpoint.begin(folder, step)
    (path / "state").write_bytes(b"state")
    checkpoint.commit(path, {"step": step} | ({skipped.FACT: batches} if batches else {}))
    return path


def test_a_checkpoint_that_has_learnt_from_it_is_deleted(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        saved(tmp_path, step)
    assert skipped.discard_others(tmp_path) == []
    skipped.write(tmp_path, Skipped(batches=(4,)))  # the fifth: read by step 5
    assert skipped.discard_others(tmp_path) == ["checkpoint-6"]
    assert (tmp_path / "latest").read_text() == "checkpoint-4\n"
    assert [path.name for path in checkpoint.complete(tmp_path)] == ["checkpoint-2", "checkpoint-4"]
    saved(tmp_path, 6, (4,))
    assert skipped.discard_others(tmp_path) == []


def test_a_lost_list_is_that_of_the_newest_checkpoint(tmp_path: Path) -> None:
    assert skipped.read(tmp_path) == Skipped()
    saved(tmp_path, 3)
    saved(tmp_path, 6, (4, 5))
    assert skipped.read(tmp_path).batches == (4, 5)
    (tmp_path / skipped.SKIPPED).write_text("{")
    with pytest.raises(ToolkitError, match=r"skipped\.json"):
        skipped.read(tmp_path)


def test_setbacks_in_a_row_are_those_since_the_last_checkpoint() -> None:
    listed = Skipped()
    for step in (7, 12, 14):
        listed = listed.after(Setback(step=step, kind="nan", quantity="loss", batches=(step - 1,)))
    assert listed.batches == (6, 11, 13)
    assert [listed.in_a_row(saved) for saved in (3, 6, 7, 10, 12, 13, 14)] == [3, 3, 2, 2, 1, 1, 0]

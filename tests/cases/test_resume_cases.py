"""Published troubles of resuming, each as it was told and as others of its kind would come.

Sources beside each. What takes a real run is in tests/recipes/test_exact_resume.py (killed runs, other layouts),
tests/runtime/test_kill_points.py (a kill at every write) and tests/cluster (signals and requeueing).
"""

import json
import math
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from recipes.finetune import checks
from recipes.finetune.data import Sequences
from recipes.finetune.packing import Blocks
from tests import finetune_runs, plans
from toolkit.cli.main import group
from toolkit.emit import script
from toolkit.emit.slurm import directives
from toolkit.errors import ToolkitError
from toolkit.estimate.loading import elastic_loading_bytes
from toolkit.plan import Plan
from toolkit.runtime import retention
from toolkit.schedule import ends_at_minimum, points, used_up_at_step


def said(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(group, [str(each) for each in arguments])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)  # type: ignore[no-any-return]


def shard(path: Path) -> None:
    """A file as torch writes them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02}q\x00.")


@pytest.mark.parametrize("torn", [("global_step420",), ("global_step420", "global_step440")])
def test_f01_a_power_cut_left_empty_files_and_no_latest(torn: tuple[str, ...], tmp_path: Path) -> None:
    """diffusion-pipe#159, transformers#22170: the newest are empty, the one before is whole, ``latest`` is gone."""
    names = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    for name in names:
        shard(tmp_path / "global_step400" / name)
    for folder in torn:
        for name in names:
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / name).touch()
    found = said("ckpt", "list", tmp_path, "--json")
    assert found["newest_valid"] == "global_step400"
    assert [each["valid"] for each in found["checkpoints"]] == [True] + [False] * len(torn)
    chosen = said("ckpt", "latest", tmp_path, "--json")
    assert chosen["name"] == "global_step400" and chosen["pointer"]["should_hold"] == "global_step400"
    said("ckpt", "latest", tmp_path, "--json", "--write")
    assert (tmp_path / "latest").read_text().strip() == "global_step400"


@pytest.mark.parametrize("held", ["global_step420", "global_step999", "", None], ids=["torn", "gone", "empty", "none"])
def test_the_pointer_names_what_was_never_finished(held: str | None, tmp_path: Path) -> None:
    """``latest`` is written by rank 0 before the others have written, and is not brought to the disk."""
    for step in (400, 420):
        shard(tmp_path / f"global_step{step}" / "mp_rank_00_model_states.pt")
        shard(tmp_path / f"global_step{step}" / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    (tmp_path / "global_step420" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink()
    (tmp_path / "global_step420" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").write_bytes(b"PK\x03\x04half")
    if held is not None:
        (tmp_path / "latest").write_text(held)
    chosen = said("ckpt", "latest", tmp_path, "--json", "--write")
    assert chosen["name"] == "global_step400" and (tmp_path / "latest").read_text() == "global_step400\n"


def test_the_newest_is_the_one_with_the_highest_number(tmp_path: Path) -> None:
    """Sorted as text, checkpoint-999 comes after checkpoint-1000, and the oldest is not the first to go."""
    for step in (999, 1000, 200, 10_000):
        for name in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
            path = tmp_path / f"checkpoint-{step}" / name
            shard(path)
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        header = b'{"__metadata__": {}}'
        weights = len(header).to_bytes(8, "little") + header
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").write_bytes(weights)
    found = said("ckpt", "list", tmp_path, "--json")
    assert [each["step"] for each in found["checkpoints"]] == [200, 999, 1000, 10_000]
    assert found["newest_valid"] == "checkpoint-10000"
    assert said("ckpt", "prune", tmp_path, "--json")["deleted"] == ["checkpoint-200", "checkpoint-999"]


@given(interval=st.integers(1, 500), steps=st.integers(1, 20), keep=st.integers(1, 3))
def test_f03_the_last_step_is_a_save_interval_too(interval: int, steps: int, keep: int) -> None:
    """LTX-2 PR 263: the same path, written and listed twice, pushed itself out."""
    saves = [(f"checkpoint-{n * interval}", n * interval) for n in range(1, steps + 1)]
    saves.append(saves[-1])
    left = {path for path, _ in saves} - set(retention.doomed(saves, keep))
    assert saves[-1][0] in left and len(left) == min(keep, steps)


def test_f03_as_it_was_told() -> None:
    saves = [(f"checkpoint-{step}", step) for step in [*range(100, 1001, 100), 1000]]
    assert {path for path, _ in saves} - set(retention.doomed(saves, 1)) == {"checkpoint-1000"}


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_f05_verify_tells_what_an_elastic_load_of_these_shards_takes(ranks: int, tmp_path: Path) -> None:
    for rank in range(4):
        shard(tmp_path / "global_step1" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    shard(tmp_path / "global_step1" / "mp_rank_00_model_states.pt")
    (row,) = said("ckpt", "verify", tmp_path, "--json", "--ranks-per-node", ranks)["checkpoints"]
    shards = sum(path.stat().st_size for path in (tmp_path / "global_step1").glob("*optim_states.pt"))
    assert row["elastic_bytes_per_node"] == ranks * shards and f"on a node of {ranks}" in row["notes"][0]


def test_f05_5e9_parameters_from_4_to_32_gpus_every_rank_reads_all_of_it() -> None:
    """DeepSpeed#1111."""
    assert elastic_loading_bytes(1.0, 5.0e9) / 1e9 == pytest.approx(60)
    assert elastic_loading_bytes(8.0, 5.0e9) / 1e9 == pytest.approx(480)


@pytest.mark.parametrize("zero", [1, 2])
def test_f05_a_file_that_asks_for_it_is_refused_with_the_memory_it_takes(zero: int) -> None:
    plan = plans.plan("five", plans.LLAMA_8B, msgspec.structs.replace(plans.DGX, nodes=4), zero_stage=zero)
    plan = msgspec.structs.replace(plan, total_parameters=5_000_000_000)
    config = {"zero_optimization": {"stage": zero, "elastic_checkpoint": True}, "bf16": {"enabled": True}}
    with pytest.raises(ToolkitError) as raised:
        checks.check(plan, 32, config | batch(plan))
    assert "447 GiB of host memory on a node of 8" in str(raised.value)  # 480e9 bytes
    config["zero_optimization"] = {"stage": zero}
    checks.check(plan, 32, config | batch(plan))


def batch(plan: Plan) -> dict[str, Any]:
    return {
        "train_batch_size": plan.contract.global_batch_size,
        "train_micro_batch_size_per_gpu": plan.strategy.micro_batch_size,
        "gradient_accumulation_steps": plan.strategy.gradient_accumulation_steps,
        "gradient_clipping": 1.0,
    }


def test_f07_a_prepared_scheduler_is_used_up_after_an_eighth() -> None:
    """accelerate#2926: it steps once for each of 8 processes."""
    assert used_up_at_step(100_000, 8) == 12_500
    assert used_up_at_step(100_000, 8, split_batches=True) == 100_000


def test_f07_a_recipe_shows_its_rates_and_they_end_at_the_minimum() -> None:
    for recipe in said("recipes", "--json"):  # type: ignore[attr-defined]
        rates, contract = recipe["learning_rates"], recipe["contract"]
        if not rates:
            assert not (contract["total_steps"] or contract["total_tokens"])  # by epochs: the data tell
            continue
        assert [each["step"] for each in rates][:2] == [1, 2] and rates[-1]["where"] == "end"
        if contract["schedule"] != "constant":
            assert rates[-1]["learning_rate"] == pytest.approx(contract["min_learning_rate"], rel=1e-9, abs=1e-15)
        assert max(each["learning_rate"] for each in rates) <= contract["learning_rate"] * (1 + 1e-12)


def test_f07_stepping_once_a_process_does_not_end_where_it_should() -> None:
    contract = msgspec.structs.replace(
        finetune_runs.tiny_plan().contract, total_steps=100_000, warmup_steps=1000, schedule="cosine"
    )
    assert ends_at_minimum(contract, 100_000) and not ends_at_minimum(contract, 100_000, advance=8)
    warm = [point.rate for point in points(contract, 100_000, advance=8) if point.where == "warm-up ends"]
    assert warm[0] < contract.learning_rate  # already falling


def blocks(count: int) -> Blocks:
    """Block ``n`` holds the token ``n``."""
    column = np.arange(count, dtype=np.int32)[:, None]
    return Blocks(column, column, np.zeros_like(column), np.ones(count, np.int64))


def read(sequences: Sequences, first: int, count: int) -> list[int]:
    return [int(sequences[index]["input_ids"][0]) for index in range(first, first + count)]


def test_f09_64_samples_resumed_after_20() -> None:
    """accelerate PR 4071: a new loader falls back to the seed of epoch 0; 15 of 20 samples were wrong."""
    whole, resumed = Sequences(blocks(64), 640, 42), Sequences(blocks(64), 640, 42)
    expected = read(whole, 0, 640)
    for position in (20, 64 + 20, 5 * 64 + 20):
        found = read(resumed, position, 20)
        assert found == expected[position : position + 20]  # none of 20 is wrong
        fallen_back = [expected[(index % 64)] for index in range(position, position + 20)]
        if position > 64:
            assert sum(a != b for a, b in zip(found, fallen_back, strict=True)) > 15  # what the fault would have read


@given(
    samples=st.integers(2, 97),
    batch_size=st.integers(1, 40),
    step=st.integers(0, 400),
    seed=st.integers(0, 2**32 - 1),
)
def test_f09_every_epoch_reads_every_sample_once_wherever_it_is_resumed(
    samples: int, batch_size: int, step: int, seed: int
) -> None:
    length = 10 * samples
    position = (step * batch_size) % length
    first, second = (Sequences(blocks(samples), length, seed) for _ in range(2))
    together = read(first, 0, position) + read(second, position, length - position)
    for epoch in range(10):
        assert Counter(together[epoch * samples : (epoch + 1) * samples]) == Counter(range(samples))
    assert len({tuple(together[n * samples : (n + 1) * samples]) for n in range(10)}) > 1 or samples == 2


def test_f09_step_200_of_epochs_of_125_steps_is_found_at_once() -> None:
    """No batch is read to be skipped: the position is arithmetic, far into a run as near its start."""
    sequences = Sequences(blocks(1000), 10**15, 1)
    started = time.perf_counter()
    read(sequences, 10**14, 8)
    assert time.perf_counter() - started < 30  # reading that far would take years
    assert sequences.block_of(200 * 8) == int(np.random.default_rng([1, 1]).permutation(1000)[200 * 8 - 1000])


def lead(step_seconds: float, save_seconds: float, limit: str = "24:00:00") -> int:
    """Seconds before the end at which the emitted script has the job told to stop."""
    plan = plans.plan("f11", plans.LLAMA_8B, plans.with_site(plans.DGX, time_limit=limit), zero_stage=2)
    storage = plan.cluster.storage_bandwidth_bytes_per_second
    size = script.CHECKPOINT_BYTES_PER_PARAMETER
    return script.stop_seconds(
        msgspec.structs.replace(
            plan,
            step=msgspec.structs.replace(plan.step, seconds=step_seconds),
            total_parameters=round(save_seconds * storage / size),
        )
    )


def test_f11_a_step_of_20_and_a_save_of_90_seconds() -> None:
    """Automodel#405, submitit PR 1615: at least 110 s are needed, and the cluster's clock is not exact."""
    assert lead(20.0, 90.0) >= 120 > 20 + 90


@given(step_seconds=st.floats(0.01, 900.0), save_seconds=st.floats(0.1, 3600.0))
def test_f11_one_step_and_one_save_always_fit(step_seconds: float, save_seconds: float) -> None:
    assert lead(step_seconds, save_seconds) >= min(step_seconds + save_seconds + 60.0, 12 * 3600)


def test_f11_the_batch_shell_is_told_and_the_job_comes_back() -> None:
    """What the scripts do with it is shown by Slurm itself, in tests/cluster."""
    made = plans.plan("f11", plans.LLAMA_8B, plans.DGX, zero_stage=2)
    lines = directives(made)
    assert any(line.startswith("#SBATCH --signal=B:USR1@") for line in lines)
    assert "#SBATCH --requeue" in lines


@pytest.mark.parametrize(("rank", "step"), [(0, 0), (1, 0), (0, 7)])
def test_random_numbers_of_dropout_differ_by_rank_and_step_and_come_back(rank: int, step: int) -> None:
    """transformers#22628 and others: all ranks seeded alike, or a restart that draws the start's again."""
    import torch

    from recipes.finetune.randomness import seed_rank

    def drawn(at_rank: int, at_step: int) -> list[float]:
        seed_rank(42, at_step, at_rank)
        return [*torch.rand(4).tolist(), float(np.random.rand())]

    mine = drawn(rank, step)
    assert drawn(rank, step) == mine
    assert all(drawn(*other) != mine for other in [(0, 0), (1, 0), (0, 7), (7, 0)] if other != (rank, step))
    assert all(math.isfinite(value) for value in mine)

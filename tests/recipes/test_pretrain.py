"""Real runs of the pretraining program over gloo: every layout learns what one process learns.

The tolerances are those measured for these libraries over 20 steps in fp32 (largest difference of a loss
4.8e-7, of a gradient norm 2.6e-6), doubled.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from recipes.pretrain import config, validity
from tests.plans import LAPTOP, TINY, plan
from toolkit import plan as plans
from toolkit.emit.megatron import core_config
from toolkit.runtime import checkpoint, telemetry

ROOT = Path(__file__).parents[2]
MODEL = msgspec.structs.replace(
    TINY,
    hidden_size=64,
    intermediate_size=128,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=8,
    vocab_size=260,
)
EXPERTS = msgspec.structs.replace(
    MODEL,
    name="tiny-experts",
    model_type="qwen3_moe",
    qk_norm="head",
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=64,
)
LOSS, GRADIENT_NORM = 1.0e-6, 5.0e-6
STEPS, BATCH = 5, 8


def pretrain_plan(model=MODEL, processes=2, precision="fp32", **strategy):
    """A plan of one experiment for some layout: only the layout differs between any two of them."""
    cluster = msgspec.structs.replace(LAPTOP, gpus_per_node=processes)
    shards = strategy.get("tp", 1) * strategy.get("pp", 1) * strategy.get("cp", 1)
    return plan(
        "pretrain-test",
        model,
        cluster,
        framework="megatron",
        gradient_accumulation_steps=BATCH * shards // processes,
        workload={"sequence_length": 32, "precision": precision},
        contract={
            "dataset": "sample",
            "tokenizer": "byte",
            "total_steps": STEPS,
            "warmup_steps": 1,
            "learning_rate": 3.0e-3,
        },
        **strategy,
    )


def write(folder, made, change=lambda core: None):
    core = core_config(made)
    change(core)
    (folder / "plan.json").write_text(plans.dump(made))
    (folder / "megatron_core.json").write_text(json.dumps(core))
    return ["--plan", str(folder / "plan.json"), "--megatron", str(folder / "megatron_core.json")]


def start(folder, made, processes, *more):
    """A real start of the program; its output."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    arguments = ["-m", "recipes.pretrain.train", *write(folder, made), "--eval-sequences", "32", *more]
    # more threads than cores wait for one another in turns of the scheduler: seconds per step on a busy machine
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [*launcher, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert telemetry.read_run(folder / "run").world_size == processes
    return done.stdout


def run(folder, made, processes):
    """The steps of a whole run."""
    start(folder, made, processes)
    assert (folder / "run" / "FINISHED").is_file()
    return telemetry.read_steps(folder / "run")


@pytest.fixture(scope="module")
def single_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("single")
    run(folder, pretrain_plan(processes=1), 1)
    return folder


@pytest.fixture(scope="module")
def single(single_folder):
    return telemetry.read_steps(single_folder / "run")


def assert_same(steps, reference):
    assert [one.step for one in steps] == list(range(1, STEPS + 1))
    assert max(abs(a.loss - b.loss) for a, b in zip(steps, reference, strict=True)) <= LOSS
    assert max(abs(a.gradient_norm - b.gradient_norm) for a, b in zip(steps, reference, strict=True)) <= GRADIENT_NORM


def assert_same_model(first, second):
    """The Hugging Face folders of two runs, up to what gradients that agree to 5e-6 make of Adam's steps of 3e-3."""
    from recipes.pretrain.hugging_face.files import Weights

    one, two = (Weights(folder / "run" / "model") for folder in (first, second))
    assert one.names == two.names
    assert max(float((one.read(name) - two.read(name)).abs().max()) for name in one.names) < 1.0e-4
    return len(one.names)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_one_process_learns(single):
    assert abs(single[0].loss - math.log(MODEL.vocab_size)) < 0.05  # small random weights: uniform over the vocabulary
    assert single[-1].loss < single[0].loss - 0.4
    assert [one.learning_rate for one in single[:2]] == [0.0, 3.0e-3]
    assert [one.samples_seen for one in single] == [BATCH * n for n in range(1, STEPS + 1)]


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_the_held_out_loss_is_in_the_telemetry(single_folder, single):
    done = checkpoint.finished(single_folder / "run")
    (found,) = telemetry.read_evaluations(single_folder / "run")
    assert (found.step, found.held_out_loss) == (done["step"], done["held_out_loss"])
    assert found.tokens > 0 and found.tokens % 32 == 0  # whole sequences
    assert found.seconds > 0.0 and found.ended_unix >= single[-1].ended_unix


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_the_seconds_of_a_step_are_told_by_part(single):
    for step in single:
        parts = step.seconds_by_part
        assert parts.save == step.save_stall_seconds
        assert min(parts.data, parts.forward_backward, parts.optimizer, parts.other) > 0.0
        assert parts.data + parts.forward_backward + parts.optimizer + parts.other == pytest.approx(step.seconds)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param({"tp": 2, "sequence_parallel": 1}, id="tp2-sequence-parallel"),
        pytest.param({"pp": 2}, id="pp2"),
        pytest.param({"pp": 2, "virtual_pipeline_stages": 2}, id="pp2-interleaved"),
        pytest.param({"zero_stage": 1}, id="dp2-distributed-optimizer"),
        pytest.param({"cp": 2, "recompute": 2}, id="cp2-full-recompute"),
        pytest.param({"cp": 2, "cp_method": "a2a", "recompute": 2, "recompute_layers": 3}, id="cp2-heads-3-layers"),
    ],
)
def test_two_processes_learn_what_one_learns(tmp_path, single, single_folder, strategy):
    assert_same(run(tmp_path, pretrain_plan(**strategy), 2), single)
    assert_same_model(tmp_path, single_folder)
    ends = [checkpoint.finished(folder / "run")["held_out_loss"] for folder in (tmp_path, single_folder)]
    assert abs(ends[0] - ends[1]) <= LOSS


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_uneven_virtual_stages_learn_what_one_process_learns(tmp_path):
    """Six layers and both ends are four chunks of two: 1 + 2 on the first stage, 2 + 1 on the second."""
    model = msgspec.structs.replace(MODEL, num_hidden_layers=6)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    reference = run(tmp_path / "one", pretrain_plan(model, processes=1), 1)
    assert_same(run(tmp_path / "two", pretrain_plan(model, pp=2, virtual_pipeline_stages=2), 2), reference)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_stopped_run_goes_on_where_it_was_on_another_layout(tmp_path, single):
    said = start(tmp_path, pretrain_plan(zero_stage=1), 2, "--max-steps", "2")
    assert "step 2/5" in said and "step 3/5" not in said
    assert not (tmp_path / "run" / "FINISHED").exists()
    said = start(tmp_path, pretrain_plan(tp=2, sequence_parallel=1, zero_stage=1), 2)
    assert "resuming from checkpoint-2 (distributed: tp 1 to 2, dp 2 to 1)" in said and "step 2/5" not in said
    assert "weights of checkpoint-2" in said and "random weights" not in said  # which it no longer has
    assert f"finished: {tmp_path / 'run' / 'model'}" in said
    assert (tmp_path / "run" / "FINISHED").is_file()
    assert_same(telemetry.read_steps(tmp_path / "run"), single)


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_expert_parallel_learns_what_one_process_learns(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    reference = run(tmp_path / "one", pretrain_plan(EXPERTS, processes=1), 1)
    steps = run(tmp_path / "two", pretrain_plan(EXPERTS, ep=2, zero_stage=1), 2)
    assert_same(steps, reference)
    assert steps[-1].loss < steps[0].loss - 0.4
    assert assert_same_model(tmp_path / "one", tmp_path / "two") == 4 * (8 + 1 + 3 * 4) + 3


def test_what_is_not_built_is_a_sentence(tmp_path):
    def change(core):
        core["transformer"] |= {"fp8": "hybrid", "multi_latent_attention": True, "mtp_num_layers": 1}

    code, said = check_only(tmp_path, pretrain_plan(tp=2), 2, change)
    assert code == 2
    assert "fp8 (hybrid) needs GPUs that multiply it, and the plan is for CPUs" in said
    assert "this program does not build multi-head latent attention" in said
    assert "this program does not build multi-token prediction" in said


def check_only(folder, made, world_size, change=lambda core: None):
    """The program's exit code and stderr when it refuses; it must do so without importing torch."""
    guard = "import sys; sys.modules['torch'] = None; from recipes.pretrain.train import main; sys.exit(main())"
    arguments = [*write(folder, made, change), "--output-dir", str(folder / "run")]
    environment = os.environ | {"WORLD_SIZE": str(world_size), "RANK": "0"}
    done = subprocess.run(
        [sys.executable, "-c", guard, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert not (folder / "run").exists()
    return done.returncode, done.stderr


def test_all_problems_at_once_before_torch_is_imported(tmp_path):
    def break_it(core):
        core["model"]["vocab_size"] += 1
        core["transformer"]["params_dtype"] = "float32"

    code, said = check_only(tmp_path, pretrain_plan(tp=2), 3, break_it)
    assert code == 2
    assert "3 processes were started, the plan needs 2 (tp 2 x pp 1 x cp 1 x dp 1)" in said
    assert "model.vocab_size 513 is not a multiple of tp 2" in said
    assert "transformer.params_dtype is 'float32'" in said
    assert "Traceback" not in said


def test_heads_that_cannot_be_exchanged_are_refused(tmp_path):
    code, said = check_only(tmp_path, pretrain_plan(processes=8, cp=8, cp_method="a2a"), 8)
    assert code == 2
    assert "key-value heads of a rank 4 is not a multiple of cp, as a2a needs 8" in said


def test_interleaving_of_two_stages_that_would_train_wrongly_is_refused(tmp_path):
    def batched_sends(core):
        core["transformer"] |= {"overlap_p2p_comm": False, "batch_p2p_comm": True}

    code, said = check_only(tmp_path, pretrain_plan(pp=2, virtual_pipeline_stages=2), 2, batched_sends)
    assert code == 2
    assert "wrong gradients, silently" in said


def test_files_of_different_plans_are_refused(tmp_path):
    made = pretrain_plan(tp=2)
    write(tmp_path, made)
    other = tmp_path / "other"
    other.mkdir()
    arguments = ["--plan", str(tmp_path / "plan.json"), *write(other, pretrain_plan(pp=2))[2:]]
    done = subprocess.run(
        [sys.executable, "-m", "recipes.pretrain.train", *arguments],
        cwd=ROOT,
        env=os.environ | {"WORLD_SIZE": "2"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "parallel.tensor_model_parallel_size is 1 in the megatron file and 2 in the plan" in done.stderr


def test_committed_files_are_accepted():
    found = sorted((ROOT / "slurm" / "plans").glob("*.megatron_core.json"))
    assert found
    for path in found:
        made, core, _ = config.load(path.with_name(path.name.replace(".megatron_core", "")), path)
        validity.check(made, core, made.cluster.num_gpus)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"schema": 1}', "\x00"])
def test_broken_files_are_sentences(tmp_path, content):
    write(tmp_path, pretrain_plan(tp=2))
    for name in ("plan.json", "megatron_core.json"):
        (tmp_path / name).write_text(content)
    done = subprocess.run(
        [sys.executable, "-m", "recipes.pretrain.train"]
        + ["--plan", str(tmp_path / "plan.json"), "--megatron", str(tmp_path / "megatron_core.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.count("error: ") >= 2
    assert "Traceback" not in done.stderr

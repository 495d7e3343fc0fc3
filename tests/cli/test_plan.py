"""``toolkit plan`` and ``toolkit estimate`` as a user meets them: output, JSON, files, exit codes, problems."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PLAN = ("plan", "--params", "7B", "--gpus", "64")


def toolkit(*argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "toolkit", *argv], capture_output=True, text=True, cwd=cwd, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture(scope="module")
def document() -> dict:
    done = toolkit(*PLAN, "--json")
    assert done.returncode == 0
    return json.loads(done.stdout)


def test_the_json_has_the_stable_names(document: dict) -> None:
    assert {"schema", "model", "cluster", "workload", "assumptions", "candidates", "plans"} <= set(document)
    assert document["model"]["total_parameters"] == 6738415616
    assert {"total", "feasible", "seconds", "eliminated"} <= set(document["candidates"])
    plan = document["plans"][0]
    assert plan["rank"] == 1
    assert {"strategy", "verdict", "memory", "host_memory", "communication", "step", "reason"} <= set(plan)
    assert plan["verdict"] in {"fits", "tight", "no"}
    assert set(plan["communication"]) == {"tp", "cp", "ep", "pp", "dp"}
    assert {"seconds", "lower_seconds", "upper_seconds", "tokens_per_second_per_gpu", "mfu", "hfu"} <= set(plan["step"])
    assert plan["strategy"]["recompute"] in {"none", "selective", "full"}


def test_a_plan_says_which_efficiency_nobody_measured(document: dict) -> None:
    assert "attention efficiency of h100-sxm5-80gb is assumed" in document["assumptions"]
    measured = json.loads(toolkit(*PLAN, "--accelerator", "a100-80gb", "--json").stdout)["assumptions"]
    assert not any("efficiency" in sentence for sentence in measured)


def test_the_parts_of_memory_are_its_total(document: dict) -> None:
    for plan in document["plans"]:
        memory = plan["memory"]
        parts = [value for name, value in memory.items() if name not in ("total_bytes", "limit_bytes")]
        assert memory["total_bytes"] == pytest.approx(sum(parts), rel=1e-12)
        assert memory["total_bytes"] <= memory["limit_bytes"]


def test_the_parts_of_the_step_are_its_seconds(document: dict) -> None:
    for plan in document["plans"]:
        step = plan["step"]
        parts = [v for n, v in step.items() if n.endswith("_seconds") and not n.startswith(("lower", "upper"))]
        assert step["seconds"] == pytest.approx(sum(parts), rel=1e-9)


def test_degrees_multiply_to_the_gpus(document: dict) -> None:
    for plan in document["plans"]:
        s = plan["strategy"]
        assert s["tp"] * s["pp"] * s["cp"] * s["dp"] == 64
        assert (
            s["micro_batch_size"] * s["gradient_accumulation_steps"] * s["dp"]
            == document["workload"]["global_batch_size"]
        )


def test_out_writes_a_plan_that_reads_back_and_a_deepspeed_file(tmp_path: Path) -> None:
    from toolkit import plan as plans

    done = toolkit(*PLAN, "--framework", "deepspeed", "--out", str(tmp_path / "plan"))
    assert done.returncode == 0
    read = plans.load((tmp_path / "plan" / "plan.json").read_bytes())
    assert read.strategy.framework == "deepspeed"
    config = json.loads((tmp_path / "plan" / "ds_config.json").read_text())
    assert config["train_batch_size"] == read.contract.global_batch_size
    assert {"launch.sh", "train.sbatch", "accelerate.yaml"} <= {path.name for path in (tmp_path / "plan").iterdir()}


@pytest.mark.slow
def test_deepspeed_itself_accepts_the_written_file(tmp_path: Path) -> None:
    """The world size is the plan's, as in a job."""
    assert toolkit(*PLAN, "--framework", "deepspeed", "--out", str(tmp_path / "plan")).returncode == 0
    code = f"""
import os
os.environ.update(RANK="0", WORLD_SIZE="64", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
import deepspeed
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False, verbose=False)
from deepspeed.runtime.config import DeepSpeedConfig
config = DeepSpeedConfig({str(tmp_path / "plan" / "ds_config.json")!r})
assert config.world_size == 64 and config.train_batch_size == 1024, (config.world_size, config.train_batch_size)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=300)


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    out = tmp_path / "plan"
    out.mkdir()
    (out / "plan.json").write_text("mine")
    done = toolkit(*PLAN, "--out", str(out))
    assert done.returncode == 2
    assert "plan.json" in done.stderr
    assert (out / "plan.json").read_text() == "mine"
    assert [path.name for path in out.iterdir()] == ["plan.json"]
    assert toolkit(*PLAN, "--out", str(out), "--force").returncode == 0
    assert (out / "plan.json").read_text() != "mine"


def test_all_problems_are_told_at_once() -> None:
    done = toolkit("plan", "--params", "banana", "--gpus", "seven", "--calibration", "nope")
    assert done.returncode == 2
    assert done.stdout == ""
    for word in ("banana", "seven", "nope"):
        assert word in done.stderr


@pytest.mark.parametrize(
    "argv,words",
    [
        (("plan", "--gpus", "8"), "no model is given"),
        (("plan", "--params", "7B"), "--gpus is missing"),
        (("plan", "--params", "70", "--gpus", "8"), "70B"),
        (("plan", "--params", "7B", "--model", "gpt2", "--gpus", "8"), "give one of them"),
        (("plan", "--model", "lama-2-7b", "--gpus", "8"), "llama-2-7b"),
        (("plan", "--params", "7B", "--gpus", "8", "--accelerator", "h1000"), "h100"),
        (("plan", "--params", "7B", "--gpus", "8", "--cluster", "my-unknown-cluster"), "dgx-h100"),
        (("plan", "--params", "7B", "--gpus", "8", "--accelerator", "v100-32gb", "--precision", "bf16"), "has no bf16"),
        (("plan", "--model", "gpt2", "--gpus", "8", "--sequence-length", "4096"), "1024 learned positions"),
        (("plan", "--params", "7B", "--gpus", "12"), "2x6"),
        (("plan", "--params", "7B", "--gpus", "8", "--zero", "4"), "--zero"),
        (("plan", "--recipe", "tinny", "--gpus", "2"), "tiny"),
        (("plan", "--recipe", "tiny", "--gpus", "2", "--framework", "megatron"), "does not use megatron"),
    ],
)
def test_bad_input_exits_with_2_and_a_remedy(argv: tuple[str, ...], words: str) -> None:
    done = toolkit(*argv)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_nothing_fits_exits_with_1_and_ways_out() -> None:
    done = toolkit("plan", "--params", "70B", "--gpus", "4", "--accelerator", "a100-40gb", "--framework", "fsdp")
    assert done.returncode == 1
    assert "nearest miss" in done.stderr
    assert "on 64 GPUs (8 x 8): fsdp" in done.stderr


def test_nothing_legal_exits_with_1_and_the_rules() -> None:
    done = toolkit("plan", "--model", "llama-30b", "--gpus", "8", "--framework", "megatron", "--tp", "8")
    assert done.returncode == 1
    assert "tp must divide the attention heads" in done.stderr
    assert "valid tp: 1, 2, 4, 13, 26, 52" in done.stderr


def test_explain_shows_equations_with_values_and_what_was_eliminated() -> None:
    done = toolkit(*PLAN, "--explain")
    assert "[P2] attention_sharded = " in done.stdout
    assert "hidden_size=4,096" in done.stdout
    assert "tp must divide the attention heads" in done.stdout
    assert "The ladder" in done.stdout


def test_explain_shows_each_equation_once_for_the_same_values_and_ends_in_the_figures_of_the_plan() -> None:
    done = toolkit(*PLAN, "--explain", "--top", "1")
    equations = done.stdout.partition("equations, numbered")[2]
    head, seen = "", set()
    for line in equations.splitlines():
        head = line if line.startswith("  [") else head
        if line.startswith("      = "):
            assert (head, line) not in seen
            seen.add((head, line))
    assert len(seen) > 50
    sums = [
        line for line in equations.replace("\n    ", " ").splitlines() if " + " in line and line.startswith("  the")
    ]
    element = json.loads(toolkit(*PLAN, "--top", "1", "--json").stdout)["plans"][0]
    assert any(line.endswith(f"= {element['memory']['total_bytes'] / 2**30:.4g} GiB") for line in sums)
    assert "the model: " in equations and "= 6.74B" in equations
    assert f"= {element['step']['seconds']:.4g} s" in equations.splitlines()[-1]
    assert "host_adam" not in equations  # nothing is offloaded


def test_pick_writes_another_rank(tmp_path: Path, document: dict) -> None:
    done = toolkit(*PLAN, "--pick", "2", "--out", str(tmp_path / "second"), "--json")
    assert done.returncode == 0
    written = json.loads((tmp_path / "second" / "plan.json").read_text())
    assert written["strategy"] == document["plans"][1]["strategy"]


def test_estimate_tells_every_broken_rule_of_a_strategy() -> None:
    done = toolkit("estimate", "--model", "llama-30b", "--gpus", "8", "--tp", "8", "--zero", "3", "--micro-batch", "5")
    assert done.returncode == 2
    for words in ("52 attention heads", "zero stage 3", "global batch"):
        assert words in done.stderr


def test_estimate_of_what_does_not_fit_exits_with_1_and_still_shows_it() -> None:
    """A 7B model with ZeRO-2 on 8 x 32 GB ran out of memory in the optimizer step (LLaMA-Factory issue 1221)."""
    done = toolkit(
        *("estimate", "--model", "llama-2-7b", "--gpus", "8", "--accelerator", "v100-32gb", "--zero", "2"),
        *("--micro-batch", "1", "--sequence-length", "512", "--global-batch", "8", "--json"),
        *("--optimizer", "adamw_unfused"),
    )
    assert done.returncode == 1
    element = json.loads(done.stdout)
    assert element["verdict"] == "no"
    # the allocation that failed was the fp32 denominator of one shard: 4 P / 8 = 3.14 GiB
    assert element["memory"]["optimizer_temporaries_bytes"] >= 4 * 6738415616 / 8


def test_zero_without_data_parallelism_is_a_warning_in_an_estimate() -> None:
    done = toolkit(
        *("estimate", "--model", "llama-2-13b", "--gpus", "8", "--framework", "megatron", "--tp", "8", "--zero", "1"),
        *("--sequence-parallel", "--global-batch", "8", "--json"),
    )
    assert "no effect with data-parallel size 1" in json.loads(done.stdout)["reason"][0]


@pytest.mark.parametrize("name,nodes,per_node", [("gb200-nvl72", 16, 4), ("dgx-2", 4, 16), ("dgx-h100", 8, 8)])
def test_nodes_have_the_size_of_the_cluster(name: str, nodes: int, per_node: int) -> None:
    done = toolkit("plan", "--params", "7B", "--gpus", "64", "--cluster", name, "--top", "1", "--json")
    cluster = json.loads(done.stdout)["cluster"]
    assert (cluster["nodes"], cluster["gpus_per_node"]) == (nodes, per_node)


def test_a_config_json_is_planned_as_its_registry_twin(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for given in ("config.json", "."):
        done = toolkit("plan", "--model", given, "--gpus", "64", "--json", cwd=tmp_path)
        assert json.loads(done.stdout)["model"]["total_parameters"] == 6738415616


def test_data_and_rate_come_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"text": "hello"}\n')
    argv = ("--dataset", "mine.jsonl", "--tokenizer", "byte", "--learning-rate", "1e-5", "--out", "plan")
    done = toolkit("plan", "--model", "tiny", "--gpus", "2", "--cluster", "local-cpu", *argv, cwd=tmp_path)
    assert done.returncode == 0
    assert "no data set" not in done.stdout
    contract = json.loads((tmp_path / "plan" / "plan.json").read_text())["contract"]
    assert contract["dataset"] == str(tmp_path / "mine.jsonl")  # a job may start elsewhere
    assert (contract["tokenizer"], contract["learning_rate"]) == ("byte", 1e-5)


def test_the_whole_run_is_told_in_gpu_hours_and_price(tmp_path: Path) -> None:
    cluster = 'name = "mine"\naccelerator = "h100-sxm5-80gb"\ngpus_per_node = 8\nprice_per_gpu_hour = 2.0\n'
    (tmp_path / "mine.toml").write_text(cluster)
    done = toolkit(*PLAN, "--cluster", str(tmp_path / "mine.toml"), "--tokens", "1T", "--top", "1", "--json")
    plan = json.loads(done.stdout)["plans"][0]
    run = plan["whole_run"]
    assert run["steps"] == -(-(10**12) // (1024 * 4096))
    assert run["gpu_hours"] == pytest.approx(run["steps"] * plan["step"]["seconds"] * 64 / 3600)
    assert run["cost"] == pytest.approx(2.0 * run["gpu_hours"])


@pytest.mark.parametrize(
    "argv,words",
    [
        (("--params", "7B", "--gpus", "8", "--framework", "fsdp", "--tp", "2"), "data parallelism only"),
        (("--params", "7B", "--gpus", "16", "--tp", "3"), "= 15 is not the 16 GPUs"),
        (("--model", "mixtral-8x7b", "--gpus", "16", "--ep", "3"), "ep 3 does not divide the 8 experts"),
        (("--params", "7B", "--gpus", "8", "--zero", "1", "--offload", "optimizer+parameters"), "--zero 3"),
    ],
)
def test_pins_that_nothing_satisfies_are_told_by_the_rule_they_break(argv: tuple[str, ...], words: str) -> None:
    done = toolkit("plan", *argv)
    assert done.returncode == 1
    assert words in done.stderr


LONG = ("--params", "7B", "--gpus", "16", "--framework", "megatron", "--global-batch", "16")


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        (("--recompute-layers", "12"), {"recompute": "full", "recompute_layers": 12}),
        (("--cp-method", "ulysses", "--cp", "4"), {"cp_method": "a2a", "cp": 4}),
        (("--cp-method", "ring", "--cp", "4"), {"cp_method": "p2p", "cp": 4}),
        (("--cp-method", "all_gather"), {"cp_method": "all_gather"}),
    ],
)
def test_what_is_pinned_of_recomputation_and_context_is_kept(options: tuple[str, ...], fields: dict) -> None:
    found = json.loads(toolkit("plan", *LONG, *options, "--sequence-length", "16384", "--json").stdout)
    assert found["plans"]
    for plan in found["plans"]:
        assert {name: plan["strategy"][name] for name in fields} == fields


def test_an_estimate_takes_the_same_options_and_names_broken_rules() -> None:
    degrees = ("--pp", "2", "--cp", "2", "--cp-method", "a2a", "--recompute-layers", "5", "--zero", "1")
    done = toolkit("estimate", *LONG, *degrees, "--json")
    assert json.loads(done.stdout)["strategy"]["recompute"] == "full"
    refused = toolkit("estimate", *LONG, "--pp", "2", "--cp", "1", "--cp-method", "a2a", "--recompute-layers", "16")
    assert refused.returncode == 2
    assert "cp method a2a shares nothing with cp 1" in refused.stderr
    assert "below the 16 layers of a stage" in refused.stderr


def test_experts_and_tensor_degrees_are_pinned_apart() -> None:
    argv = (
        "--model",
        "mixtral-8x7b",
        "--gpus",
        "16",
        "--framework",
        "megatron",
        "--tp",
        "4",
        "--ep",
        "4",
        "--etp",
        "2",
    )
    found = json.loads(toolkit("plan", *argv, "--global-batch", "64", "--json").stdout)
    assert found["plans"]
    for plan in found["plans"]:
        assert (plan["strategy"]["tp"], plan["strategy"]["ep"], plan["strategy"]["etp"]) == (4, 4, 2)

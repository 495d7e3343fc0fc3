"""The YAML of accelerate: read back by a YAML library and by accelerate's own class, and really launched."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests import plans
from toolkit.emit import accelerate
from toolkit.emit import yaml as writer
from toolkit.errors import ToolkitError

PLANS = {name: plan for name, plan in plans.all_plans().items() if plan.strategy.framework != "megatron"}
# what accelerate 1.15 refuses beside deepspeed_config_file: utils/dataclasses.py, env_variable_names_to_ignore
CLASH = {
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_param_nvme_path",
    "offload_optimizer_nvme_path",
    "zero3_save_16bit_model",
    "mixed_precision",
}

texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts)
keys = st.from_regex(r"[a-z_]{1,10}", fullmatch=True).filter(lambda key: yaml.safe_load(key) == key)


@given(st.dictionaries(keys, st.one_of(scalars, st.lists(scalars), st.dictionaries(keys, scalars)), max_size=5))
def test_any_value_survives_the_writer(values: dict) -> None:
    assert yaml.safe_load(writer.dump(values)) == values


@pytest.mark.parametrize("value", ["no", "1", "a: b", "# c", "x\ny: z", '"', "\\", "- d", "\x85\u2028", "𝄞", ""])
def test_texts_stay_texts(value: str) -> None:
    assert yaml.safe_load(writer.dump({"key": value})) == {"key": value}


@pytest.mark.parametrize("name", PLANS)
def test_the_yaml_is_the_config(name: str) -> None:
    assert yaml.safe_load(accelerate.text(PLANS[name])) == accelerate.config(PLANS[name])


@pytest.mark.parametrize("name", PLANS)
def test_processes_are_the_planned_ones_in_all(name: str) -> None:
    config, cluster = accelerate.config(PLANS[name]), PLANS[name].cluster
    assert (config["num_machines"], config["num_processes"]) == (cluster.nodes, cluster.num_gpus)


def test_deepspeed_gives_the_file_and_nothing_that_it_says() -> None:
    for name, plan in PLANS.items():
        if plan.strategy.framework != "deepspeed":
            continue
        config = accelerate.config(plan, "/plans/a b/ds_config.json")
        inner = config["deepspeed_config"]
        assert inner["deepspeed_config_file"] == "/plans/a b/ds_config.json"
        assert not CLASH & (config.keys() | inner.keys()), name
        assert inner.get("deepspeed_multinode_launcher") == ("standard" if plan.cluster.nodes > 1 else None)


def test_fsdp_2_and_hybrid_sharding() -> None:
    full, hybrid = accelerate.config(PLANS["fsdp"]), accelerate.config(PLANS["fsdp-hybrid"])
    assert full["distributed_type"] == hybrid["distributed_type"] == "FSDP"
    assert full["fsdp_config"]["fsdp_version"] == 2
    assert full["fsdp_config"]["fsdp_reshard_after_forward"] is True
    assert full["fsdp_config"]["fsdp_activation_checkpointing"] is True
    assert "parallelism_config" not in full
    sizes = hybrid["parallelism_config"]
    assert sizes["parallelism_config_dp_replicate_size"] * sizes["parallelism_config_dp_shard_size"] == 16
    assert sizes["parallelism_config_dp_shard_size"] == 8


def test_what_accelerate_would_not_do_is_refused() -> None:
    on_cpu = plans.plan("x", plans.TINY, plans.LAPTOP, framework="fsdp", zero_stage=3, workload={"sequence_length": 64})
    with pytest.raises(ToolkitError, match="plain DDP"):
        accelerate.config(on_cpu)
    with pytest.raises(ToolkitError, match="does not start Megatron"):
        accelerate.config(plans.all_plans()["dense"])
    half = msgspec.structs.replace(PLANS["fsdp"].strategy, offload=1)
    with pytest.raises(ToolkitError, match="together or not at all"):
        accelerate.config(msgspec.structs.replace(PLANS["fsdp"], strategy=half))
    with pytest.raises(ToolkitError, match="does not divide dp 16"):
        accelerate.config(plans.plan("x", plans.LLAMA_8B, plans.DGX, framework="fsdp", zero_stage=3, dp_shard=3))


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_accelerates_own_class_accepts_it(name: str, tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    path = tmp_path / "accelerate.yaml"
    path.write_text(accelerate.text(PLANS[name]))
    loaded = load_config_from_file(str(path))
    config = accelerate.config(PLANS[name])
    assert loaded.distributed_type.value == config["distributed_type"]
    assert loaded.num_processes == PLANS[name].cluster.num_gpus
    arguments = launch_command_parser().parse_args(["--config_file", str(path), "script.py"])
    resolved, _, _ = _validate_launch_command(arguments)
    framework = PLANS[name].strategy.framework
    assert (resolved.use_deepspeed, resolved.use_fsdp) == (framework == "deepspeed", framework == "fsdp")
    assert resolved.num_processes == config["num_processes"]
    if framework == "fsdp":
        assert resolved.fsdp_version == 2 and resolved.fsdp_reshard_after_forward is True


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "tiny-ddp"])
def test_accelerate_launch_starts_the_planned_processes(name: str, tmp_path: Path) -> None:
    # MULTI_CPU would start one process: that is why DDP on processors is MULTI_GPU with use_cpu
    (tmp_path / "accelerate.yaml").write_text(accelerate.text(PLANS[name]))
    (tmp_path / "say.py").write_text(
        "import os\nopen('rank' + os.environ['RANK'], 'w').write(os.environ['WORLD_SIZE'])\n"
    )
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
    done = subprocess.run(
        [*launcher, "--config_file", "accelerate.yaml", "say.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert {path.name: path.read_text() for path in tmp_path.glob("rank*")} == {"rank0": "2", "rank1": "2"}

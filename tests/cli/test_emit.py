"""toolkit emit: files written, nothing overwritten unasked, edited plans refused in sentences."""

import json
import os
from pathlib import Path

import msgspec
import pytest

from tests import plans
from toolkit import plan as plan_module
from toolkit.cli.main import main
from toolkit.plan import Plan


def run(*arguments: str) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def saved(tmp_path: Path, plan: Plan) -> Path:
    path = tmp_path / "some plan.json"
    path.write_text(plan_module.dump(plan))
    return path


def test_writes_the_bundle_and_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out dir"
    assert run("emit", str(saved(tmp_path, plans.all_plans()["tiny"])), "--out", str(out)) == 0
    said = capsys.readouterr().out.splitlines()
    assert sorted(said) == sorted(str(path) for path in out.iterdir())
    assert json.loads((out / "ds_config.json").read_text())["zero_optimization"]["stage"] == 2
    assert os.access(out / "launch.sh", os.X_OK) and os.access(out / "train.sbatch", os.X_OK)
    assert not os.access(out / "plan.json", os.X_OK)


def test_paths_in_the_batch_script_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, plans.all_plans()["tiny"])
    monkeypatch.chdir(tmp_path)
    assert run("emit", path.name, "--out", "relative", "--json") == 0
    assert f"directory={tmp_path}/relative\n" in (tmp_path / "relative/train.sbatch").read_text()


def test_a_time_limit_that_is_short_for_a_stop_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plans.all_plans()["zero3"]
    short = msgspec.structs.replace(plan, cluster=plans.with_site(plan.cluster, time_limit="5"))
    for made, told in ((short, 3), (plan, 0)):
        out = tmp_path / str(told)
        assert run("emit", str(saved(tmp_path, made)), "--out", str(out)) == 0
        places = (capsys.readouterr().err, *((out / name).read_text() for name in ("train.sbatch", "COMMANDS.txt")))
        words = "ote: a job is asked to stop 150 s before its time limit, and a step and a save may take 260 s"
        assert sum(words in text for text in places) == told


def test_nothing_is_overwritten_without_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = saved(tmp_path, plans.all_plans()["tiny"]), tmp_path / "out"
    out.mkdir()
    (out / "launch.sh").write_text("mine")
    (out / "ds_config.json").write_text("mine")
    assert run("emit", str(path), "--out", str(out)) == 2
    said = capsys.readouterr().err
    assert f"2 files exist in {out}: ds_config.json, launch.sh\n" in said and said.count("--force") == 1
    assert sorted(file.name for file in out.iterdir()) == ["ds_config.json", "launch.sh"]
    assert (out / "launch.sh").read_text() == "mine"
    assert run("emit", str(path), "--out", str(out), "--force") == 0
    assert "torchrun" in (out / "launch.sh").read_text()


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run("emit", str(saved(tmp_path, plans.all_plans()["dense"])), "--out", str(out), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"files": sorted(str(path) for path in out.iterdir())}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read"),
        (b"", "truncated"),
        (b"{}", "is not a plan"),
        (b"[1]", "is not a plan"),
        (b"\xff\xfe\x00", "malformed"),
        (b'{"schema": 99, "strategy": {}}', "schema 99"),
        (b'{"schema": 1, "strategy": {"tp": "8"}}', "Expected `int`"),
        (b'{"schema": 1, "strategy": 3}', "is not a plan"),
        (b'{"schema": 1, "strategy": {"recompute": "some"}}', "recompute is 'some', not one of none, selective, full"),
        (b'{"schema": 1, "strategy": {"offload": []}}', "offload is [], not one of none, optimizer"),
    ],
)
def test_what_is_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, words: str) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_bytes(content)
    assert run("emit", str(path), "--out", str(tmp_path / "out")) == 2
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said
    assert not (tmp_path / "out").exists()


def edited(name: str, **strategy: int) -> Plan:
    plan = plans.all_plans()[name]
    return msgspec.structs.replace(plan, strategy=msgspec.structs.replace(plan.strategy, **strategy))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        # C: 80 layers in 16 stages of 2 layers each would train 64 layers
        (edited("interleaved", virtual_pipeline_stages=3), "80 layers do not divide into pp 2 x 3 virtual stages"),
        # 52 heads cannot be split by 8
        (
            plans.plan(
                "heads",
                msgspec.structs.replace(plans.LLAMA_70B, num_attention_heads=52, num_key_value_heads=52),
                plans.DGX,
                framework="megatron",
                tp=8,
            ),
            "valid tp: 1, 2, 4, 13, 26, 52",
        ),
        # expert grid: world must be a multiple of etp x ep x pp
        (edited("experts", etp=4, ep=8), "etp 4 x ep 8 x pp 1 = 32 does not divide 16 GPUs"),
        # 8190 is not a multiple of cp 4 x lcm(2, tp 8)
        (
            plans.plan(
                "long",
                plans.LLAMA_8B,
                msgspec.structs.replace(plans.DGX, nodes=4),
                framework="megatron",
                tp=8,
                cp=4,
                sequence_parallel=1,
                workload={"sequence_length": 8190},
            ),
            "pad sequences to a multiple of 32",
        ),
        # interleaving needs micro batches in multiples of pp
        (
            plans.plan(
                "few",
                plans.LLAMA_70B,
                plans.DGX,
                framework="megatron",
                tp=4,
                pp=2,
                virtual_pipeline_stages=5,
                gradient_accumulation_steps=3,
            ),
            "3 micro batches are not a multiple of pp 2",
        ),
    ],
)
def test_an_edited_plan_that_its_framework_would_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], plan: Plan, words: str
) -> None:
    assert run("emit", str(saved(tmp_path, plan)), "--out", str(tmp_path / "out")) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

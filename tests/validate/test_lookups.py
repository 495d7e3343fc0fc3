"""Cards by their memory, in nodes that hold them all; models however their names are parted; degrees from dp."""

from __future__ import annotations

import pytest

from tests.validate.runs import LOOKUPS, job, validated, written

BLANK = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), "")


@pytest.mark.parametrize(
    ("gpu", "memory", "name", "ambiguous"),
    [
        ("A100", 40, "a100-sxm4-40gb", True),
        ("A100", 39.4, "a100-sxm4-40gb", True),
        ("A100 40GB", "", "a100-sxm4-40gb", True),
        ("A100-40GB", "", "a100-sxm4-40gb", True),
        ("A100-PCIe", 40, "a100-pcie-40gb", False),
        ("A100", 80, "a100-sxm4-80gb", True),
        ("A100", "", "a100-sxm4-80gb", True),
        ("DGX-A100", 40, "a100-sxm4-40gb", True),
        ("DGX H100", "", "h100-sxm5-80gb", True),
        ("8xH100", 80, "h100-sxm5-80gb", True),
        ("H100 x8", 80, "h100-sxm5-80gb", True),
        ("H100 SXM5 94GB", "", "h100-sxm5-96gb", False),
        ("H100", 94, "h100-nvl-94gb", False),
        ("GeForce RTX 4090 24GB", "", "rtx-4090", False),
        ("NVIDIA A100-SXM4-80GB", "", "a100-sxm4-80gb", False),
        ("B200", 192, "b200-sxm-180gb", False),
    ],
)
def test_cards(gpu: str, memory: object, name: str, ambiguous: bool) -> None:
    """SXM before other forms of the stated memory; a name that fits several cards is said to be assumed."""
    made = job(gpu=gpu, gpu_mem_gb=memory, gpus_per_node="")
    assert made.cluster.accelerator.name == name
    assert any(said.startswith(f"{name} of several") for said in made.assumed) is ambiguous


@pytest.mark.parametrize(
    ("gpus", "per_node", "nodes"), [(12, "", (2, 6)), (20, "", (4, 5)), (20, 8, (4, 5)), (16, "", (2, 8))]
)
def test_the_fewest_equal_nodes(gpus: int, per_node: object, nodes: tuple[int, int]) -> None:
    made = job(n_gpus=gpus, gpus_per_node=per_node, tp=1, pp=1, global_batch=240)
    assert (made.cluster.nodes, made.cluster.gpus_per_node) == nodes
    assert any("do not fill nodes of 8" in said for said in made.assumed) is (gpus != 16)


@pytest.mark.parametrize(
    ("written_as", "name"),
    [
        ("LLaMA3.1-8B", "llama-3.1-8b"),
        ("Qwen 2.5 7B", "qwen2.5-7b"),
        ("GPT-3 175B", "gpt3-175b"),
        ("gpt-175b", "gpt3-175b"),
        ("GPT-2 1.5B", "gpt2-xl"),
        ("Llama4-Scout", "llama-4-scout"),
        ("Gemma2 9B", "gemma-2-9b"),
    ],
)
def test_names_of_models_however_they_are_parted(written_as: str, name: str) -> None:
    found = LOOKUPS.models.spelled(written_as)
    assert found is not None and found.name == name
    assert LOOKUPS.models.spelled("nobody-7b") is None
    assert job(model="Grok-1", tp=1, pp=1, **BLANK).model.num_experts == 8
    made = job(model=written_as, tp=1, pp=1, **BLANK)
    assert f"{written_as} is {name}" in made.assumed and made.model.hidden_size == found.hidden_size


@pytest.mark.parametrize(
    ("changes", "degrees"),
    [
        ({"n_gpus": 32, "tp": 8, "pp": "", "dp": 4}, (8, 1, 4)),
        ({"n_gpus": 32, "tp": "", "pp": 2, "dp": 4}, (4, 2, 4)),
        ({"n_gpus": 32, "tp": "", "pp": "", "dp": 32}, (1, 1, 32)),
        ({"n_gpus": 32, "tp": 4, "pp": 2, "dp": 4}, (4, 2, 4)),
    ],
)
def test_a_blank_degree_follows_from_dp(changes: dict[str, object], degrees: tuple[int, ...]) -> None:
    made = job(**changes)
    assert (made.strategy.tp, made.strategy.pp, made.strategy.dp) == degrees
    assert any("from dp" in said for said in made.assumed) is ("" in changes.values())


def test_a_measurement_that_cannot_be_read_does_not_lose_the_other() -> None:
    found = validated(written({"peak_mem_gib": "~60"}, {"id": "b", "step_time_s": "fast"}))
    (scored,), (skipped,) = found["rows"], found["skipped"]
    assert scored["unscored"]["peak_memory"].startswith("unreadable: peak_mem_gib = '~60'")
    assert scored["step_time"]["relative_error"] is not None
    assert skipped["reason"].startswith("unreadable: step_time_s = 'fast'")


def test_ids_that_stand_for_several_rows_are_told_once() -> None:
    assert validated(written({}, {"id": "b"}))["notes"] == []
    assert validated(written({}, {}, {}, {"id": "b"}))["notes"] == ["1 id stands for more than one row: a (3 rows)"]


def test_a_bad_cell_that_others_make_needless_is_as_if_blank() -> None:
    made = job(dp="~4", params_b="8ish", grad_accum="n/m")
    assert set(made.assumed) == {f"as if blank: {column}" for column in ("dp", "params_b", "grad_accum")}
    assert made.strategy == job().strategy

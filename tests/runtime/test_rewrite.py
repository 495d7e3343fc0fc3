"""States that are read and written in every form there is stay what they are, bit for bit."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from toolkit.errors import ToolkitError
from toolkit.runtime import rewrite, states, weights
from toolkit.runtime.states import PARAMETERS, Parameters, States

pytestmark = pytest.mark.slow  # it loads torch

SHAPES = {"embed.weight": (12, 4), "mlp.weight": (8, 4), "norm.weight": (4,)}
TIED = {"head.weight": "embed.weight"}


def ddp(folder: Path, adam: bool = True, groups: list[list[str]] | None = None) -> Path:
    """A checkpoint of DDP, with two groups and a buffer, written by torch itself."""
    folder.mkdir()
    torch.manual_seed(1)
    names = groups or [["embed.weight", "mlp.weight"], ["norm.weight"]]
    parameters = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in SHAPES.items()}
    own = [{"params": [parameters[name] for name in group]} for group in names]
    own[0]["weight_decay"] = 0.1  # type: ignore[assignment]
    optimizer: Any = torch.optim.AdamW(own, lr=1e-3, betas=(0.8, 0.9)) if adam else torch.optim.SGD(own, lr=1e-3)
    for _ in range(3):
        for parameter in parameters.values():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    held = {name: each.detach() for name, each in parameters.items()} | {"steps": torch.tensor([7, 8])}
    save_file(held, folder / "model.safetensors")
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    schedule = {"base_lrs": [1e-3] * len(names), "_last_lr": [1e-4] * len(names), "lr_lambdas": [None] * len(names)}
    torch.save(schedule | {"last_epoch": 3}, folder / "scheduler.pt")
    (folder / PARAMETERS).write_bytes(msgspec.json.encode(Parameters(names, TIED)))
    (folder / "trainer_state.json").write_text("{}")
    return folder


def same(one: States, other: States) -> None:
    assert one.parameters == other.parameters and int(one.steps or 0) == int(other.steps or 0)
    for first, second in ((one.weights, other.weights), (one.others, other.others)):
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)
    assert one.moments.keys() == other.moments.keys()
    assert all(torch.equal(one.moments[n][w], other.moments[n][w]) for n in one.moments for w in states.MOMENTS)
    for first, second in zip(one.settings, other.settings, strict=True):
        assert {key: first[key] for key in ("lr", "weight_decay")} == {
            key: second[key] for key in ("lr", "weight_decay")
        }


@pytest.mark.parametrize("adam", [True, False], ids=["adam", "sgd"])
def test_there_and_back_through_every_form(adam: bool, tmp_path: Path) -> None:
    forms = ("ddp", rewrite.STAGE_0, rewrite.FSDP, rewrite.STAGE_0, rewrite.DDP, rewrite.FSDP, rewrite.DDP)
    folders = [ddp(tmp_path / "0-ddp", adam), *(tmp_path / f"{n}-{form}" for n, form in enumerate(forms[1:], 1))]
    first = states.read(folders[0])
    assert len(first.moments) == (3 if adam else 0) and [group["weight_decay"] for group in first.settings][0] == 0.1
    for number, (before, after) in enumerate(pairwise(folders)):
        after.mkdir()
        rewrite.convert(before, after, forms[number + 1], "bf16" if number % 2 else "fp32", step=3)
        same(first, states.read(after))
        assert (after / "trainer_state.json").exists()
    one, two = (torch.load(folder / "optimizer.pt", weights_only=False) for folder in (folders[0], folders[-1]))
    assert [group["params"] for group in one["param_groups"]] == [group["params"] for group in two["param_groups"]]
    steps = [state["step"] for state in two["state"].values()]
    assert len({id(step) for step in steps}) == len(steps)  # one that they share would be counted up by each


def test_the_universal_form_has_a_folder_for_each_weight(tmp_path: Path) -> None:
    """And a group without parameters, as adapters have one, is left out of it and of the schedule."""
    source = ddp(tmp_path / "ddp", groups=[list(SHAPES), []])
    (tmp_path / "universal").mkdir()
    rewrite.convert(source, tmp_path / "universal", rewrite.UNIVERSAL, step=3)
    found = weights._weights(tmp_path / "universal")
    wanted = states.read(source)
    assert found.keys() == wanted.weights.keys()
    assert all(torch.equal(found[name], wanted.weights[name]) for name in found)
    zero = tmp_path / "universal" / "global_step3_universal" / "zero"
    common = torch.load(zero / "optimizer_state.pt", weights_only=False)
    assert len(common["param_groups"]) == 1 and common["param_groups"][0]["betas"] == (0.8, 0.9)
    assert len(torch.load(tmp_path / "universal" / "scheduler.pt")["base_lrs"]) == 1
    assert int(torch.load(zero / "norm.weight" / "step.pt")) == 3


def test_names_that_are_not_the_optimizers_are_found_out(tmp_path: Path) -> None:
    source = ddp(tmp_path / "ddp")
    for groups, said in (
        ([["mlp.weight", "embed.weight"], ["norm.weight"]], "exp_avg of mlp.weight is .12, 4., the weight .8, 4."),
        ([["embed.weight", "other.weight"], ["norm.weight"]], "lacks the weight other.weight"),
    ):
        (source / PARAMETERS).write_bytes(msgspec.json.encode(Parameters(groups)))
        with pytest.raises(ToolkitError, match=said):
            states.read(source)
    (source / PARAMETERS).unlink()
    with pytest.raises(ToolkitError, match="names the parameters that ddp has under numbers"):
        states.read(source)


def test_fp16_does_not_go_to_stage_0(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="divides fp16 gradients by a scale"):
        rewrite.convert(ddp(tmp_path / "ddp"), tmp_path, rewrite.STAGE_0, "fp16")

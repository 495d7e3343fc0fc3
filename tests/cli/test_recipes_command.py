"""``toolkit recipes``."""

import json

import pytest
from click.testing import CliRunner

from toolkit.cli.recipes import command
from toolkit.errors import ToolkitError


def said(*arguments: str) -> str:
    return CliRunner().invoke(command, arguments, catch_exceptions=False).stdout


def test_the_list_names_every_recipe_with_its_status() -> None:
    assert {recipe["name"] for recipe in json.loads(said("--json"))} >= {"tiny"}
    assert "tiny" in said() and "verified on" in said()


def test_one_recipe_with_its_whole_contract() -> None:
    document = json.loads(said("tiny", "--json"))
    assert document["contract"]["global_batch_size"] == 16
    assert len(document["contract_sha256"]) == 64
    text = said("tiny")
    for field in document["contract"]:
        assert field in text


def test_the_rates_are_those_of_the_steps_that_a_run_logs() -> None:
    text = " ".join(said("show", "tiny").split())
    assert "0 at step 1 (first), 0.0006 at step 2 (second), 0.003 at step 6 (warm-up ends)" in text
    assert "0.0003022 at step 60 (last), 0.0003 after it" in text


def test_an_unknown_recipe() -> None:
    with pytest.raises(ToolkitError, match="unknown recipe"):
        said("nothing")


def test_show_is_the_same_and_takes_a_version() -> None:
    assert said("show", "tiny") == said("tiny") == said("show", "tiny@1")
    assert "arXiv:2407.21783" in said("show", "pretrain-llama-3-405b") and "differs" in said("show", "sft-zephyr-7b")
    with pytest.raises(ToolkitError, match="no version '9'"):
        said("show", "tiny@9")


def test_one_name_at_a_time() -> None:
    with pytest.raises(ToolkitError, match="which recipe"):
        said("show")
    with pytest.raises(ToolkitError, match="several recipes"):
        said("tiny", "tiny-pretrain")

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


def test_an_unknown_recipe() -> None:
    with pytest.raises(ToolkitError, match="unknown recipe"):
        said("nothing")

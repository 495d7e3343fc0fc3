"""Rows of preference data to pairs of answers: prompts, cuts, order; and what is refused."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from recipes.byte_tokenizer import END, ByteTokenizer
from recipes.finetune import chat, data, preferences
from toolkit.errors import ToolkitError
from toolkit.programs import unfollowed
from toolkit.recipe import Contract, contract_problems, contract_sha256, sequences_per_step
from toolkit.registry.recipes import load_recipe

CONTRACT = Contract(objective="dpo", packing=False, sequence_length=16, tokenizer="byte")


def text(tokens: list[int]) -> str:
    return bytes(token for token in tokens if token < 256).decode()


def conversational() -> ByteTokenizer:
    tokenizer = ByteTokenizer()
    chat.with_template(tokenizer, "zephyr")
    return tokenizer


def test_text_is_prompt_and_answers_that_end() -> None:
    pair = preferences.encode({"prompt": "Two: ", "chosen": "2", "rejected": "three"}, ByteTokenizer())
    assert (text(pair.prompt), text(pair.chosen), text(pair.rejected)) == ("Two: ", "2", "three")
    assert pair.chosen[-1] == pair.rejected[-1] == END


@pytest.mark.parametrize("prompt", [{}, {"prompt": "Hello"}])
def test_conversations_share_what_both_begin_with(prompt: dict[str, Any]) -> None:
    """As UltraFeedback has them: the prompt as text beside two whole conversations."""
    ask = {"role": "user", "content": "Hello"}
    row = {
        name: [ask, {"role": "assistant", "content": words}] for name, words in (("chosen", "Hi"), ("rejected", "No"))
    }
    pair = preferences.encode(row | prompt, conversational())
    assert text(pair.prompt).startswith("<|user|>\nHello") and text(pair.prompt).endswith("<|assistant|>\n")
    assert text(pair.chosen).strip() == "Hi" and text(pair.rejected).strip() == "No"
    assert END in pair.prompt and END in pair.chosen and END in pair.rejected


def test_messages_of_the_prompt_apart_are_the_same_pair() -> None:
    ask, good, bad = (
        {"role": r, "content": c} for r, c in (("user", "Hello"), ("assistant", "Hi"), ("assistant", "No"))
    )
    whole = preferences.encode({"chosen": [ask, good], "rejected": [ask, bad]}, conversational())
    apart = preferences.encode({"prompt": [ask], "chosen": [good], "rejected": [bad]}, conversational())
    assert whole == apart


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "chosen": "b"},
        {"chosen": "b", "rejected": "c"},
        {"text": "a"},
        {},
        {"prompt": "a", "chosen": ["b"], "rejected": "c"},
        {"chosen": [{"role": "user", "content": "a"}], "rejected": [{"role": "user", "content": "a"}]},
        {"chosen": ["a", "b"], "rejected": ["a", "c"]},
    ],
)
def test_rows_of_another_form_are_refused(row: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(ToolkitError, match="row 2"):
        preferences.build(msgspec.structs.replace(CONTRACT, dataset=str(path)), conversational())


def _talk(*words: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[at % 2], "content": each} for at, each in enumerate(words)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"chosen": _talk("one", "a"), "rejected": _talk("two", "b")}, "part at message 1, and in chosen the user"),
        ({"chosen": _talk("q", "a"), "rejected": _talk("q")}, "rejected has no answer of its own: it ends after mess"),
        ({"chosen": _talk("q"), "rejected": _talk("q")}, "part at message 1, and in chosen the user"),
        ({"chosen": [], "rejected": []}, "no messages"),
        ({"prompt": "p", "chosen": "\ud800", "rejected": "b"}, "chosen holds U.D800"),
    ],
)
def test_two_conversations_that_are_no_two_answers_are_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolkitError, match=message):
        preferences.encode(row, conversational())


def test_answers_that_are_the_same_as_far_as_they_fit_teach_nothing_and_are_counted(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        {"prompt": "a", "chosen": "b", "rejected": "b"},
        {"prompt": "a", "chosen": "x" * 40 + "b", "rejected": "x" * 40 + "c"},
        {"prompt": "a" * 40, "chosen": "b", "rejected": "c"},
        {"prompt": "a<end>", "chosen": "", "rejected": "c"},
        {"chosen": _talk("q", "a"), "rejected": _talk("q", "a")},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    contract = msgspec.structs.replace(CONTRACT, dataset=str(path))
    pairs, counts = preferences.build(contract, conversational())
    assert (counts["pairs"], counts["dropped"], pairs.count) == (6, 4, 2)
    assert counts["of them with answers alike"] == 2  # the conversation does not fit at all
    with pytest.raises(ToolkitError, match=r"0 pair.s. .of 2 rows 2 have two answers that are the same"):
        preferences.split(preferences._joined([]), {"pairs": 2, "dropped": 2, "of them with answers alike": 2})


def test_a_prompt_keeps_its_end_and_a_sequence_its_beginning() -> None:
    pair = preferences.Pair(list(range(10)), list(range(20, 40)), [50])
    plain = preferences.cut(pair, CONTRACT)
    assert plain == preferences.Pair(list(range(10)), list(range(20, 26)), [50])
    short = preferences.cut(pair, msgspec.structs.replace(CONTRACT, max_prompt_length=4))
    assert short == preferences.Pair([6, 7, 8, 9], list(range(20, 32)), [50])
    assert preferences.cut(pair, msgspec.structs.replace(CONTRACT, sequence_length=10)) is None


def test_pairs_come_back_from_the_disk_and_in_order(tmp_path: Path) -> None:
    contract = load_recipe("tiny-dpo").contract
    pairs, counts = preferences.build(contract, ByteTokenizer())
    assert counts["pairs"] == pairs.count == 223 and counts["dropped"] == counts["cut"] == 0
    data.store(pairs, counts, tmp_path / "pairs")
    loaded = preferences.load(tmp_path / "pairs")
    assert all(np.array_equal(one, other) for one, other in zip(pairs, loaded, strict=True))
    training, held_out = preferences.split(loaded)
    assert len(held_out) == 11 and set(training).isdisjoint(held_out) and len(training) + len(held_out) == 223
    order = preferences.order(training, 500, seed=42)
    assert sorted(order[:212]) == sorted(order[212:424]) == list(training) and list(order[:212]) != list(order[212:424])
    assert np.array_equal(order[:100], preferences.order(training, 100, seed=42))
    rows = preferences.dataset(loaded, order)
    first = rows[0]
    words = [json.loads(line) for line in preferences.SAMPLE.read_text().splitlines()][order[0]]
    assert [text(first[name]) for name in preferences.COLUMNS] == [words["prompt"], words["chosen"], words["rejected"]]


def test_other_files_lengths_and_objectives_are_other_pairs(tmp_path: Path) -> None:
    one = preferences.cache_folder(tmp_path, CONTRACT)
    changed = ({"max_prompt_length": 3}, {"sequence_length": 32}, {"dataset": "sample-preferences"})
    folders = {preferences.cache_folder(tmp_path, msgspec.structs.replace(CONTRACT, **each)) for each in changed}
    assert len(folders | {one}) == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"packing": True}, "packing"),
        ({"completion_only": True}, "completion_only"),
        ({"total_tokens": 1e6}, "total_tokens"),
        ({"max_prompt_length": 16}, "max_prompt_length"),
        ({"max_prompt_length": -1}, "max_prompt_length"),
        ({"dpo_beta": 0.0}, "dpo_beta"),
        ({"dpo_loss": "sigmoids"}, "did you mean"),
        ({"objective": "ppo"}, "objective"),
        ({"objective": "likelihood", "dpo_beta": 0.2}, "dpo_beta"),
        ({"objective": "likelihood", "max_prompt_length": 8}, "max_prompt_length"),
    ],
)
def test_settings_that_contradict_one_another_are_problems(changes: dict[str, Any], words: str) -> None:
    problems = list(contract_problems(msgspec.structs.replace(CONTRACT, **changes)))
    assert any(words in f"{each.message} {each.remedy}" for each in problems)
    assert not list(contract_problems(CONTRACT))


def test_the_objective_is_another_experiment_and_its_batch_is_of_pairs() -> None:
    plain = msgspec.structs.replace(CONTRACT, objective="likelihood")
    assert contract_sha256(CONTRACT) != contract_sha256(plain)
    assert sequences_per_step(CONTRACT) == 2 * sequences_per_step(plain) == 2 * CONTRACT.global_batch_size
    assert [each.message for each in unfollowed("pretrain", CONTRACT) if "objective" in each.message]
    assert not list(unfollowed("finetune", CONTRACT))


def test_the_recipe_of_zephyr_is_its_source() -> None:
    """huggingface/alignment-handbook@19f0345, recipes/zephyr-7b-beta/dpo/config_full.yaml."""
    contract = load_recipe("dpo-zephyr").contract
    assert (contract.dpo_beta, contract.learning_rate, contract.epochs, contract.warmup_fraction) == (
        0.01,
        5e-7,
        1,
        0.1,
    )
    assert (contract.sequence_length, contract.max_prompt_length) == (1024, 512)
    assert contract.global_batch_size == 8 * 2 * 8 and contract.schedule == "cosine" and contract.seed == 42

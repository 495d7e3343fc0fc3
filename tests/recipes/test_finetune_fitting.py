"""A folder that is not the planned model, or not whole, is refused: the libraries would train on what they find."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from recipes import model_source
from recipes import tokenizer as tokenizers
from recipes.finetune import checks, fitting
from recipes.finetune import model as models
from tests import finetune_runs
from toolkit.errors import ToolkitError

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 260,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}


def said(folder: Path, config: Any, **contract: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    made = finetune_runs.tiny_plan("ddp", 2, 0, 8, model=str(folder), **contract)
    return "\n".join(problem.message for problem in fitting.differences(made, folder))


def test_the_planned_model_fits(tmp_path: Path) -> None:
    assert said(tmp_path / "same", CONFIG) == ""
    assert said(tmp_path / "none", {**CONFIG, "hidden_act": "silu"}) == ""  # the plan does not say
    assert not list(fitting.differences(finetune_runs.tiny_plan("ddp"), tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 2}, "has num_hidden_layers 2, the plan's model 4"),
        ({"model_type": "mistral"}, "has model_type 'mistral', the plan's model 'llama'"),
        ({"vocab_size": 300}, "has vocab_size 300, the plan's model 260"),
        ({"tie_word_embeddings": True}, "has tie_word_embeddings True, the plan's model False"),
        ({"rms_norm_eps": -1.0}, "has norm_epsilon -1.0"),
        ({"num_attention_heads": "4"}, "num_attention_heads is '4'"),
        ({"rope_theta": 5e5}, "has rope_theta 500000.0, the plan's model 10000.0"),
    ],
)
def test_another_model_is_named_by_what_differs(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    found = said(tmp_path / "model", CONFIG | changes)
    assert message in found
    assert "rope_theta" not in said(tmp_path / "model", CONFIG | changes, rope_theta=1e6)  # the contract's own


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "[" * 100_000, "\x00"])
def test_a_broken_config_is_a_sentence(tmp_path: Path, text: str) -> None:
    assert "config.json" in said(tmp_path / "model", text)


def test_it_is_told_with_everything_else(tmp_path: Path) -> None:
    said(tmp_path / "model", CONFIG | {"num_hidden_layers": 2})
    made = finetune_runs.tiny_plan("ddp", 2, 0, 8, model=str(tmp_path / "model"), dataset=str(tmp_path / "no.jsonl"))
    with pytest.raises(ToolkitError) as caught:
        checks.check(made, 2, None, here=True)
    words = str(caught.value)
    assert "does not exist" in words and "has num_hidden_layers 2" in words


def safetensors(path: Path, **dtypes: str) -> None:
    header = {name: {"dtype": kind, "shape": [2, 2], "data_offsets": [0, 0]} for name, kind in dtypes.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def test_integers_are_no_weights_unless_the_config_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    safetensors(tmp_path / "model.safetensors", **{"a.weight": "BF16", "b.weight": "F32", "attn.mask": "U8"})
    fitting.require_floats(tmp_path)
    safetensors(tmp_path / "more.safetensors", **{"c.weight": "I8"})
    with pytest.raises(ToolkitError, match=r"weights that are no floats.*: c.weight \(I8\)"):
        fitting.require_floats(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": {"bits": 8}}))
    fitting.require_floats(tmp_path)
    for torn in (b"", b"abc", struct.pack("<Q", 2**62) + b"x", struct.pack("<Q", 4) + b"null"):
        (tmp_path / "more.safetensors").write_bytes(torn)  # the library has its own words for these
        fitting.require_floats(tmp_path)


def test_what_a_checkpoint_lacks_is_not_drawn() -> None:
    model = SimpleNamespace(all_tied_weights_keys={"lm_head.weight": "embed.weight"})
    assert fitting.require_whole("DIR", model, {"missing_keys": {"lm_head.weight"}, "unexpected_keys": set()}) == []
    with pytest.raises(ToolkitError, match="DIR lacks 1 of the model's weights, which would be random: a.weight"):
        fitting.require_whole("DIR", model, {"missing_keys": {"lm_head.weight", "a.weight"}})
    with pytest.raises(ToolkitError, match=r"another shape: a.weight \[3, 3\] \(the model needs \[2, 2\]\)"):
        fitting.require_whole("DIR", model, {"mismatched_keys": [("a.weight", (3, 3), (2, 2))]})
    (told,) = fitting.require_whole("DIR", model, {"unexpected_keys": {f"vision.{n}" for n in range(9)}})
    assert "9 tensors of DIR have no place in the model" in told and told.endswith("and 3 more")


@pytest.mark.slow
def test_damaged_folders_are_sentences(tmp_path: Path) -> None:
    """By transformers itself: a missing tensor, another shape, a torn file, an index of files that are not there."""
    from safetensors.torch import load_file, save_file

    made = finetune_runs.tiny_plan("ddp")
    tokenizer = tokenizers.load_tokenizer(made)
    models.load_model(made, tokenizer)[0].save_pretrained(tmp_path)
    file, index = tmp_path / "model.safetensors", tmp_path / "model.safetensors.index.json"
    whole = load_file(file)
    name = "model.layers.1.mlp.up_proj.weight"
    of_folder = finetune_runs.tiny_plan("ddp", model=str(tmp_path))
    assert "weights from" in models.load_model(of_folder, tokenizer)[1]
    spoil: list[tuple[Callable[[], object], str]] = [
        (lambda: save_file({k: v for k, v in whole.items() if k != name}, file, {"format": "pt"}), f"lacks 1.*{name}"),
        (lambda: save_file(whole | {name: whole[name][:3]}, file, {"format": "pt"}), rf"{name} \[3, 128\]"),
        (lambda: file.write_bytes(file.read_bytes()[:5000]), "cannot make the model"),
        (
            lambda: index.write_text(json.dumps({"metadata": {}, "weight_map": {name: "gone.safetensors"}})),
            "cannot mak",
        ),
    ]
    for damage, message in spoil:
        damage()
        if damage is spoil[-1][0]:
            file.unlink()
        with pytest.raises(ToolkitError, match=message):
            models.load_model(of_folder, tokenizer)


@pytest.mark.parametrize("source", ["my-llama/config.json", "/gone/my-llama/config.json"])
def test_a_planned_folder_that_is_not_there_is_never_drawn(source: str) -> None:
    plan = finetune_runs.tiny_plan("ddp", model=str(Path(source).parent), init="model")
    planned = msgspec.structs.replace(plan, model=msgspec.structs.replace(plan.model, source=source))
    with pytest.raises(ToolkitError, match="my-llama' is not there.* it was planned from") as error:
        model_source.require_source(planned)
    assert "absolute path" in error.value.problems[0].remedy
    model_source.require_source(plan)  # a registered shape has no folder
    drawn = msgspec.structs.replace(planned, contract=msgspec.structs.replace(planned.contract, init="random"))
    model_source.require_source(drawn)

"""``toolkit ckpt convert``: what it refuses, with the reason; what it writes is tested where there are real runs."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from toolkit.cli.ckpt_convert import command
from toolkit.errors import ToolkitError
from toolkit.runtime import checkpoint, universal, weights


def refused(*arguments: object) -> str:
    done = CliRunner().invoke(command, [str(each) for each in arguments])
    assert isinstance(done.exception, ToolkitError), done.output
    return str(done.exception)


def folder(path: Path, *names: str) -> Path:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("{}")
    return path


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    """A folder with the marks of each kind."""
    return {
        "deepspeed": folder(tmp_path / "deepspeed", "global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt"),
        "universal": folder(tmp_path / "universal", "latest_universal", "global_step3_universal/zero/w/fp32.pt"),
        "megatron": folder(tmp_path / "megatron", ".metadata", "__0_0.distcp"),
        "fsdp": folder(tmp_path / "fsdp", "pytorch_model_fsdp_0/.metadata"),
        "adapters": folder(tmp_path / "adapters", "adapter_config.json", "adapter_model.safetensors"),
        "hugging-face": folder(tmp_path / "hf", "config.json", "model.safetensors"),
    }


def test_kinds_are_told_apart(sources: dict[str, Path]) -> None:
    assert {name: weights.kind_of(path) for name, path in sources.items()} == {name: name for name in sources}


@pytest.mark.parametrize("kind", ["universal", "megatron", "fsdp", "adapters", "hugging-face"])
def test_without_states_nothing_becomes_universal(kind: str, sources: dict[str, Path], tmp_path: Path) -> None:
    assert "deepspeed-universal" not in refused(sources[kind], tmp_path / "out", "--to", "deepspeed-universal")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["deepspeed", "universal", "fsdp"])
def test_megatron_is_written_from_hugging_face_only(kind: str, sources: dict[str, Path], tmp_path: Path) -> None:
    assert "convert it --to hugging-face first" in refused(sources[kind], tmp_path / "out", "--to", "megatron")


def test_no_checkpoint_no_folder_and_what_is_there_already(sources: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    assert "none of a checkpoint of DeepSpeed" in refused(tmp_path / "nothing", tmp_path / "x", "--to", "hugging-face")
    assert "no is not there" in refused(tmp_path / "no", tmp_path / "x", "--to", "hugging-face")
    assert "--force" in refused(sources["deepspeed"], tmp_path / "nothing", "--to", "hugging-face")
    inside = refused(sources["deepspeed"] / "global_step3", tmp_path, "--to", "hugging-face", "--force")
    assert inside.startswith(str(sources["deepspeed"] / "global_step3"))  # no kind of its own, or its own parent


def test_a_damaged_one_is_named_by_file(sources: dict[str, Path], tmp_path: Path) -> None:
    source = sources["deepspeed"]
    checkpoint.commit(source, {"step": 3})
    (source / "global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt").write_text("[]")
    said = refused(source, tmp_path / "out", "--to", "deepspeed-universal")
    assert "zero_pp_rank_0_mp_rank_00_optim_states.pt is flipped" in said


def test_missing_and_empty_shards_are_named(tmp_path: Path) -> None:
    names = [f"global_step3/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 2, 3)]
    source = folder(tmp_path / "torn", *names)
    (source / names[2]).write_text("")
    with pytest.raises(ToolkitError, match="lacks the shards of ranks 1 and the bytes of zero_pp_rank_3"):
        universal.shards(source)


def test_the_folder_of_deepspeed_is_the_one_that_latest_names(tmp_path: Path) -> None:
    source = folder(tmp_path, "global_step3/a", "global_step6/a")
    with pytest.raises(ToolkitError, match="no file named latest, and 2 folders"):
        universal.tag_of(source)
    (source / "latest").write_text("global_step3")
    assert universal.tag_of(source) == "global_step3"
    (source / "latest").write_text("global_step9")
    with pytest.raises(ToolkitError, match="names global_step9, and there is no such folder"):
        universal.tag_of(source)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("empty", "1 of 3 tensors have no elements"),
        ("missing", "lacks lm_head.weight"),
        ("extra", "holds more.weight"),
        ("shape", "the model of config.json has"),
    ],
)
def test_weights_that_are_not_the_models_are_refused(change: str, said: str, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    source = tmp_path / "source"
    config = LlamaConfig(num_hidden_layers=0, hidden_size=8, vocab_size=16, num_attention_heads=1)
    config.save_pretrained(source)
    tensors = {name: torch.ones(16, 8) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    tensors["model.norm.weight"] = torch.ones(8)
    good, bad = tmp_path / "good", tmp_path / "bad"
    save_file(tensors, source / "model.safetensors")
    config_of = json.loads((source / "config.json").read_text())
    assert config_of["num_hidden_layers"] == 0
    good.mkdir()
    assert weights.hugging_face(source, good)["parameters"] == 2 * 16 * 8 + 8
    if change == "missing":
        del tensors["lm_head.weight"]
    else:
        shapes = {"empty": ("lm_head.weight", 0), "extra": ("more.weight", 8), "shape": ("lm_head.weight", 4)}
        name, size = shapes[change]
        tensors[name] = torch.ones(size, 8)
    save_file(tensors, source / "model.safetensors")
    bad.mkdir()
    with pytest.raises(ToolkitError, match=said):
        weights.hugging_face(source, bad)


JUNK = (
    b"",
    b"{}",
    b"[]",
    b"\0" * 100,
    b"PK\x03\x04" + b"x" * 50,
    b"x" * 1000,
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"model_type": 5}',
)


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("kind", ["deepspeed", "fsdp", "adapters", "hugging-face"])
def test_files_of_no_form_are_named(kind: str, junk: bytes, sources: dict[str, Path], tmp_path: Path) -> None:
    """Whatever stands in the files: a sentence, with the file where a format tells it, and nothing is written."""
    source = sources[kind]
    (source / "parameters.json").write_text('{"groups": [["w"]]}')
    for path in [each for each in source.rglob("*") if each.is_file() and each.name != "parameters.json"]:
        path.write_bytes(junk)
    for form in ("hugging-face", "deepspeed-universal"):
        said = refused(source, tmp_path / "out", "--to", form)
        assert str(source) in said and "Traceback" not in said and not (tmp_path / "out").exists()
        if kind in ("deepspeed", "hugging-face") and not junk:
            assert "is truncated (0 bytes)" in said


@pytest.mark.slow
def test_what_a_library_does_not_understand_is_a_sentence(sources: dict[str, Path], tmp_path: Path) -> None:
    """Formats that are sound, with other things in them than are looked for."""
    import torch
    from safetensors.torch import save_file

    source = sources["hugging-face"]
    save_file({"w": torch.zeros(2, 2)}, source / "model.safetensors")
    for content in ("[]", "{}", '{"model_type": 5}', '{"model_type": "none such"}'):
        (source / "config.json").write_text(content)
        said = refused(source, tmp_path / "out", "--to", "hugging-face")
        assert said.startswith(f"cannot convert {source}") and "convert another checkpoint" in said
    (source / "parameters.json").write_text('{"groups": [["w"]]}')
    for state in ({}, [], 5, {"param_groups": [{}]}, {"state": {}, "param_groups": 3}):
        torch.save(state, source / "optimizer.pt")
        assert f"cannot convert {source}" in refused(source, tmp_path / "out", "--to", "deepspeed-universal")
    assert not list(tmp_path.glob(".*"))

"""Registered models, paths, sizes: every way to name a model ends in a ModelSpec or a sentence."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.estimate.parameters import count_parameters
from toolkit.registry import files
from toolkit.registry.models import load_model, model_from_text, names
from toolkit.registry.sizes import NOMINAL, shape_of_size

PUBLISHED = json.loads((Path(__file__).parents[1] / "published" / "parameter_counts.json").read_text())["models"]


def test_every_registered_model_decodes_without_assumptions_and_has_a_source() -> None:
    assert len(names()) >= 200
    for name in names():
        spec = load_model(name)
        assert spec.source, name
        assert [note for note in spec.notes if "assumed" in note] == [], name
        assert count_parameters(spec).total > 0, name


def test_every_published_model_is_registered_with_its_count() -> None:
    for row in PUBLISHED:
        count = count_parameters(load_model(row["name"]))
        assert (count.total, count.active) == (row["total"], row.get("active", row["total"])), row["name"]


def test_no_alias_means_two_models() -> None:
    known: dict[str, str] = {}
    for entry in files.entries("models").values():
        for name in (entry.name, *entry.values.get("aliases", [])):
            assert known.setdefault(files.normal(name), entry.name) == entry.name, name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("LLAMA-2-7B", "llama-2-7b"),
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("unsloth/Qwen3-1.7B-bnb-4bit", "qwen3-1.7b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("qwen3 32b", "qwen3-32b"),
        ("llama3:8b", "llama-3-8b"),
    ],
)
def test_names_as_people_write_them(text: str, name: str) -> None:
    assert load_model(text).name == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lama-2-7b", "did you mean llama-2-7b"),
        ("somebody/nothing-like-it", "unknown model"),
        ("", "empty"),
        ("./nowhere/config.json", "no such file"),
        ("~nobody/x", "no such file"),
        ("\0", "unknown model"),
        ("x" * 5000, "unknown model"),
    ],
)
def test_unknown_names(text: str, said: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        load_model(text)
    assert said in str(caught.value)


CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 100, "tie_word_embeddings": False,
}  # fmt: skip


def test_a_config_file_or_the_folder_that_holds_it(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "other.json").write_text("\ufeff" + json.dumps(CONFIG))
    total = 2 * (4 * 64 * 64 + 3 * 64 * 96 + 2 * 64) + 2 * 100 * 64 + 64
    for text, name in ((str(folder), "my-model"), (str(folder / "config.json"), "my-model"),
                       (str(tmp_path / "other.json"), "other")):  # fmt: skip
        spec = load_model(text)
        assert (spec.name, count_parameters(spec).total) == (name, total)


def test_infinity_as_transformers_saves_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | {"time_step_limit": [0.0, float("inf")]}))
    assert "Infinity" in path.read_text()
    assert load_model(str(path)).hidden_size == 64


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[1, 2]", "not an object"),
        (b'"llama"', "not an object"),
        (b"null", "not an object"),
        (b"{}", "no model_type"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"model_type": "llama"}', "missing"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ToolkitError) as caught:
        load_model(str(path))
    assert said in str(caught.value)


def test_folders_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="holds no config.json"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ToolkitError, match="cannot be read"):
        load_model(str(tmp_path))


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOOLKIT_DATA", str(tmp_path))
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def toml(**keys: object) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())


def test_the_users_own_folder_comes_first(own_folder: Path) -> None:
    (own_folder / "mine.toml").write_text(toml(name="Mine 1", aliases=["m1"], source="me", **CONFIG))
    (own_folder / "hides.toml").write_text("[llama-2-7b]\n" + toml(source="me", **CONFIG))
    assert load_model("mine_1").source == load_model("M1").source == "me"
    assert load_model("llama-2-7b").hidden_size == 64
    assert load_model("llama-2-13b").hidden_size == 5120


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hidden_size = ", "mine.toml"),
        ("hidden_size = 64\n", "hidden_size outside any table"),
        ("[mine]\nmodel_type = 'llama'\nhidden_size = -1\n", "mine in "),
    ],
)
def test_broken_files_of_ones_own_are_named(own_folder: Path, text: str, said: str) -> None:
    (own_folder / "mine.toml").write_text(text)
    with pytest.raises(ToolkitError) as caught:
        load_model("mine")
    assert said in str(caught.value)


def test_sizes_that_people_call_a_model_by_mean_that_model() -> None:
    for size, name in NOMINAL.items():
        model = shape_of_size(size)
        total = count_parameters(model).total
        assert abs(total - size) <= 0.05 * size
        if abs(count_parameters(load_model(name)).total - size) <= 0.05 * size:
            assert model.name == name
            assert f"taken as the {name} shape: {total:,} parameters" in model.notes[0]


def test_7b_is_llama_2_7b_and_says_so() -> None:
    model = model_from_text("7B")
    assert count_parameters(model).total == 6_738_415_616
    assert model.notes == ("7B parameters is taken as the llama-2-7b shape: 6,738,415,616 parameters",)


@settings(max_examples=60, deadline=None)
@given(st.floats(7.05, 13.2))
def test_any_other_size_is_scaled_to_within_two_percent(exponent: float) -> None:
    parameters = int(10**exponent)
    model = shape_of_size(parameters)
    total = count_parameters(model).total
    assert abs(total - parameters) <= 0.02 * parameters or parameters in NOMINAL
    assert model.hidden_size % 128 == 0
    assert model.num_attention_heads % model.num_key_value_heads == 0
    assert model.num_attention_heads * model.head_dim == model.hidden_size or model.name.startswith(
        ("mistral", "qwen3")
    )
    assert f"{total:,} parameters" in model.notes[0]
    if parameters > 1e9:  # heads, groups and widths that tensor parallelism by 8 or by the groups divides
        assert model.num_attention_heads % min(model.num_key_value_heads, 8) == 0
        assert model.num_hidden_layers % 2 == 0


@settings(max_examples=60, deadline=None)
@given(st.floats(8.5, 13.2))
def test_a_scaled_shape_has_the_proportions_of_dense_models(exponent: float) -> None:
    """Width, depth and MLP grow together: MLPs of 2 to 5.1 times the width, also where the base's is wider (6.4)."""
    model = shape_of_size(int(10**exponent))
    assert "scaled" not in model.name or 2.0 <= model.intermediate_size / model.hidden_size <= 5.1
    assert model.num_hidden_layers % 2 == 0


@pytest.mark.parametrize("parameters", [27_500_000_000, 30_000_000_000, 1_300_000_000])
def test_a_base_with_a_wide_mlp_lends_its_other_proportions_only(parameters: int) -> None:
    """Mistral Small 24B has 6.4, Qwen2.5-32B 5.4 and Qwen2.5-1.5B 5.8 times its width."""
    model = shape_of_size(parameters)
    assert 3.8 < model.intermediate_size / model.hidden_size < 4.3
    assert abs(count_parameters(model).total - parameters) <= 0.003 * parameters


@pytest.mark.parametrize("parameters", [0, -5, 1000, 10**17])
def test_sizes_out_of_reach(parameters: int) -> None:
    with pytest.raises(ToolkitError, match="outside what a dense shape is made for"):
        shape_of_size(parameters)


@pytest.mark.parametrize(
    ("text", "name", "total"),
    [
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b", 6_738_415_616),
        ("8x7B", "mixtral-8x7b", 46_702_792_704),
        ("8x22b", "mixtral-8x22b", 140_630_071_296),
        ("google/gemma-3-1b-it", "gemma-3-1b", 999_885_952),
        ("70B-instruct", "llama-3.1-70b", 70_553_706_496),
    ],
)
def test_a_registered_name_wins_over_the_size_in_it(text: str, name: str, total: int) -> None:
    model = model_from_text(text)
    assert (model.name, count_parameters(model).total) == (name, total)


@pytest.mark.parametrize("text", ["70", "tinyllama", "phi3:mini", "abc35b!!", "-7B", "NaN", ""])
def test_sizes_that_are_not_guessed(text: str) -> None:
    with pytest.raises(ToolkitError):
        model_from_text(text)

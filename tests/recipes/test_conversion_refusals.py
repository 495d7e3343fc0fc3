"""Conversions between Hugging Face and megatron-core that cannot be: damaged sources, no room, no place."""

import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import load_file, save_file

from recipes.pretrain import convert, prepare
from recipes.pretrain.hugging_face import place
from tests.recipes.test_hugging_face import LLAMA
from toolkit.errors import ToolkitError
from toolkit.runtime import checkpoint, found

ROOT = Path(__file__).parents[2]
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
CONFIG = LLAMA | SMALL | {"num_key_value_heads": 4, "vocab_size": 260, "head_dim": 8, "architectures": ["X"]}
LAYER = {
    "self_attn.q_proj": (32, 32),
    "self_attn.k_proj": (32, 32),
    "self_attn.v_proj": (32, 32),
    "self_attn.o_proj": (32, 32),
    "mlp.gate_proj": (48, 32),
    "mlp.up_proj": (48, 32),
    "mlp.down_proj": (32, 48),
    "input_layernorm": (32,),
    "post_attention_layernorm": (32,),
}


def run(command: str, *arguments: object, blocks: int = 0) -> tuple[int, str, str]:
    """Exit code, output and errors; ``blocks``: files may not become longer than so many KiB, as on a full disk."""
    start = {
        "convert": [sys.executable, "-m", "recipes.pretrain.convert"],
        "toolkit": [sys.executable, "-m", "toolkit"],
    }[command]
    line = [*start, *map(str, arguments)]
    if blocks:
        line = ["bash", "-c", f"ulimit -f {blocks}; exec {shlex.join(line)}"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=300, env=os.environ)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama of random numbers."""
    folder = tmp_path_factory.mktemp("models") / "llama"
    folder.mkdir()
    draw = numpy.random.default_rng(1)
    shapes = {f"model.layers.0.{name}.weight": shape for name, shape in LAYER.items()}
    shapes |= {"model.embed_tokens.weight": (260, 32), "lm_head.weight": (260, 32), "model.norm.weight": (32,)}
    tensors = {name: draw.standard_normal(shape, dtype=numpy.float32) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture(scope="module")
def megatron(model: Path) -> Path:
    """What ``to-megatron`` makes of it."""
    code, _, said = run("convert", "to-megatron", model, "--out", model.parent / "megatron")
    assert (code, said) == (0, "")  # no manifest is missed of a model as everybody gives it away
    return model.parent / "megatron"


@pytest.mark.slow
def test_what_is_written_vouches_for_itself_and_comes_back_without_warnings(model: Path, megatron: Path) -> None:
    assert found.require_sound(megatron)
    facts = checkpoint.facts(megatron)
    assert (facts["step"], facts["framework"], facts["world_size"], facts["tp"]) == (0, "megatron", 1, 1)
    assert [each.kind for each in found.look(megatron)] == ["toolkit"] and found.look(megatron)[0].damage() == []
    assert not (megatron.parent / "latest").exists()
    back = model.parent / "back"
    code, _, said = run("toolkit", "ckpt", "convert", megatron, back, "--to", "hugging-face")
    assert (code, said) == (0, "")
    tensors, again = load_file(model / "model.safetensors"), load_file(back / "model.safetensors")
    assert set(tensors) == set(again) and all((tensors[name] == again[name]).all() for name in tensors)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "truncated": ("__0_1.distcp", lambda path: os.truncate(path, path.stat().st_size // 2)),
    "gone": ("__0_0.distcp", Path.unlink),
    "noise": (".metadata", lambda path: path.write_bytes(bytes(range(1, 200)) * 9)),
    "no common": ("common.pt", Path.unlink),
    "torn common": ("common.pt", lambda path: os.truncate(path, path.stat().st_size // 2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("manifest", [True, False])
def test_damaged_files_are_named(manifest: bool, megatron: Path, tmp_path: Path) -> None:
    for kind, (name, change) in DAMAGE.items():
        damaged = tmp_path / kind
        shutil.copytree(megatron, damaged)
        change(damaged / name)
        if not manifest:
            (damaged / checkpoint.MANIFEST).unlink()
        with pytest.raises(ToolkitError, match=f"is damaged: {name} is "):
            found.require_sound(damaged)


@pytest.mark.slow
def test_both_programs_refuse_one_flipped_bit_alike(megatron: Path, tmp_path: Path) -> None:
    damaged, out = tmp_path / "damaged", tmp_path / "out"
    shutil.copytree(megatron, damaged)
    flip(damaged / "__0_1.distcp")
    one = run("convert", "to-hf", damaged, "--out", out)
    two = run("toolkit", "ckpt", "convert", damaged, out, "--to", "hugging-face")
    assert one == two
    assert one[0] == 2 and "__0_1.distcp is flipped (SHA-256 " in one[2] and len(one[2].splitlines()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("command", ["to-megatron", "to-hf", "hugging-face"])
def test_without_room_the_old_result_stays_and_nothing_else(
    command: str, model: Path, megatron: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").touch()
    if command == "hugging-face":
        arguments = ("toolkit", "ckpt", "convert", model, out, "--to", command, "--force")
    else:
        source = {"to-megatron": model, "to-hf": megatron}[command]
        arguments = ("convert", command, source, "--out", out, "--force")
    code, _, said = run(*arguments, blocks=16)
    assert code == 2 and f"cannot write {out}: " in said and "make room" in said, said
    assert "Traceback" not in said and len(said.splitlines()) == 2
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == ["out", "out/old"]


def test_places_where_nothing_can_be_are_told_by_their_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ToolkitError, match="file is a file: there can be no .*file/a/x") as raised:
        convert._require_place(tmp_path, tmp_path / "file" / "a" / "x", False)
    assert "room" not in str(raised.value)
    for number, room in ((errno.ENOSPC, True), (errno.EROFS, False), (errno.EACCES, False)):
        said = str(place.unwritable(tmp_path, OSError(number, os.strerror(number), "a file within")))
        assert os.strerror(number) in said and ("make room" in said) == room and "a file within" not in said
    with pytest.raises(ToolkitError, match="gone does not exist"):
        convert._require_place(tmp_path / "gone", tmp_path / "x", False)
    place.require_place(tmp_path / "new" / "x")


def test_a_result_takes_the_place_of_the_old_one_at_once(tmp_path: Path) -> None:
    out, new = tmp_path / "out", tmp_path / ".out.incomplete"
    for folder, name in ((out, "old"), (new, "new")):
        folder.mkdir()
        (folder / name).touch()
    place.complete(out, new)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["new", "out"]
    with pytest.raises(FileNotFoundError):
        place.complete(out, new)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["new", "out"]


def test_one_file_exists_and_several_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for endings, said in (((".bin",), "x.bin exists"), ((".bin", ".idx"), "x.idx exist\n")):
        for ending in endings:
            (tmp_path / f"x{ending}").touch()
        assert prepare.main(["--dataset", "d", "--tokenizer", "byte", "--out", str(tmp_path / "x")]) == 2
        assert said in capsys.readouterr().err

"""Bare checkpoints of frameworks: what is damaged is named by file, and the newest sound one is picked."""

import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.runtime import checkpoint, found, soundness
from toolkit.runtime.found import Found


def torch_file(path: Path, **values: int) -> None:
    """What torch.save writes: an archive with a pickle and records, each with its CRC-32."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/data.pkl", pickle.dumps(values))
        archive.writestr(f"{path.stem}/data/0", bytes(range(256)) * 8)


def safetensors(path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(range(64)))


def deepspeed(folder: Path, ranks: int = 2, stage: int = 2) -> Path:
    for rank in range(ranks):
        torch_file(folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        if stage == 3:
            torch_file(folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", dp_world_size=ranks, mp_world_size=1)
    if stage < 3:
        torch_file(folder / "mp_rank_00_model_states.pt", dp_world_size=ranks, mp_world_size=1)
    return folder


def hugging_face(folder: Path, ranks: int = 2) -> Path:
    safetensors(folder / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", *(f"rng_state_{rank}.pth" for rank in range(ranks))):
        torch_file(folder / name)
    step = int(folder.name.rpartition("-")[2])
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return folder


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_save_under_way_is_no_checkpoint_of_a_run_of_this_toolkit(tmp_path: Path) -> None:
    """The Trainer has written all of it and the manifest is not there yet: a start would set it aside."""
    for step in (10, 20):
        hugging_face(tmp_path / f"checkpoint-{step}")
    assert [each.is_valid() for each in found.look(tmp_path)] == [True, True]  # of another program
    checkpoint.commit(tmp_path / "checkpoint-10", {"step": 10, "world_size": 2})
    older, newest = found.look(tmp_path)
    assert older.damage() == [] and found.newest_valid([older, newest]) == older
    assert [(each.file, each.kind) for each in newest.damage()] == [("manifest.json", "missing")]
    assert checkpoint.set_aside_incomplete(tmp_path) == [tmp_path / "incomplete-20"]
    (aside,) = found.look(tmp_path / "incomplete-20")  # a start names it: whoever asks why is told
    assert [(each.file, each.kind) for each in aside.damage()] == [("manifest.json", "missing")]


def test_after_a_power_cut_the_newest_two_are_empty_and_the_pointer_is_gone(tmp_path: Path) -> None:
    """DeepSpeed only warns that it cannot find ``latest``, and the run begins at step 0."""
    deepspeed(tmp_path / "global_step400")
    for step in (410, 420):
        for path in files(deepspeed(tmp_path / f"global_step{step}")):
            path.write_bytes(b"")
    rows = found.look(tmp_path)
    assert [(each.name, each.is_valid()) for each in rows] == [
        ("global_step400", True),
        ("global_step410", False),
        ("global_step420", False),
    ]
    assert {each.kind for each in rows[-1].damage()} == {"truncated"}
    chosen = found.newest_valid(rows)
    assert chosen is not None and chosen.name == "global_step400"
    assert found.pointer(tmp_path, chosen) == (tmp_path / "latest", "global_step400")


@pytest.mark.parametrize(
    ("lost", "stage"),
    [
        ("bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", 2),
        ("bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt", 2),  # the last: only dp_world_size tells of it
        ("zero_pp_rank_3_mp_rank_00_model_states.pt", 3),
        ("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", 3),
        ("mp_rank_00_model_states.pt", 2),
    ],
)
def test_the_shard_of_a_rank_that_never_wrote(tmp_path: Path, lost: str, stage: int) -> None:
    folder = deepspeed(tmp_path / "global_step10", ranks=4, stage=stage)
    assert Found(folder, "deepspeed", 10).damage() == []
    (folder / lost).unlink()
    assert [(each.file, each.kind) for each in Found(folder, "deepspeed", 10).damage()] == [(lost, "missing")]


def test_the_universal_form_has_no_shards(tmp_path: Path) -> None:
    """With a manifest or without one; a weight that is lost is named."""
    inner = tmp_path / "checkpoint-3" / "global_step3_universal"
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"):
        torch_file(inner / name, dp_world_size=2)
    for name in ("fp32", "exp_avg", "exp_avg_sq"):
        torch_file(inner / "zero" / "w" / f"{name}.pt")
    (bare,) = found.look(inner.parent)
    assert (bare.name, bare.kind, bare.damage()) == ("global_step3_universal", "deepspeed", [])
    checkpoint.commit(inner.parent, {"step": 3})
    (row,) = found.look(inner.parent)
    assert (row.name, row.kind, row.damage()) == ("checkpoint-3", "toolkit", [])
    (inner / "zero" / "w" / "fp32.pt").unlink()
    assert [each.file for each in bare.damage()] == ["zero/w/fp32.pt"]


def test_a_save_of_the_trainer_that_was_not_finished(tmp_path: Path) -> None:
    hugging_face(tmp_path / "checkpoint-100")
    (hugging_face(tmp_path / "checkpoint-200") / "trainer_state.json").unlink()
    (hugging_face(tmp_path / "checkpoint-300") / "model.safetensors").unlink()
    (hugging_face(tmp_path / "checkpoint-400") / "rng_state_0.pth").unlink()
    rows = found.look(tmp_path)
    assert [[each.file for each in row.damage()] for row in rows] == [
        [],
        ["trainer_state.json"],
        ["model.safetensors"],
        ["rng_state_0.pth"],
    ]
    chosen = found.newest_valid(rows)
    assert chosen is not None and chosen.step == 100
    assert found.pointer(tmp_path, chosen) is None


def test_the_pointer_inside_of_a_trainers_checkpoint(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path / "checkpoint-7")
    (folder / "model.safetensors").unlink()
    deepspeed(folder / "global_step7")
    (damage,) = Found(folder, "huggingface", 7).damage()
    assert (damage.file, damage.kind, damage.fatal) == ("latest", "pointer", False)
    (folder / "latest").write_text("global_step7")
    assert Found(folder, "huggingface", 7).damage() == []


def test_shards_of_an_index(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path / "checkpoint-1")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00003.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00003.safetensors", "b": "model-00002-of-00003.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    missing = {each.file for each in Found(folder, "huggingface", 1).damage()}
    assert missing == {"model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"}


def test_megatron_before_distributed_checkpoints(tmp_path: Path) -> None:
    for tp in range(2):
        for pp in range(2):
            torch_file(tmp_path / "iter_0000500" / f"mp_rank_{tp:02d}_{pp:03d}" / "model_optim_rng.pt")
    (row,) = found.look(tmp_path)
    assert (row.kind, row.step, row.damage()) == ("megatron", 500, [])
    assert found.pointer(tmp_path, row) == (tmp_path / "latest_checkpointed_iteration.txt", "500")
    (row.path / "mp_rank_01_001" / "model_optim_rng.pt").unlink()
    assert [each.file for each in row.damage()] == ["mp_rank_01_001/model_optim_rng.pt"]


def test_tags_of_any_name_are_ordered_by_their_number_or_their_time(tmp_path: Path) -> None:
    for number, name in enumerate(("epoch9", "epoch10", "step_11")):
        deepspeed(tmp_path / name)
        os.utime(tmp_path / name, (number, number))
    assert [each.name for each in found.look(tmp_path)] == ["epoch9", "epoch10", "step_11"]


def test_one_checkpoint_is_looked_at_as_it_is(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path / "checkpoint-5")
    deepspeed(folder / "global_step5")
    assert [each.path for each in found.look(folder)] == [folder]
    (tmp_path / "tag").mkdir()
    assert [each.path for each in found.look(deepspeed(tmp_path / "best"))] == [tmp_path / "best"]
    with pytest.raises(ToolkitError, match="nowhere is not there"):
        found.look(tmp_path / "nowhere")


def test_a_folder_that_cannot_be_read_is_broken_and_not_an_error(tmp_path: Path) -> None:
    """A file in the place of the folder that a name promises fails like a missing right does, also for root."""
    deepspeed(tmp_path / "global_step1")
    folder = deepspeed(tmp_path / "global_step2")
    inner = folder / "mp_rank_00_model_states.pt"
    inner.unlink()
    inner.mkdir()
    rows = found.look(tmp_path)
    assert [row.is_valid() for row in rows] == [True, False]


DAMAGE = st.sampled_from(["empty", "half", "zeros", "last byte gone", "flip"])


@settings(max_examples=60, deadline=None)
@given(
    how=DAMAGE, place=st.floats(0, 1, exclude_max=True), kind=st.sampled_from([deepspeed, hugging_face]), at=st.data()
)
def test_any_file_of_any_framework(tmp_path_factory: pytest.TempPathFactory, how: str, place: float, kind, at) -> None:
    folder = kind(tmp_path_factory.mktemp("any") / "checkpoint-3")
    row = Found(folder, found.kind_of(folder), 3)
    assert row.damage() == []
    path = at.draw(st.sampled_from([each for each in files(folder) if each.suffix != ".json"]))
    content = bytearray(path.read_bytes())
    if how == "flip" and path.suffix == ".safetensors":
        return  # nothing in the format tells of a flipped weight: this is what manifests are for
    if how == "flip":
        with zipfile.ZipFile(path) as archive:  # in the records themselves; most of the rest is never read
            record = archive.infolist()[1]
        content[record.header_offset + 60 + int(place * (record.file_size - 60))] ^= 0x10
    changed = {
        "empty": b"",
        "half": content[: len(content) // 2],
        "zeros": bytes(len(content)),
        "last byte gone": content[:-1],
        "flip": content,
    }[how]
    path.write_bytes(changed)
    assert [each.file for each in row.damage() if each.fatal] == [str(path.relative_to(folder))]


@settings(max_examples=40, deadline=None)
@given(place=st.integers(0, 10**6), how=DAMAGE)
def test_any_file_of_a_committed_one(tmp_path_factory: pytest.TempPathFactory, place: int, how: str) -> None:
    run = tmp_path_factory.mktemp("run")
    path = checkpoint.begin(run, 3)
    hugging_face(path)
    checkpoint.commit(path, {"step": 3, "world_size": 2})
    victim = files(path)[place % len(files(path))]
    content = bytearray(victim.read_bytes())
    content[place % len(content)] ^= 1 << (place % 8)
    changed = {
        "empty": b"",
        "half": content[: len(content) // 2],
        "zeros": bytes(len(content)),
        "last byte gone": content[:-1],
        "flip": content,
    }[how]
    victim.write_bytes(changed)
    (row,) = found.look(run)
    if victim.name != checkpoint.MANIFEST:
        assert [each.file for each in row.damage()] == [victim.name]
        assert checkpoint.newest_valid(run) is None
    elif how in ("empty", "half", "zeros"):  # a flipped digit of a fact is another fact, the last byte a line's end
        assert not row.is_valid()


def test_nothing_in_a_pickle_is_executed(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return (os.system, (f"touch {tmp_path}/executed",))

    (tmp_path / ".metadata").write_bytes(pickle.dumps({"a": Evil()}))
    soundness.check(tmp_path, ".metadata")
    soundness.shards_of(tmp_path, ".metadata")
    assert not (tmp_path / "executed").exists()


@pytest.mark.slow
def test_what_torch_itself_writes(tmp_path: Path) -> None:
    """torch.save with and without its archive, and a distributed checkpoint, whole and damaged."""
    import torch
    from torch.distributed import checkpoint as distributed

    folder = tmp_path / "step_5"
    distributed.save({"w": torch.randn(300), "x": torch.randn(7, 7)}, checkpoint_id=folder, no_dist=True)
    row = Found(folder, found.kind_of(folder), 5)
    assert (row.kind, row.damage()) == ("torch", [])
    (shard,) = folder.glob("*.distcp")
    content = shard.read_bytes()
    for broken in (b"", content[:-200]):
        shard.write_bytes(broken)
        assert [(each.file, each.kind) for each in row.damage()] == [(shard.name, "truncated")]
    shard.unlink()
    assert [(each.file, each.kind) for each in row.damage()] == [(shard.name, "missing")]
    shard.write_bytes(content)
    (folder / ".metadata").unlink()
    assert [(each.file, each.kind) for each in row.damage()] == [(".metadata", "missing")]

    states = {"module": {"w": torch.randn(50)}, "dp_world_size": 3}
    torch.save(states, tmp_path / "new.pt")
    torch.save(states, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert [soundness.check(tmp_path, name) for name in ("new.pt", "old.pt")] == [None, None]
    assert soundness.facts_in(tmp_path / "new.pt") == {"dp_world_size": 3}


def test_thousands_of_the_trainer_are_listed_in_a_time_that_grows_with_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a manifest lies beside one is looked for once, not for each of them among all."""
    for step in range(1, 61):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    looks = list[bool]()
    is_file = Path.is_file

    def counted(path: Path) -> bool:
        looks.append(path.name == found.MANIFEST)
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", counted)
    assert [each.step for each in found.look(tmp_path) if each.damage(deep=False) is not None] == list(range(1, 61))
    assert sum(looks) <= 3 * 60
    (tmp_path / "checkpoint-61").mkdir()
    (tmp_path / "checkpoint-61" / found.MANIFEST).write_text("{}")
    assert not any(each.is_valid(deep=False) for each in found.look(tmp_path))

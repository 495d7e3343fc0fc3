"""The speed of the storage: one slow write is no reason to do without a node, a slow node of a large job is."""

import os
import socket
from pathlib import Path

import msgspec
import pytest

from toolkit.cli.preflight import _tell
from toolkit.runtime import checkpoint
from toolkit.runtime.preflight import alone, probe, result, storage
from toolkit.runtime.preflight.request import Request
from toolkit.runtime.preflight.run import run
from toolkit.runtime.preflight.storage import StorageFacts
from toolkit.runtime.preflight.verdict import Verdict, judge


def request(checkpoint: float, planned: float, folder: Path = Path("/nowhere"), nodes: int = 3) -> Request:
    return Request(
        plan_sha256="",
        contract_sha256="",
        output_directory=str(folder),
        run_id="1-0",
        nodes=nodes,
        checkpoint_bytes=checkpoint,
        checkpoint_seconds=planned,
    )


def found(asked: Request, **speeds: float) -> list[tuple[str, tuple[str, ...], str]]:
    nodes = {
        name: StorageFacts(free_bytes=1e15, free_inodes=-1, bytes_per_second=speed) for name, speed in speeds.items()
    }
    return [(each.check, each.nodes, each.severity) for each in storage.judge(asked, nodes)]


def test_a_node_that_writes_slowly_is_bad_where_the_checkpoint_is_large() -> None:
    # 100 GB a node: 50 s at 2 GB/s as planned, 1,000 s at 0.1 GB/s
    assert found(request(300e9, 50.0), a=2e9, b=2e9, c=0.1e9) == [("storage", ("c",), "error")]
    # 1 GB a node: 10 s at 0.1 GB/s, which is soon over
    assert found(request(3e9, 0.5), a=2e9, b=2e9, c=0.1e9) == [("storage", ("c",), "warning")]
    # slower than the others, who are faster than planned: 500 s are 2.5 times the plan's
    assert found(request(300e9, 200.0), a=2e9, b=2e9, c=0.2e9) == [("storage", ("c",), "warning")]


def test_three_times_slower_than_the_others_is_not_said() -> None:
    assert found(request(300e9, 50.0), a=2e9, b=2e9, c=0.7e9) == []


def test_a_warning_leaves_the_node_in() -> None:
    nodes = {
        name: StorageFacts(free_bytes=1e15, bytes_per_second=speed)
        for name, speed in {"a": 1e9, "b": 1e9, "c": 1e6}.items()
    }
    assert judge(storage.judge(request(3e6, 0.1), nodes), tuple(nodes)) == (0, ())


def test_the_fastest_of_several_writes_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is held up once, by a flush that takes long; the other writes are as fast as it is."""
    held, flush = [0.5, 0.0, 0.0], os.fsync

    def slow(descriptor: int) -> None:
        probe.time.sleep(held.pop(0))
        flush(descriptor)

    monkeypatch.setattr(probe, "WRITE_BYTES", 2**20)
    monkeypatch.setattr(probe, "CHUNK", 2**20)
    monkeypatch.setattr(os, "fsync", slow)
    measured = storage.facts(request(1.0, 1.0, tmp_path), 0)
    assert held == [] and not measured.error
    assert measured.bytes_per_second > 2**20 / 0.5  # the first write alone is slower than this
    assert list((tmp_path / storage.FOLDER).iterdir()) == []


def test_the_first_nodes_folder_is_told_from_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "SHARED_SECONDS", 0.0)
    asked = request(1.0, 1.0, tmp_path)
    (tmp_path / storage.FOLDER).mkdir()
    assert not storage.sees_first(asked)
    storage.token_file(asked).touch()
    assert storage.sees_first(asked)


@pytest.mark.parametrize("run_id", ["project/7", "../../evil", "x" * 300, "a\nb", ""])
def test_a_name_of_the_start_need_not_be_one_of_a_file(tmp_path: Path, run_id: str) -> None:
    """``--run-id`` is any text; what an earlier start has left may be a folder."""
    asked = msgspec.structs.replace(request(1.0, 1.0, tmp_path), run_id=run_id)
    (tmp_path / storage.FOLDER / "left").mkdir(parents=True)
    alone.prepare(asked)
    assert storage.sees_first(asked)
    assert [path.parent for path in tmp_path.rglob("token-*")] == [tmp_path / storage.FOLDER]
    assert storage.token_file(asked) != storage.token_file(msgspec.structs.replace(asked, run_id=f"{run_id}2"))


def test_checkpoints_that_are_there_need_no_more_room(tmp_path: Path) -> None:
    """A job that is started again has most of its checkpoints already."""
    asked = request(10e9, 10.0, tmp_path)  # keeps two, and one more while the next is written
    said = []
    for count in range(4):
        facts = StorageFacts(free_bytes=15e9, bytes_per_second=1e9, checkpoints=count)
        said.append([each.message for each in storage.judge(asked, {"n1": facts})])
    assert "3 checkpoints of 9.313 GiB need 27.94 GiB" in said[0][0] and "2 checkpoints" in said[1][0]
    assert said[2] == said[3] == []
    short = storage.judge(asked, {"n1": StorageFacts(free_bytes=5e9, bytes_per_second=1e9, checkpoints=2)})
    assert "one more checkpoint needs 9.313 GiB" in short[0].message

    assert storage.facts(asked, 0).checkpoints == 0
    for step in (1, 2):
        written = checkpoint.begin(tmp_path, step)
        (written / "weights").write_bytes(b"x")
        checkpoint.commit(written, {"step": step})
    (tmp_path / "checkpoint-3").mkdir()  # torn
    assert storage.facts(asked, 0).checkpoints == 2


def test_of_two_nodes_that_see_two_folders_none_is_to_blame() -> None:
    nodes = {name: StorageFacts(free_bytes=1e15, bytes_per_second=1e9, shared=name == "a") for name in "ab"}
    (trouble,) = storage.judge(request(1e9, 1.0, nodes=2), nodes)
    assert trouble.nodes == () and str(trouble).startswith("on b /nowhere is not the folder that the first node")
    nodes["c"] = nodes["a"]
    (trouble,) = storage.judge(request(1e9, 1.0), nodes)
    assert trouble.nodes == ("b",)


def test_a_port_that_another_program_has_is_the_first_nodes_fault(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        asked = msgspec.structs.replace(request(1.0, 1.0, tmp_path, 2), port=taken.getsockname()[1])
        verdict = run(asked, 0, "n1")
    assert (verdict.exit_code, verdict.bad_nodes) == (76, ("n1",))
    assert "cannot listen on port" in verdict.troubles[0].message
    assert (tmp_path / "preflight.bad").read_text() == "n1\n"
    fit = Verdict(run_id="next", exit_code=0, bad_nodes=(), nodes=("n1", "n2"), troubles=())
    result.write(asked, fit)
    assert (tmp_path / "preflight.json").exists() and not (tmp_path / "preflight.bad").exists()


def test_one_node_is_one_node(capsys: pytest.CaptureFixture[str]) -> None:
    for count, said in ((1, "preflight: 1 node, fit, 1.5 s"), (2, "preflight: 2 nodes, fit, 1.5 s")):
        names = tuple(f"n{each}" for each in range(count))
        _tell(Verdict(run_id="r", exit_code=0, bad_nodes=(), nodes=names, troubles=(), seconds=1.5), 0, False)
        assert capsys.readouterr().out == f"{said}\n"


def test_what_a_torn_save_left_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The save that was killed has filled the disk; the next one deletes what it left, where there is a whole one."""
    none_left = os.statvfs_result((4096, 4096, 10**6, 10**4, 10**3, 10**6, 90, 80, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: none_left)
    asked = request(8 * 2**20, 10.0, tmp_path)  # 4 MB are free
    for name in ("checkpoint-9", "incomplete-8"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / "weights").write_bytes(os.urandom(6 * 2**20))
    before = storage.facts(asked, 0)
    assert (before.free_bytes, before.free_inodes) == (4096e3, 80)
    for step in (1, 2):
        written = checkpoint.begin(tmp_path, step)
        (written / "weights").write_bytes(b"x")
        checkpoint.commit(written, {"step": step})
    found = storage.facts(asked, 0)
    assert (found.free_bytes, found.free_inodes) == (4096e3 + 2 * 6 * 2**20, 82)
    assert [each.message for each in storage.judge(asked, {"n1": found}) if "MiB free" in each.message] == []

"""The speed of the storage: one slow write is no reason to do without a node, a slow node of a large job is."""

import os
from pathlib import Path

import pytest

from toolkit.runtime.preflight import storage
from toolkit.runtime.preflight.request import Request
from toolkit.runtime.preflight.storage import StorageFacts
from toolkit.runtime.preflight.verdict import judge


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
        storage.time.sleep(held.pop(0))
        flush(descriptor)

    monkeypatch.setattr(storage, "WRITE_BYTES", 2**20)
    monkeypatch.setattr(storage, "CHUNK", 2**20)
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

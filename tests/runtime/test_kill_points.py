"""kill -9, power cuts, full disks and failing fsyncs at every operation of a save: nothing is lost."""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests import kill_points
from tests.killing import faults, program, ranks
from tests.killing.faults import Fault, Journal
from toolkit.runtime import checkpoint, durable, sums

THIRD = kill_points.SCENARIOS[1]


def rows(sizes: list[int], kinds: tuple[str, ...], scenarios: tuple[kill_points.Scenario, ...]) -> list:
    found = list(kill_points.table(sizes, list(kinds), scenarios))
    assert [row for row in found if row.problems] == []
    return found


def test_a_kill_at_each_operation_of_a_save_with_pruning() -> None:
    found = rows([2], ("kill",), (THIRD,))
    operations = {row.operation.partition(" ")[0] for row in found}
    assert operations == {"mkdir", "fsync-directory", "open", "write", "fsync", "rename", "unlink", "rmdir"}
    assert {row.newest_after for row in found} == {"checkpoint-4", "checkpoint-6"}
    assert {row.rank for row in found} == {0, 1}
    # until the manifest has its name the older one is newest, and from then on the new one
    mine = [row for row in found if row.rank == 0]
    named = next(at for at, row in enumerate(mine) if row.operation == "rename checkpoint-6/manifest.json")
    assert {row.newest_after for row in mine[: named + 1]} == {"checkpoint-4"}
    assert {row.newest_after for row in mine[named + 1 :]} == {"checkpoint-6"}


@pytest.mark.slow
def test_every_fifth_fault_on_two_and_four_ranks() -> None:
    """``python -m tests.kill_points`` makes them all, in minutes; the page has its result."""
    there: Counter[tuple[str, str]] = Counter()
    found = list(kill_points.table([2, 4], list(faults.KINDS), every=5, there=there))
    assert [row for row in found if row.problems] == []
    assert len(found) == there.total() // 5 > 200
    assert {(row.scenario, row.kind) for row in found} == set(there)
    assert len({row.operation.partition(" ")[0] for row in found}) >= 8
    page = kill_points.PAGE.read_text()
    for (scenario, kind), count in there.items():
        assert f"| {scenario} | {kind} | {count} |" in page, "run: python -m tests.kill_points --write"
    assert f"| all | | {there.total()} | | {there.total()} | 0 |" in page, "run: python -m tests.kill_points --write"


@pytest.mark.slow
def test_ranks_that_talk_over_gloo() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.kill_points",
            "--ranks",
            "2",
            "--kinds",
            "kill",
            "--gloo",
            "--scenarios",
            "third",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.rpartition("| all | | ")[2].partition(" ")[0]) > 30


@pytest.mark.parametrize("broken", ["no fsync of files", "no fsync of folders", "written in place"])
def test_a_protocol_that_leaves_something_out_is_found_out(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "kill"
    if broken == "no fsync of files":
        monkeypatch.setattr(durable, "sync", lambda path: None)
        kind = "power: contents lost"
    elif broken == "no fsync of folders":
        monkeypatch.setattr(durable, "sync_directory", lambda path: None)
        kind = "power: some lost"
    else:
        monkeypatch.setattr(durable, "replace", durable.create)
    assert any(row.problems for row in kill_points.table([2], [kind], (THIRD,)))


def test_all_that_is_written_is_announced(tmp_path: Path) -> None:
    """Python's own audit events of a run, beside what the observers were told."""
    folder, journal = tmp_path / "run", Journal(tmp_path / "journal")
    journal.folder.mkdir()
    kill_points.prepare(folder, kill_points.SCENARIOS[2], ["a"])

    def work(group: ranks.Group) -> None:
        Fault(journal=journal).install(0)
        seen: list[tuple[str, str]] = []
        names = {"os.rename": "rename", "os.remove": "unlink", "os.mkdir": "mkdir", "os.rmdir": "rmdir"}

        def hook(event: str, arguments: tuple) -> None:
            target = str(arguments[1] if event == "os.rename" else arguments[0]) if arguments else ""
            if not target.startswith(str(folder)):
                return
            if event == "open" and set(str(arguments[1])) & set("wax+"):
                seen.append(("open", target))
            elif event in names:
                seen.append((names[event], target))

        sys.addaudithook(hook)
        program.train(folder, group, (6,))
        (tmp_path / "seen.json").write_text(json.dumps(seen))

    assert ranks.run(work, ["a"]) == [0]
    seen = [tuple(each) for each in json.loads((tmp_path / "seen.json").read_text())]
    told = [(operation, str(path)) for _, _, operation, path in journal.read()]
    assert seen == [each for each in told if each[0] in {"open", "rename", "unlink", "mkdir", "rmdir"}]
    assert len(seen) == 15


def test_a_disk_that_really_is_full(tmp_path: Path) -> None:
    """A limit on the size of files stops a write in the middle; the older checkpoints stay as they are."""
    code = (
        "import resource, signal, sys\nfrom pathlib import Path\n"
        "from tests.killing import program\nfrom toolkit.runtime.together import ALONE\n"
        "folder = Path(sys.argv[1]); program.train(folder, ALONE, (2, 4))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), -1))\n"
        "program.train(folder, ALONE, (6,))\n"
    )
    for limit in (2000, 100):  # in the shard, in the manifest
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        done = subprocess.run([sys.executable, "-c", code, folder, str(limit)], capture_output=True, text=True)
        assert done.returncode != 0
        assert "File too large" in done.stderr
        assert [path.name for path in checkpoint.complete(folder)] == ["checkpoint-2", "checkpoint-4"]
        assert checkpoint.newest_valid(folder) == folder / "checkpoint-4"
        assert ranks.run(lambda group, folder=folder: program.train(folder, group, (6,)), ["a"]) == [0]
        assert program.right(folder / "checkpoint-6", 1)


def test_the_error_of_one_rank_is_everybodys(tmp_path: Path) -> None:
    def work(group: ranks.Group) -> None:
        path = checkpoint.begin(tmp_path, 1, group)
        (path / f"{group.rank}").write_bytes(b"x")
        group.share(None)
        if group.rank == 1:
            durable.observers.append(_fail_on_fsync)
        try:
            checkpoint.commit(path, {"step": 1}, group)
        except Exception as error:
            (tmp_path / f"said-{group.rank}").write_text(str(error))

    assert ranks.run(work, ["a", "a"]) == [0, 0]
    said = {(tmp_path / f"said-{rank}").read_text() for rank in range(2)}
    assert len(said) == 1
    assert "could not be saved: rank 1: [Errno 5]" in said.pop()
    assert checkpoint.complete(tmp_path) == []


def _fail_on_fsync(operation: str, path: Path) -> None:
    if operation == "fsync":
        raise OSError(5, "Input/output error", str(path))


def test_a_file_that_still_grows_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = checkpoint.begin(tmp_path, 1)
    (path / "state").write_bytes(b"x")
    original = sums._sync_and_hash

    def late(where: Path, *rest: object) -> object:
        (where / "state").write_bytes(b"xyz")
        return original(where, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(sums, "_sync_and_hash", late)
    with pytest.raises(checkpoint.ToolkitError, match="state is still being written"):
        checkpoint.commit(path, {"step": 1})

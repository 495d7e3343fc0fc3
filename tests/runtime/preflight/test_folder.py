"""An output directory that cannot be made or written: one sentence, what helps, and the exit code of its kind."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plans import all_plans
from toolkit import plan as plans
from toolkit.runtime.preflight import probe, storage
from toolkit.runtime.preflight.folder import refusal
from toolkit.runtime.preflight.request import Request
from toolkit.runtime.preflight.storage import StorageFacts
from toolkit.runtime.preflight.verdict import judge

NOBODY = 65534


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that another user may enter; pytest's own let nobody in."""
    folder = Path(tempfile.mkdtemp(prefix="folder-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def preflight(folder: Path, output: Path, first: str = "true") -> subprocess.CompletedProcess:
    """The command on one node, in a mount name space of its own after the shell's line ``first``."""
    (folder / "plan.json").write_text(plans.dump(all_plans()["tiny"]))
    words = [sys.executable, "-m", "toolkit", "preflight", str(folder / "plan.json"), "--output-dir", str(output)]
    words += ["--nodes", "1", "--skip", "collective"]
    spaces = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    done = subprocess.run(
        [*spaces, "bash", "-c", f'{first} && exec "$@"', "bash", *words], capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr
    return done


def asked(folder: Path) -> Request:
    return Request(plan_sha256="", contract_sha256="", output_directory=str(folder), run_id="1-0", nodes=3)


def test_a_file_system_that_is_read_only(place: Path) -> None:
    mount = f"mkdir {place}/ro && mount -t tmpfs -o ro tmpfs {place}/ro"
    done = preflight(place, place / "ro" / "run", first=mount)
    assert done.returncode == 2, done.stderr
    assert f"cannot write to {place}/ro/run: Read-only file system\n  give another --output-dir" in done.stderr


def test_a_file_where_the_folder_should_be(place: Path) -> None:
    (place / "run").write_text("")
    for output in (place / "run", place / "run" / "deeper"):
        done = preflight(place, output)
        assert done.returncode == 2, done.stderr
        assert f"cannot write to {output}: {place}/run is a file, not a directory\n  move it away" in done.stderr


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("gone", "is a link to gone, which is not there\n  make that directory, remove the link"),
        ("run", "is a link that leads to itself"),
        ("plan.json", "is a link to plan.json, a file, not a directory"),
    ],
)
def test_links_that_lead_nowhere(place: Path, target: str, text: str) -> None:
    (place / "run").symlink_to(target)
    done = preflight(place, place / "run")
    assert done.returncode == 2, done.stderr
    assert f"cannot write to {place}/run: {place}/run {text}" in done.stderr


def test_a_name_that_is_too_long(place: Path) -> None:
    done = preflight(place, place / ("x" * 300))
    assert done.returncode == 2 and "File name too long\n  give an --output-dir with shorter names" in done.stderr


def test_a_folder_that_this_user_may_not_write(place: Path) -> None:
    (place / "run").mkdir(mode=0o555)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:  # root may write everywhere
        try:
            if os.geteuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            found = storage.facts(asked(place / "run"), 0)
            os.write(writer, f"{found.kind}: {found.error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        said = file.read()
    assert said.startswith("input: Permission denied: ") and f"{place}/run belongs to " in said
    assert "(dr-xr-xr-x), and this is " in said


def test_inodes_that_are_used_up_and_a_disk_that_is_full(place: Path) -> None:
    """A tmpfs of 4 inodes: its root, the run, the folder of the check, and one file."""
    for size, text in (
        ("size=40m,nr_inodes=4", "No space left on device: no more files can be made (inodes)"),
        ("size=8k", "No space left on device"),
    ):
        output = place / "small"
        output.mkdir(exist_ok=True)
        fill = f"mount -t tmpfs -o {size} tmpfs {output} && ! cat /dev/zero >{output}/x 2>/dev/null && ls {output}"
        if "inodes" in size:
            fill = f"mount -t tmpfs -o {size} tmpfs {output} && mkdir -p {output}/preflight && touch {output}/a"
        done = preflight(place, output, first=fill)
        assert done.returncode == 1, done.stderr
        assert f"cannot write to {output}: {text}\n  delete old runs" in done.stderr


@pytest.mark.parametrize(
    ("number", "kind", "remedy"),
    [
        (errno.EDQUOT, "full", "look at your quota"),
        (errno.ENOSPC, "full", "delete old runs"),
        (errno.ESTALE, "mount", "mount it again on this node"),
        (errno.EIO, "mount", "look at the mount and at dmesg"),
        (errno.ENOTCONN, "mount", "look at the mount"),
        (errno.EROFS, "input", "give another --output-dir"),
        (errno.EPERM, "input", "ask its owner"),
    ],
)
def test_each_error_has_its_kind_and_remedy(tmp_path: Path, number: int, kind: str, remedy: str) -> None:
    found = refusal(OSError(number, os.strerror(number)), tmp_path)
    assert found.kind == kind and remedy in found.remedy and found.text.startswith(os.strerror(number))


def test_what_all_have_is_the_input_and_what_one_has_is_its_own_fault(tmp_path: Path) -> None:
    good = StorageFacts(free_bytes=1e15, bytes_per_second=1e9)
    for kind, code in (("input", 2), ("full", 1), ("mount", 1)):
        bad = StorageFacts(error="no", kind=kind)
        request = asked(tmp_path)
        assert judge(storage.judge(request, dict.fromkeys("abc", bad)), tuple("abc")) == (code, ())
        assert judge(storage.judge(request, {"a": good, "b": bad, "c": good}), tuple("abc")) == (76, ("b",))
        assert judge(storage.judge(request, {"a": bad}), ("a",)) == (code, ())


# --- the probe ---------------------------------------------------------------------------------------


def test_the_probe_is_small_beside_the_room_that_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most, unlink = [], Path.unlink

    def watched(path: Path, missing_ok: bool = False) -> None:
        most.append(path.stat().st_size)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", watched)
    monkeypatch.setattr(probe, "WRITES", 1)
    for free, size in ((2.0**40, 64 * 2**20), (64.0 * 2**20, 4 * 2**20), (2.0**20, 2**16), (2.0**19, 1), (0.0, 1)):
        speed, _ = probe.measure(tmp_path, 0, free)
        assert most.pop() == size and (speed > 0) == (size > 1)
    assert list(tmp_path.iterdir()) == []


def test_a_probe_that_meets_a_quota_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fsync", full)
    found = storage.facts(asked(tmp_path), 0)
    assert (found.kind, found.error) == ("full", "Disk quota exceeded")
    assert list((tmp_path / storage.FOLDER).iterdir()) == []


KILLED = """
import os, sys, signal, time
from pathlib import Path
from toolkit.runtime.preflight import probe
def flush(_):
    print("writing", flush=True)
    time.sleep(60)
os.fsync = flush
with probe.cleaned_up():
    import threading
    thread = threading.Thread(target=probe.measure, args=(Path(sys.argv[1]), 3, 1e9), daemon=True)
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize("number", [*probe.ENDING, 9], ids=lambda number: f"signal-{int(number)}")
def test_a_process_that_is_ended_leaves_nothing_or_what_its_next_start_removes(tmp_path: Path, number: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"writing\n"
    assert [path.name for path in tmp_path.iterdir()] == [f"write-3-{process.pid}"]
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == -number
    left = [path.name for path in tmp_path.iterdir()]
    assert left == ([f"write-3-{process.pid}"] if number == 9 else [])
    (tmp_path / "write-30-7").touch()  # of another node, which may be writing
    probe.measure(tmp_path, 3, 1e9)
    assert [path.name for path in tmp_path.iterdir()] == ["write-30-7"]

"""Output that nobody takes ends no process and does not hold it; closed streams are no place for files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

START = "import os, sys\nfrom toolkit.runtime import screen\nscreen.keep()\n"
END = "open({done!r}, 'w').write('done')\n"


def start(code: str, done: Path, **more: object) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", START + code + END.format(done=str(done))]
    return subprocess.Popen(words, **more)  # type: ignore[call-overload, no-any-return]


MUCH = (
    "for number in range(3000):\n    print(f'step {number}' + 90 * '.', flush=True)\n    print('x', file=sys.stderr)\n"
)


def test_a_reader_that_is_gone(tmp_path: Path) -> None:
    process = start(MUCH, tmp_path / "done", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline().startswith(b"step 0")
    process.stdout.close()
    process.stderr.close()
    assert process.wait(timeout=60) == 0 and (tmp_path / "done").exists()


def test_a_log_on_a_full_disk(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        process = start(MUCH, tmp_path / "done", stdout=full, stderr=full)
        assert process.wait(timeout=60) == 0 and (tmp_path / "done").exists()


def test_a_reader_that_stops_and_goes_on(tmp_path: Path) -> None:
    code = f"screen._Raw.waits = screen.PATIENCE = 0.5\n{MUCH}open({str(tmp_path / 'full')!r}, 'w').close()\n"
    code += (
        f"import time\nwhile not os.path.exists({str(tmp_path / 'read')!r}):\n    time.sleep(0.05)\nprint('again')\n"
    )
    process = start(code, tmp_path / "done", stdout=subprocess.PIPE)
    until = time.monotonic() + 60
    while not (tmp_path / "full").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    while process.stdout.read(2**16):
        pass
    (tmp_path / "read").touch()
    os.set_blocking(process.stdout.fileno(), True)
    assert process.stdout.read() == b"again\n"
    assert process.wait(timeout=60) == 0 and (tmp_path / "done").exists()


def test_closed_streams_are_no_files(tmp_path: Path) -> None:
    """Native code prints to number 2, whatever that is."""
    file = tmp_path / "checkpoint"
    code = (
        f"file = os.open({str(file)!r}, os.O_WRONLY | os.O_CREAT)\nassert file > 2\nos.write(2, b'native')\nprint(1)\n"
    )
    shell = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, START + code]
    assert subprocess.run(shell, timeout=60).returncode == 0 and file.read_bytes() == b""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_letter_that_the_terminal_does_not_have(encoding: str, unbuffered: str) -> None:
    """And what can be written is as it was, in the order of the two streams."""
    code = "print('ü ✓', flush=True)\nprint('é', file=sys.stderr)\nprint('end')\n"
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run([sys.executable, "-c", START + code], stdout=-1, stderr=-2, env=environment, timeout=60)
    assert done.returncode == 0
    assert done.stdout == "ü ✓\né\nend\n".encode(encoding, "backslashreplace")


def test_what_somebody_has_put_in_their_place_stays(capsys: pytest.CaptureFixture[str]) -> None:
    from toolkit.runtime import screen

    before = sys.stdout, sys.stderr
    screen.keep()
    assert (sys.stdout, sys.stderr) == before

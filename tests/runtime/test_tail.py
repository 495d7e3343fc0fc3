"""The end of a file of lines is found and read as if all of it were."""

import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.record import StepRecord
from toolkit.runtime import tail, telemetry


@given(content=st.binary(max_size=60) | st.lists(st.sampled_from([b"a\n", b"\n", b"bcd\n", b"\0", b"e"])).map(b"".join))
@settings(max_examples=60)
def test_whatever_is_in_it(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("lines") / "file"
    path.write_bytes(content)
    usual = tail.BLOCK_BYTES
    try:
        for tail.BLOCK_BYTES in (1, 3, 8, 2**20):
            assert list(tail.lines_backwards(path)) == content.split(b"\n")[:-1][::-1]
            with path.open("rb") as file:
                assert tail.length_of_whole_lines(file) == content.rfind(b"\n") + 1
    finally:
        tail.BLOCK_BYTES = usual


@given(
    steps=st.lists(st.integers(1, 12), max_size=30),
    up_to=st.integers(0, 13),
    count=st.integers(1, 9),
    torn=st.sampled_from([b"", b'{"step": 3', b"\0\0\0\n"]),
)
@settings(max_examples=100)
def test_the_last_steps_are_those_of_all(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], up_to: int, count: int, torn: bytes
) -> None:
    folder = tmp_path_factory.mktemp("run")
    lines = [
        msgspec.json.encode(StepRecord(step=step, seconds=1.0, tokens=1, loss=1.0 * number, learning_rate=0.1)) + b"\n"
        for number, step in enumerate(steps)
    ]
    (folder / telemetry.STEPS).write_bytes(b"".join(lines) + torn)
    wanted = [each for each in telemetry.read_steps(folder) if each.step <= up_to]
    assert telemetry.last_steps(folder, up_to, count) == wanted[-count:]


def test_of_a_long_run_only_the_end_is_read(tmp_path: Path) -> None:
    """Ten million steps, of which all but the last are a hole in the file: reading that would take its 4 GB."""
    assert telemetry.last_steps(tmp_path, 5, 5) == []
    lines = [
        msgspec.json.encode(StepRecord(step=step, seconds=1.0, tokens=1, loss=1.0, learning_rate=0.1)) + b"\n"
        for step in range(10**7 - 200, 10**7)
    ]
    with (tmp_path / telemetry.STEPS).open("wb") as file:
        file.truncate(4 * 2**30)
        file.seek(0, 2)
        file.write(b"\n" + b"".join(lines))
    since = time.process_time()
    found = telemetry.last_steps(tmp_path, 10**7 - 50, 20)
    assert [each.step for each in found] == list(range(10**7 - 69, 10**7 - 49))
    telemetry._open_at_line_end(tmp_path / telemetry.STEPS).close()
    assert time.process_time() - since < 1.0

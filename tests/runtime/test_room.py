"""A refusal of the file system is known in whatever form a library tells it: each here is of a library that met one."""

import errno
import os
from pathlib import Path

import pytest

from toolkit.runtime.room import refusal

FULL = Path("/dev/full")  # every write to it ends in "No space left on device"


def test_of_the_system_itself_and_wrapped() -> None:
    with pytest.raises(OSError) as raised, FULL.open("wb", buffering=0) as file:
        file.write(b"x")
    found = refusal(raised.value)
    assert found is not None and found.errno == errno.ENOSPC
    wrapped = RuntimeError("a writer failed")
    wrapped.__cause__ = raised.value
    assert refusal(wrapped) is raised.value


def test_other_errors_are_none() -> None:
    assert refusal(ValueError("No such tensor")) is None
    try:
        try:
            os.stat("/nowhere/at/all")  # noqa: PTH116
        except OSError:
            raise KeyError("unrelated") from None
    except KeyError as error:
        assert refusal(error) is None  # what was handled before it is not why


def test_of_a_library_in_rust() -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    numpy = pytest.importorskip("numpy")
    with pytest.raises((SafetensorError, OSError)) as raised:
        save_file({"x": numpy.ones(100_000)}, "/proc/nowhere.safetensors")
    assert refusal(raised.value) is not None


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_of_torch(tmp_path: Path) -> None:
    import torch
    from torch.distributed.checkpoint.api import CheckpointException

    with pytest.raises(RuntimeError) as raised:
        torch.save({"x": torch.ones(100_000)}, FULL)
    assert refusal(raised.value) is not None
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert refusal(CheckpointException("write", {1: (full, None)})) is full

"""Texts as PyTorch, CUDA, NCCL and gloo write them, and what a job script should do after each."""

import errno

import pytest

from toolkit.errors import ToolkitError
from toolkit.runtime import faults
from toolkit.runtime.save_failed import SaveFailed

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.77.0.2]:36297"
NCCL_TIMEOUT = (
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1042, OpType=ALLREDUCE, NumelIn=1,"
    " Timeout(ms)=600000) ran for 600057 milliseconds before timing out."
)
NCCL_PEER = (
    "NCCL error in: ProcessGroupNCCL.cpp:2021, remote process exited or there was a network error, NCCL version 2.27.5"
    " ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
)
NCCL_CUDA = "NCCL error in: NCCLUtils.hpp:219, unhandled cuda error (run with NCCL_DEBUG=INFO), NCCL version 2.21.5"
ECC = "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported"
OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ToolkitError("bad"), "input"),
        (ValueError("Timed out waiting"), "code"),
        (AssertionError(), "code"),
        (KeyError("x"), "code"),
        (RuntimeError("shape '[2, 3]' is invalid for input of size 5"), "code"),
        (RuntimeError("CUDA error: device-side assert triggered"), "code"),
        (RuntimeError("CUDA error: invalid device ordinal"), "code"),
        (RuntimeError(GLOO), "peer"),
        (RuntimeError(NCCL_TIMEOUT), "peer"),
        (RuntimeError(NCCL_PEER), "peer"),
        (ConnectionResetError(104, "Connection reset by peer"), "peer"),
        (BrokenPipeError(), "peer"),
        (RuntimeError(NCCL_CUDA), "device"),
        (RuntimeError(ECC), "device"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "device"),
        (OSError(errno.EIO, "Input/output error"), "device"),
        (OSError(errno.ESTALE, "Stale file handle"), "device"),
        (RuntimeError(OOM), "memory"),
        (MemoryError(), "memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "storage"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "storage"),
        (Exception("Error while serializing: No space left on device (os error 28)"), "storage"),  # of safetensors
        (FileNotFoundError(2, "No such file"), "code"),
        (SaveFailed("checkpoint-3 could not be saved"), "storage"),
        (SaveFailed("checkpoint-3 could not be saved", kind="device"), "device"),
    ],
)
def test_kinds(error: BaseException, kind: str) -> None:
    assert faults.kind(error) == kind
    assert kind in faults.KINDS


def test_the_cause_behind_an_exception_counts() -> None:
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise RuntimeError("could not save") from error
    except RuntimeError as found:
        assert faults.kind(found) == "storage"


def test_a_chain_that_closes_on_itself_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    assert faults.kind(first) == "code"

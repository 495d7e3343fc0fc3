"""What kind of failure an exception is, for what follows from it: stop, or start again, here or without a node.

========  ===========================================================  ================================
kind      what                                                         what a job script does
========  ===========================================================  ================================
input     the program refused its inputs (ToolkitError)                stops: it would refuse them again
code      any other exception                                          stops: it would be raised again
memory    the memory of a GPU or of Python is used up                  stops: the plan does not fit
storage   no space, quota or right left, or the folder is gone         stops: so it is for every node
device    a GPU, its driver or a mount of this node is broken          goes on without this node
agent     torchrun, the parent of this process, is gone                starts again
peer      another rank is gone or silent; this one is only a witness   starts again
diverged  a loss is not finite, or a spike, and the run may not skip   stops: it would be the same again
hang      the watchdog ended a step that did not                       starts again
========  ===========================================================  ================================

Exceptions of torch carry their cause only as text (``RuntimeError``, ``DistBackendError``), so texts decide;
they are those of PyTorch 2.13, CUDA 12 and NCCL 2.2x. What a text cannot tell (an illegal memory access is a
broken GPU or a bug of a kernel) counts as ``device``: a bug comes again at the same step on other nodes, and
then the job script stops because there is no progress.
"""

from __future__ import annotations

import errno

from toolkit.errors import ToolkitError
from toolkit.runtime.divergence import Diverged
from toolkit.runtime.save_failed import OF_THE_NODE, SaveFailed

WITNESSES = ("peer", "agent")  # they saw that another process is gone
KINDS = ("input", "code", "memory", "storage", "device", "agent", "peer", "hang", "diverged")
DEVICE = (
    *("uncorrectable ecc", "ecc error", "nvlink", "unspecified launch failure", "illegal memory access"),
    *("illegal instruction", "hardware stack error", "busy or unavailable", "gpu is lost", "device is lost"),
    *("system not yet initialized", "cuda error: unknown error", "cuda driver error", "hip error: unspecified"),
    *("ncclunhandledcudaerror", "unhandled cuda error", "cuda-capable device(s) is/are", "fallen off the bus"),
)
PEER = (
    *("closed by peer", "reset by peer", "connection refused", "connection was likely closed", "broken pipe"),
    *("connectfullmesh failed", "remote process exited", "ncclremoteerror", "ncclsystemerror"),
    *("unhandled system error", "watchdog caught collective operation timeout", "process group watchdog"),
    *("timed out waiting", "wait timeout", "timed out after", "timeout waiting for key", "socket timeout"),
    *("client socket has", "connection timed out", "network is unreachable", "no route to host"),
    *("communicator was aborted", "connection timed out", "heartbeat monitor timed out"),
)
FULL = (errno.ENOSPC, errno.EDQUOT)


def kind(error: BaseException) -> str:
    """One of ``KINDS``, of the first exception in the chain of causes that is more than ``code``."""
    found: BaseException | None = error
    for _ in range(10):  # a chain may close on itself
        if found is None:
            break
        one = _kind(found)
        if one != "code":
            return one
        found = found.__cause__ or found.__context__
    return "code"


def _kind(error: BaseException) -> str:
    if isinstance(error, ToolkitError):
        return error.kind if isinstance(error, Diverged | SaveFailed) else "input"
    text = str(error).lower()
    if "loss scale already at minimum" in text:  # DeepSpeed's own end of an fp16 run
        return "diverged"
    if isinstance(error, MemoryError) or "out of memory" in text:
        return "memory"
    if isinstance(error, (ConnectionError, TimeoutError)):
        return "peer"
    if type(error).__name__ == "CheckpointException" and not getattr(error, "failures", True):
        return "peer"  # torch's distributed checkpoints: another rank could not write, which has the reason
    if isinstance(error, OSError):
        if error.errno in FULL:
            return "storage"
        return "device" if error.errno in OF_THE_NODE else "code"
    if (
        "no space left on device" in text or "disk quota exceeded" in text
    ):  # of torch, of safetensors, each its own type
        return "storage"
    if isinstance(error, RuntimeError):
        if any(sign in text for sign in DEVICE):
            return "device"
        if any(sign in text for sign in PEER):
            return "peer"
    return "code"

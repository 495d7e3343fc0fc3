"""Whether what failed is that the file system refused to write, whichever library tells it and in whatever form.

safetensors (Rust) raises an error of its own whose text has ``os error 28``; torch's distributed checkpoints wrap the
errors of all ranks; torch.save ends in a RuntimeError of its archive's writer that names no reason.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSALS = (*NO_ROOM, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)
OF_SOCKETS_TOO = (errno.ENOTCONN, errno.ENODEV)  # of a mount only where there is a path
TORCH_WRITER = re.compile(
    r"inline_container\S*\] \. unexpected pos|PytorchStreamWriter failed writing|basic_ios::clear"
)
RUST = re.compile(r"\(os error (\d+)\)")


def refusal(error: BaseException) -> OSError | None:
    """The error of the file system in it, of its causes or of the errors that it holds; None where there is none."""
    if isinstance(error, OSError):
        return error
    texts = []
    for each in _all(error):
        if isinstance(each, OSError) and each.errno in REFUSALS + (OF_SOCKETS_TOO if each.filename else ()):
            return each
        texts.append(str(each))
    said = "\n".join(texts)
    numbers = [int(match) for match in RUST.findall(said)]
    numbers += [number for number in REFUSALS if os.strerror(number) in said]
    if numbers:
        return OSError(numbers[0], os.strerror(numbers[0]))
    if TORCH_WRITER.search(said):  # it wrote less than it was given
        return OSError(errno.ENOSPC, "torch.save could not write all of a file: the disk is full, or fails")
    return None


def _all(error: BaseException) -> Iterator[BaseException]:
    waiting, seen = [error], set()
    while waiting:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [cause for cause in (each.__cause__, each.__context__) if cause is not None]
        failures = getattr(each, "failures", None)  # CheckpointException: rank -> (error, its stack)
        for failure in failures.values() if isinstance(failures, dict) else ():
            inner = failure[0] if isinstance(failure, tuple) and failure else failure
            waiting += [inner] if isinstance(inner, BaseException) else []

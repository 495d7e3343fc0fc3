"""Kernels that DeepSpeed compiles at their first use: a start that is killed meanwhile does not hold up all later ones.

torch 2.13 (``utils/file_baton.py``) takes a file named ``lock`` in the folder of the kernel for a compilation under
way. One that was killed leaves it behind, and every later start waits for ever, of whatever run: DeepSpeed's Adam for
an offloaded optimizer takes minutes. Here the file is locked, and the kernel takes the lock away with its process.

Left out: programs with torch's own lock that compile into the same folder at the same time; file systems without locks,
where torch's own stays.
"""

from __future__ import annotations

import fcntl
import os
from typing import Any


def locks_end_with_their_process() -> None:
    """For all that this process compiles or waits for from now on."""
    from torch.utils import cpp_extension, file_baton

    vars_of: Any = cpp_extension
    torchs: Any = file_baton.FileBaton

    class Baton(torchs):  # type: ignore[misc]
        """Taken by one process, waited for by all others."""

        held: int | None = None

        def try_acquire(self) -> bool:
            """Whether it is this process that compiles."""
            try:
                file = os.open(f"{self.lock_file_path}.held", os.O_CREAT | os.O_RDWR, 0o666)
            except OSError:  # another user's
                return bool(super().try_acquire())
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                return False
            except OSError:  # no locks there
                os.close(file)
                return bool(super().try_acquire())
            self.held = file
            return True

        def wait(self) -> None:
            """Until whoever compiles is done, or gone."""
            try:
                with open(f"{self.lock_file_path}.held", "rb") as file:  # noqa: PTH123  (a text is given)
                    fcntl.flock(file, fcntl.LOCK_SH)
            except OSError:
                super().wait()

        def release(self) -> None:
            """All others go on."""
            if self.held is None:
                super().release()
            else:
                os.close(self.held)
                self.held = None

    if vars_of.FileBaton is torchs:
        vars_of.FileBaton = Baton

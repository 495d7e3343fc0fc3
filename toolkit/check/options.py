"""Options of sbatch and srun: names, which take a value, and how they are read from words.

Source: the manual pages of sbatch and srun, Slurm 22.05 to 25.05.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

SHORT = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint", "c": "cpus-per-task",
    "D": "chdir", "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "i": "input",
    "I": "immediate", "J": "job-name", "k": "no-kill", "K": "kill-on-bad-exit", "L": "licenses", "l": "label",
    "M": "clusters", "m": "distribution", "N": "nodes", "n": "ntasks", "O": "overcommit", "o": "output",
    "p": "partition", "q": "qos", "Q": "quiet", "r": "relative", "s": "oversubscribe", "S": "core-spec", "t": "time",
    "T": "threads", "u": "unbuffered", "v": "verbose", "W": "wait", "w": "nodelist", "x": "exclude", 
    "X": "disable-status",
    "Z": "no-allocate",
}  # fmt: skip
# take a value only behind an equals sign, or none
FLAGS = {
    "contiguous", "disable-status", "exclusive", "get-user-env", "hold", "ignore-pbs", "kill-on-bad-exit", "label",
    "multi-prog", "no-allocate", "no-kill", "no-requeue", "overcommit", "overlap", "oversubscribe", "parsable",
    "preserve-env", "pty", "quiet", "reboot", "requeue", "resv-ports", "spread-job", "test-only", "unbuffered",
    "use-min-nodes", "verbose", "whole", "exact", "segment-exclusive", "help", "usage", "version", "immediate",
    "container-mount-home", "no-container-mount-home", "container-remap-root", "no-container-remap-root",
    "container-writable", "container-readonly", "no-container-entrypoint", "container-entrypoint",
}  # fmt: skip
VALUED = {
    "account", "accel-bind", "acctg-freq", "array", "batch", "bb", "bbf", "bcast", "bcast-exclude", "begin",
    "burst-buffer", "chdir", "cluster-constraint", "clusters", "comment", "compress", "constraint", "container",
    "container-env", "container-id", "container-image", "container-mounts", "container-name", "container-save",
    "container-workdir", "core-spec", "cores-per-socket", "cpu-bind", "cpu-freq", "cpus-per-gpu", "cpus-per-task",
    "deadline", "delay-boot", "dependency", "distribution", "environment", "epilog", "error", "exclude", "export",
    "export-file", "extra", "extra-node-info", "gid", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node",
    "gpus-per-socket",
    "gpus-per-task", "gres", "gres-flags", "het-group", "hint", "input", "job-name", "jobid", "kill-on-invalid-dep",
    "licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincores",
    "mincpus", "minsockets", "minthreads", "mpi", "msg-timeout", "network", "nice", "nodefile", "nodelist", "nodes",
    "ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket", "oom-kill-step", "open-mode",
    "output", "partition", "power", "prefer", "priority", "profile", "prolog", "propagate", "qos", "relative",
    "reservation", "resv-port", "segment", "send-libs", "signal", "slurmd-debug", "sockets-per-node", "stepmgr",
    "switches", "task-epilog", "task-prolog", "thread-spec", "threads", "threads-per-core", "time", "time-min", "tmp",
    "tree-width", "tres-bind", "tres-per-task", "uid", "wait", "wait-all-nodes", "wckey", "wrap", "x11",
}  # fmt: skip
SPELLINGS = {"workdir": "chdir", "job": "jobid", "tasks": "ntasks", "processes": "ntasks", "share": "oversubscribe"}
SYNONYMS = {"tasks-per-node": "ntasks-per-node"}  # options that do exist beside the usual name


def near(name: str) -> str:
    """The option that was probably meant, or empty."""
    if name in SPELLINGS:
        return SPELLINGS[name]
    close = difflib.get_close_matches(name.replace("_", "-"), sorted(FLAGS | VALUED), n=1, cutoff=0.7)
    return close[0] if close else ""


def is_option(name: str) -> bool:
    """Whether sbatch or srun have it."""
    return name in FLAGS or name in VALUED


def _whole(name: str) -> str:
    """The option that an unambiguous beginning stands for, as getopt_long takes it."""
    if is_option(name) or not name:
        return name
    begun = [option for option in sorted(FLAGS | VALUED) if option.startswith(name)]
    return begun[0] if len(begun) == 1 else name


def read(words: Sequence[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """Options by their long name (the last of several wins), the words that follow them, and names of no option.

    A flag has the value ``""``; ``--kill-on-bad-exit`` and others may carry one behind an equals sign.
    """
    found: dict[str, str] = {}
    strange: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = _whole(SYNONYMS.get(name, name))
            if not is_option(name):
                strange.append(name)
            if not equals and name not in FLAGS and at < len(words) and is_option(name):
                value, at = words[at], at + 1
            found[name] = value
        elif word.startswith("-") and len(word) > 1:
            name = SHORT.get(word[1], "")
            if not name:
                strange.append(word)
                continue
            if name in FLAGS:
                found[name] = word[2:] if name == "kill-on-bad-exit" else ""
                continue
            value = word[2:].removeprefix("=")
            if not value and at < len(words):
                value, at = words[at], at + 1
            found[name] = value
        else:
            at -= 1
            break
    return found, list(words[at:]), strange

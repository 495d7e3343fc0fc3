"""The rules of launch scripts and hostfiles: severity, what happens otherwise, and where that was seen."""

from __future__ import annotations

from typing import NamedTuple

from toolkit.finding import Finding

ERROR, WARNING, INFO = "error", "warning", "info"
TORCH, SBATCH, SRUN = "torch 2.13, distributed/run.py", "sbatch(1), Slurm 22.05", "srun(1), Slurm 22.05"
SEEN = "a real Slurm 22.05 of four nodes"


class Rule(NamedTuple):
    """One rule; ``severity`` is the usual one, a finding may have another where more is known."""

    severity: str
    why: str
    source: str


RULES: dict[str, Rule] = {
    # --- the text
    "shebang": Rule(ERROR, "sbatch refuses a script whose first line names no interpreter", SBATCH),
    "line-ends": Rule(ERROR, "sbatch refuses DOS line breaks, and bash takes the carriage return into names", SEEN),
    "continuation": Rule(
        ERROR, "the command ends there, and the next line is a command of its own: its options never arrive", "bash(1)"
    ),
    "syntax": Rule(ERROR, "the shell stops there", "bash -n"),
    "secret": Rule(WARNING, "everyone who can read the script or the job's record has the key", "common practice"),
    # --- directives
    "directive-late": Rule(ERROR, "sbatch stops reading at the first command; the line is a comment", SEEN),
    "directive-almost": Rule(WARNING, "only lines that begin with #SBATCH count; this one is a comment", SEEN),
    "directive-unknown": Rule(ERROR, "sbatch refuses the script", SEEN),
    "directive-variable": Rule(ERROR, "no shell reads directives: the value is taken as it is written", SBATCH),
    "directive-twice": Rule(WARNING, "the last one wins", SBATCH),
    "output-folder": Rule(
        ERROR,
        "the job fails at once (JobLaunchFailure, exit code 0:53) and leaves no log; --output makes no folder",
        SEEN,
    ),
    "export-none": Rule(
        ERROR, "srun inherits NONE: the programs of the step are not found (execve: No such file or directory)", SEEN
    ),
    "no-requeue": Rule(
        WARNING, "what a site does after a failed node or preemption is its own default; JobRequeue may be 0", SBATCH
    ),
    "open-mode": Rule(
        WARNING, "a requeued job may truncate the log of the run that failed", "JobFileAppend, slurm.conf(5)"
    ),
    "node-count": Rule(ERROR, "the job waits for ever, or has other nodes than it counts on", SBATCH),
    "memory-default": Rule(
        WARNING,
        "--exclusive is of cores and GPUs: of memory a job has DefMemPerCPU or DefMemPerNode, and is killed beyond",
        SEEN,
    ),
    # --- tasks
    "tasks-times-workers": Rule(
        ERROR,
        "every task starts the launcher, and every launcher starts all workers of the node",
        "NVIDIA-NeMo/Automodel examples; torch elastic on Slurm",
    ),
    "tasks-not-pinned": Rule(
        ERROR,
        "without a number of tasks Slurm starts floor(CPUs of a node / cpus-per-task) of them, all alike",
        "TUM-DAML/seml #177",
    ),
    "head-node-only": Rule(ERROR, "a batch script runs on the first node only", "huggingface/accelerate #3522"),
    "tasks-and-gpus": Rule(WARNING, "ranks and GPUs are not the same number", SRUN),
    "rank-order": Rule(
        WARNING,
        "neighbouring ranks are on different nodes: groups that a fast link should join cross the network",
        SEEN,
    ),
    "kill-on-bad-exit": Rule(WARNING, "when one task dies the others wait for it until the time limit", SEEN),
    "step-cpus": Rule(WARNING, "since 22.05 srun does not inherit --cpus-per-task", SRUN),
    "node-cpus": Rule(WARNING, "a task has one CPU unless it asks for more: all workers of a node share it", SBATCH),
    "exit-code": Rule(WARNING, "without pipefail the pipe's last command decides: a failed run counts as done", SEEN),
    # --- ranks
    "node-rank-task": Rule(
        ERROR,
        "SLURM_PROCID counts tasks, SLURM_NODEID nodes: they are the same with one task a node only",
        "oumi-ai/oumi pull request 2020; Oslo pull request 150",
    ),
    "expanded-early": Rule(
        ERROR,
        "the batch shell puts in its own value, that of the first node: 0 on every node",
        "huggingface/accelerate #2816, #1645, #2246; " + SEEN,
    ),
    "slurm-variable": Rule(
        ERROR, "Slurm sets no such variable: it is empty, or the shell stops", "Oslo pull request 150"
    ),
    "variable-not-set": Rule(
        ERROR, "Slurm sets it only where that option asks for it: it is empty here, or the shell stops", SEEN
    ),
    "restart-count": Rule(WARNING, "SLURM_RESTART_COUNT is unset in the first run", SEEN),
    "world-size": Rule(ERROR, "that variable counts something else", "Oslo pull request 150; open-r1 #219"),
    "device-index": Rule(
        ERROR,
        "each task sees one GPU and calls it 0: every other index is an invalid device ordinal, and peer access"
        " between the ranks is lost",
        "ACEsuit/mace #435; Lightning-AI/pytorch-lightning #16828; NVIDIA/nccl-tests #300; " + SEEN,
    ),
    "gpu-bind": Rule(
        WARNING,
        "a task sees only the GPUs it is bound to: frameworks made several small worlds on the same GPUs, and"
        " ranks on one node lose peer access",
        "Lightning-AI/pytorch-lightning #13605",
    ),
    "gpus-of-the-job": Rule(WARNING, "--gpus is a total of the job: Slurm may spread it unevenly over nodes", SBATCH),
    # --- rendezvous
    "rendezvous-mixed": Rule(
        WARNING,
        "torchrun takes the rendezvous flags; under c10d the order of ranks is not fixed, so rank 0 may be on"
        " another host than the master address",
        "pytorch/pytorch #137402",
    ),
    "rendezvous-missing": Rule(ERROR, "every node meets only itself", TORCH),
    "fixed-port": Rule(
        WARNING,
        "jobs that share a node share the port: the second fails, or (torchrun, c10d) joins the other job and"
        " dies with it",
        SEEN,
    ),
    "rendezvous-id": Rule(WARNING, "two jobs with the same id and endpoint are one", SEEN),
    "random-port": Rule(ERROR, "every node draws another, and they never meet", "bash(1), RANDOM"),
    "master-address": Rule(ERROR, "each node names itself, so they never meet", TORCH),
    "interface": Rule(ERROR, "the loopback interface reaches no other node", "NCCL user guide, NCCL_SOCKET_IFNAME"),
    "node-list": Rule(
        ERROR, "a node list is compressed (n[1-4,7],m3): a piece of its text is no host", "scontrol(1), show hostnames"
    ),
    "head-pipe": Rule(
        ERROR,
        "head closes the pipe, scontrol dies of SIGPIPE, and pipefail ends the script: now and then on small jobs,"
        " always on large ones",
        SEEN,
    ),
    "environment": Rule(WARNING, "nothing reads it, so it changes nothing", "torch 2.13; NCCL user guide, 2.27"),
    "steps-wait": Rule(
        WARNING,
        "since 20.11 a step has its CPUs, memory and GPUs for itself: the second waits until the first has ended",
        SRUN,
    ),
    "elastic-restart": Rule(
        WARNING, "after a restart workers read addresses of the last round: 3 of 3 restarts on two nodes failed", SEEN
    ),
    # --- signals
    "no-signal": Rule(
        WARNING, "at the time limit there are seconds between SIGTERM and SIGKILL, too few to save", SEEN
    ),
    "signal-to-steps": Rule(
        ERROR,
        "the signal reaches torchrun itself, which has no handler for it and dies: nothing is saved",
        SEEN,
    ),
    "signal-unheard": Rule(ERROR, "the batch shell has no trap for it, so the signal ends the job at once", SEEN),
    "signal-late": Rule(ERROR, "a shell runs no trap while it waits for a command in the foreground", SEEN),
    "signal-lead": Rule(
        ERROR,
        "the job is killed in the middle of a step or of the save",
        "submitit pull requests 1615 and 1701; " + SEEN,
    ),
    # --- sizes
    "gpus-of-a-node": Rule(
        ERROR,
        "the job waits for ever: no node gives it that many GPUs",
        "GB200 trays have 4 GPUs, DGX-2 has 16; mila-docs pull request 397, accelerate #806",
    ),
    "tensor-parallel": Rule(
        WARNING, "tensor parallelism across nodes sends every layer's activations over the network", "arXiv 2104.04473"
    ),
    "preparation": Rule(
        ERROR,
        "the waiting ranks are killed by their collective's time-out, whatever the data do",
        "LlamaFactory #2424, #956, #360; alignment-handbook #190; nanotron #204",
    ),
    # --- DeepSpeed
    "hostfile-missing": Rule(
        ERROR, "DeepSpeed only warns and goes on with the GPUs of this machine", "microsoft/DeepSpeed #5221, #2612"
    ),
    "hostfile-line": Rule(ERROR, "DeepSpeed stops, or names no line that helps", "microsoft/DeepSpeed #3669"),
    "hostfile-place": Rule(
        ERROR,
        "what follows the training script is the script's: DeepSpeed reads /job/hostfile, finds none, and uses"
        " local GPUs only",
        "microsoft/DeepSpeedExamples #575",
    ),
    "hostfile-relative": Rule(
        WARNING,
        "it is looked for where the command runs, and a missing one is only a warning",
        "microsoft/DeepSpeed #5221",
    ),
    "include-filter": Rule(ERROR, "DeepSpeed stops", "deepspeed 0.19.8, launcher/runner.py; #3624"),
    "visible-devices": Rule(
        WARNING,
        "deepspeed ignores CUDA_VISIBLE_DEVICES where it is told devices otherwise",
        "deepspeed 0.19.8, launcher/runner.py",
    ),
}


def finding(code: str, message: str, remedy: str, *, line: int = 0, file: str = "", severity: str = "") -> Finding:
    """A finding of one rule at a line."""
    rule = RULES[code]
    return Finding(
        code=code,
        severity=severity or rule.severity,
        message=message,
        remedy=remedy,
        file=file,
        where=f"line {line}" if line else "",
        why=rule.why,
        source=rule.source,
    )

"""Faults that may come at any time: when each can come, how often it is drawn, and who has to notice it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster import file_faults, process_faults, slurm_faults
from tests.cluster.moments import END, EVALUATION, MOMENTS, PENDING, PREFLIGHT, SAVE, START_UP, STEP
from tests.cluster.runs import Run
from tests.cluster.slurm import Cluster

TRAINING = (START_UP, STEP, SAVE, EVALUATION, END)
LATER = (STEP, SAVE, EVALUATION, END)
RUNNING = (PREFLIGHT, *TRAINING)
TORCHRUN, SRUN = "torchrun", "srun"


@dataclass(frozen=True)
class Kind:
    """``inject`` tells what exactly it did. ``noticed``: the script or Slurm must see it. ``ends``: the job may."""

    name: str
    inject: Callable[[Cluster, Run, random.Random], str]
    moments: tuple[str, ...]
    weight: float = 1.0
    noticed: bool = True
    ends: bool = False  # and is submitted again by hand
    asks: bool = False  # a request to stop: what was done is saved
    launcher: str = ""  # only with this one
    small: bool = False  # only on the small disk
    cables: bool = False  # only where nodes have networks of their own


KINDS = (
    Kind("a rank is killed", process_faults.kill_rank, TRAINING, 3),
    Kind("a rank is suspended", process_faults.suspend_rank, LATER, 1),
    Kind("a rank pauses", process_faults.pause_rank, LATER, 0.7, noticed=False),
    Kind("torchrun is killed", process_faults.kill_torchrun, TRAINING, 2, launcher=TORCHRUN),
    Kind("srun is killed", process_faults.kill_srun, RUNNING, 1),
    Kind("the job script is killed", process_faults.kill_script, RUNNING, 0.7, ends=True),
    Kind("slurmstepd is killed", process_faults.kill_slurmstepd, RUNNING, 1),
    Kind("a check of a node is killed", process_faults.kill_check, (PREFLIGHT,), 3),
    Kind("a node loses power", slurm_faults.kill_node, RUNNING, 1),
    Kind("a node is set DOWN", slurm_faults.set_down, RUNNING, 1),
    Kind("a node is drained, requeue", slurm_faults.drain_and_requeue, RUNNING, 0.7),
    Kind("a node is cut off", slurm_faults.cut, TRAINING, 0.7, cables=True),
    Kind("scontrol requeue", slurm_faults.requeue, RUNNING, 1),
    Kind("preempted", slurm_faults.preempt, RUNNING, 1, asks=True),
    Kind("SIGUSR1 to the script", slurm_faults.usr1, RUNNING, 1, asks=True),
    Kind("SIGTERM to the processes", slurm_faults.term, RUNNING, 1, asks=True),
    Kind("the time limit is near", slurm_faults.near_the_limit, LATER, 0.4, asks=True),
    Kind("the file STOP", file_faults.stop_file, TRAINING, 1, asks=True),
    Kind("the file STOP while it waits", file_faults.stop_file, (PENDING,), 1, noticed=False),
    Kind("scancel, submitted again", slurm_faults.cancel, MOMENTS, 0.5, ends=True),
    Kind("newest checkpoint damaged", file_faults.damage, (PENDING, *TRAINING), 2),
    Kind("latest deleted", file_faults.lose_latest, (PENDING, *TRAINING), 1),
    Kind("the disk is full for a while", file_faults.fill_disk, TRAINING, 2, ends=True, small=True),
    Kind("slurmctld is killed, starts again", slurm_faults.restart_controller, MOMENTS, 0.7, noticed=False, ends=True),
    Kind("slurmd is killed, starts again", slurm_faults.restart_slurmd, RUNNING, 0.7, noticed=False),
)

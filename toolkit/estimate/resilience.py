"""Equations R4 to R9: failures, checkpoints, and the share of time that counts.

Symbols: ``n`` GPUs, ``M_gpu`` seconds between failures of one GPU, ``M`` of the job, ``delta`` seconds to write a
checkpoint, ``R`` seconds from a failure to the first step after it, ``tau`` seconds of training between two
checkpoints, ``T`` seconds of training. Failures are taken as independent and memoryless, the end of the job after each
as certain, and a checkpoint as written while the job waits.

Left out: planned stops, time limits and preemption, errors of the program, checkpoints written in the background or
to local disks (a smaller ``delta``), hot spares and repairs without a restart (a smaller ``R``).
"""

from __future__ import annotations

from toolkit.equation import equation
from toolkit.estimate.parameters import count_parameters, lora_parameters
from toolkit.estimate.precision import state_precision
from toolkit.model import ModelSpec
from toolkit.numeric import Number, exp, maximum, minimum, where
from toolkit.resilience import Reliability, ResilienceEstimate
from toolkit.workload import Workload

LEAST_GOODPUT = 1e-3  # below, a run is said never to end


@equation("R4", "M_gpu/n")
def failure_interval_seconds(gpu_seconds_per_failure: float, gpus: Number) -> Number:
    """Mean time between failures of a job that any of its ``n`` GPUs ends.

    Source: the minimum of ``n`` independent exponential times; so arXiv 2410.21680, section III, projects 1.8 h
    for 16,384 GPUs.
    """
    return 1.0 * gpu_seconds_per_failure / gpus


@equation("R5", "P*(b_parameters + b_master + b_states)")
def checkpoint_bytes(trained: float, parameters: float, master: float, states: float) -> float:
    """Bytes of a checkpoint from which training goes on: weights, master copy and optimizer states, each once.

    Source: arXiv 1910.02054, section 3.1 (gradients are not kept); 14 bytes a parameter in mixed precision are the
    2.3 TB of BLOOM-176B.
    """
    return trained * (parameters + master + states)


@equation("R6", "bytes/storage")
def transfer_seconds(checkpoint: float, storage_bytes_per_second: float) -> float:
    """Time to write a checkpoint, or to read it again, over the shared file system.

    Source: definition of bandwidth.
    """
    return checkpoint / storage_bytes_per_second


@equation("R7", "[delta < 2*M]*(sqrt(2*delta*M)*(1 + sqrt(delta/(2*M))/3 + delta/(18*M)) - delta) + [delta >= 2*M]*M")
def checkpoint_interval_seconds(delta: Number, failure_interval: Number) -> Number:
    """The ``tau`` that loses least; its first term is Young's.

    Source: Daly 2006, doi 10.1016/j.future.2004.11.016, equation 37; Young 1974, doi 10.1145/361147.361115.
    """
    x = 0.5 * delta / failure_interval
    best = (2.0 * delta * failure_interval) ** 0.5 * (1.0 + x**0.5 / 3.0 + x / 9.0) - delta
    return where(x < 1.0, best, 1.0 * failure_interval)


@equation("R8", "tau/M*exp(-(R + tau + delta)/M)/(1 - exp(-(tau + delta)/M))")
def goodput(tau: Number, delta: Number, restart: Number, failure_interval: Number) -> Number:
    """Share of the job's time in which steps are made that are kept, where it is saved every ``tau`` seconds.

    The reciprocal of Daly's total time over the time of the steps, ``M/tau exp(R/M) (exp((tau + delta)/M) - 1)``,
    written so that it cannot overflow.

    Source: Daly 2006, doi 10.1016/j.future.2004.11.016, equation 20.
    """
    lost = (tau + delta) / failure_interval
    return tau / failure_interval * exp(-(restart / failure_interval + lost)) / (1.0 - exp(-lost))


@equation("R9", "T/(g*M)")
def interruptions(training_seconds: Number, share: Number, failure_interval: Number) -> Number:
    """Failures to expect until ``T`` seconds of training are done, the time of restarts and lost steps included.

    Source: a memoryless process has one event per ``M`` on average.
    """
    return training_seconds / (share * failure_interval)


def resilience(
    model: ModelSpec,
    workload: Workload,
    framework: str,
    gpus: int,
    step_seconds: float,
    known: Reliability,
    run_steps: int = 0,
) -> ResilienceEstimate:
    """The best checkpoint interval in whole steps, its goodput, and what to expect of a run of ``run_steps``."""
    states = state_precision(workload, framework)
    full = workload.method == "full"
    trained = (
        count_parameters(model).total if full else lora_parameters(model, workload.lora_rank, workload.lora_targets)
    )
    size = checkpoint_bytes(1.0 * trained, states.parameters, states.master, states.optimizer_states)
    delta = transfer_seconds(size, known.storage_bytes_per_second)
    between = failure_interval_seconds(known.gpu_seconds_per_failure, gpus)
    restart = known.restart_seconds + delta
    best = checkpoint_interval_seconds(delta, between)
    steps = maximum(best // step_seconds, 1.0)
    steps = minimum(steps, 1.0 * run_steps) if run_steps else steps
    share = goodput(steps * step_seconds, delta, restart, between)
    training = run_steps * step_seconds
    ends = run_steps > 0 and share > LEAST_GOODPUT
    return ResilienceEstimate(
        failure_interval_seconds=between,
        checkpoint_bytes=size,
        checkpoint_seconds=delta,
        restart_seconds=restart,
        checkpoint_interval_seconds=best,
        checkpoint_steps=int(steps),
        goodput=share,
        run_seconds=training / share if ends else None,
        interruptions=interruptions(training, share, between) if ends else None,
        assumptions=known.assumed,
    )

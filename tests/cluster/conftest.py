"""Clusters for the tests of this folder. A machine without Slurm fails them, with the line that installs it."""

import pytest

from tests.cluster import slurm


def started(**settings):
    try:
        return slurm.start(**settings)
    except slurm.SlurmUnavailable as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="module")
def cluster():
    """Four nodes with 8 fake H100 each: two jobs of two may run at a time."""
    running = started(nodes=4)
    yield running
    slurm.stop(running)


@pytest.fixture(scope="module")
def four_nodes():
    """Four nodes without GPUs: a job of two can go on elsewhere."""
    running = started(nodes=4, gres="")
    yield running
    slurm.stop(running)

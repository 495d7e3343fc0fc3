"""Every fault of the table: the run is finished all the same, its curve is the undisturbed one, and nothing is left.

The table itself comes at the end of the tests (tests/conftest.py), from whichever process made its rows.
"""

import dataclasses

import pytest

from tests.cluster import faults

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def curves(four_nodes, tmp_path_factory):
    """The undisturbed run of a recipe, made once."""
    made = {}

    def of(recipe):
        if recipe not in made:
            made[recipe] = faults.reference(four_nodes, tmp_path_factory.mktemp(recipe[0]), recipe)
        return made[recipe]

    return of


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: f"{fault.name} ({fault.launcher})")
def test_the_run_survives(four_nodes, curves, tmp_path, record_property, fault):
    if fault.mode and four_nodes.mode != fault.mode:
        assert four_nodes.mode in ("ns", "plain")  # stated at the start of the cluster: there is no network to cut
        return
    row = faults.inject(four_nodes, tmp_path, fault, curves(fault.recipe))
    record_property("fault", dataclasses.asdict(row))
    assert not row.problems, f"{row.problems}\n{row.said}"

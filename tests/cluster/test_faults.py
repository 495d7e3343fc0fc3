"""Every fault of the table: the run is finished all the same, its curve is the undisturbed one, and nothing is left."""

import pytest

from tests.cluster import faults

pytestmark = pytest.mark.cluster
ROWS: list[faults.Row] = []


@pytest.fixture(scope="module")
def curves(four_nodes, tmp_path_factory):
    """The undisturbed run of a recipe, made once."""
    made = {}

    def of(recipe):
        if recipe not in made:
            made[recipe] = faults.reference(four_nodes, tmp_path_factory.mktemp(recipe[0]), recipe)
        return made[recipe]

    return of


@pytest.fixture(scope="module", autouse=True)
def shown(request):
    """The table, at the end, also where output is captured."""
    ROWS.clear()
    yield
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n" + faults.table(ROWS))


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: f"{fault.name} ({fault.launcher})")
def test_the_run_survives(four_nodes, curves, tmp_path, fault):
    if fault.mode and four_nodes.mode != fault.mode:
        assert four_nodes.mode in ("ns", "plain")  # stated at the start of the cluster: there is no network to cut
        return
    row = faults.inject(four_nodes, tmp_path, fault, curves(fault.recipe))
    ROWS.append(row)
    assert not row.problems, f"{row.problems}\n{row.said}"

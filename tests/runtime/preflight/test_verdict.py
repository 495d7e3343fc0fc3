"""What follows from troubles: named nodes, or the whole job; and how pairs name a slow node."""

import itertools

from hypothesis import assume, given
from hypothesis import strategies as st

from toolkit.runtime.preflight import clocks, pairs
from toolkit.runtime.preflight.verdict import Trouble, judge, odd_ones_out


def trouble(check: str, *nodes: str, severity: str = "error") -> Trouble:
    return Trouble(check=check, nodes=nodes, message="x", severity=severity)


def test_exit_codes() -> None:
    nodes = ("a", "b", "c")
    assert judge([], nodes) == (0, ())
    assert judge([trouble("disk", "b", severity="warning")], nodes) == (0, ())
    assert judge([trouble("disk", "b")], nodes) == (76, ("b",))
    assert judge([trouble("disk", *nodes)], nodes) == (1, ())
    assert judge([trouble("gpus", each) for each in nodes], nodes) == (76, nodes)
    assert judge([trouble("storage"), trouble("gpus", "c")], nodes) == (1, ("c",))


def test_most_nodes_are_right_and_a_tie_goes_to_the_first() -> None:
    assert odd_ones_out({"a": "1", "b": "2", "c": "2"}, "a") == ("2", {"a": "1"})
    assert odd_ones_out({"a": "1", "b": "2"}, "b") == ("2", {"a": "1"})


def test_a_tie_goes_to_what_nodes_of_earlier_starts_had() -> None:
    """Otherwise a first node that is the odd one turns away all others."""
    assert odd_ones_out({"a": "1", "b": "2"}, "a", {"c": "2"}) == ("2", {"a": "1"})
    assert odd_ones_out({"a": "1", "b": "2"}, "a", {"c": "2", "d": "1", "e": "1"}) == ("1", {"b": "2"})
    # its own word of before counts no more, nor what nobody has now, nor anything where most agree
    assert odd_ones_out({"a": "1", "b": "2"}, "a", {"b": "2"}) == ("1", {"b": "2"})
    assert odd_ones_out({"a": "1", "b": "2"}, "a", {"c": "3", "d": "3"}) == ("1", {"b": "2"})
    assert odd_ones_out({"a": "1", "b": "1"}, "a", {"c": "2", "d": "2", "e": "2"}) == ("1", {})


def test_a_clock_that_is_off_is_named_whoever_is_first() -> None:
    def named(**offsets: float) -> list[tuple[tuple[str, ...], str]]:
        return [(each.nodes, each.severity) for each in clocks.judge({k: (v, 0.1) for k, v in offsets.items()})]

    assert named(n1=0.0, n2=0.05, n3=90.0, n4=-0.3) == [(("n3",), "error")]
    assert named(n1=0.0, n2=90.0, n3=90.1, n4=89.9) == [(("n1",), "error")]
    assert named(n1=0.0, n2=5.0, n3=0.0) == [(("n2",), "warning")]
    assert named(n1=0.0, n2=90.0) == [((), "error")]  # either of the two
    assert named(n1=0.0) == []
    (trouble,) = clocks.judge({"n1": (0.0, 0.0), "n2": (90.0, 10.0), "n3": (0.0, 0.0)})
    assert str(trouble).startswith("n2: its clock is 80 s behind that of most nodes")


@given(st.integers(2, 60))
def test_rounds_pair_every_node_at_most_once_and_nobody_twice(nodes: int) -> None:
    found = pairs.rounds(nodes)
    for one in found:
        members = list(itertools.chain(*one))
        assert len(set(members)) == len(members) == nodes - nodes % 2
    flat = list(itertools.chain(*found))
    assert len(set(flat)) == len(flat)
    if nodes == 4:
        assert sorted(flat) == list(itertools.combinations(range(4), 2))


@given(st.integers(3, 40), st.data())
def test_slow_nodes_are_named_and_no_others(count: int, data) -> None:
    """As long as every good node has a good partner and at most half are slow."""
    slow = data.draw(st.sets(st.integers(0, count - 1), max_size=1 if count < 5 else 2))
    hosts = [f"n{node}" for node in range(count)]
    ratios = {}
    met = list(itertools.chain(*pairs.rounds(count)))
    good = {node for pair in met if not slow & set(pair) for node in pair}
    assume(good == set(range(count)) - slow)
    for pair in met:
        speed = data.draw(st.floats(1.0, 1.9))
        ratios[pair] = speed * (20.0 if slow & set(pair) else 1.0)
    what = dict.fromkeys(ratios, "x")
    found = {
        name
        for each in pairs.judge(hosts, ratios, what, True, False)
        for name in each.nodes
        if each.severity == "error"
    }
    assert found == {hosts[node] for node in slow}


def test_two_slow_nodes_cannot_be_told_apart() -> None:
    (found,) = pairs.judge(["a", "b"], {(0, 1): 9.0}, {(0, 1): "slow"}, False, False)
    assert found.nodes == () and found.severity == "error"
    (found,) = pairs.judge(["a", "b"], {(0, 1): 9.0}, {(0, 1): "slow"}, True, True)
    assert found.severity == "warning"

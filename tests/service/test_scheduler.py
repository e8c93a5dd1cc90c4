"""The scheduler: pure, never over capacity, fair by age, and every job that waits can say why."""

from hypothesis import given
from hypothesis import strategies as st

from elastrain.service.jobs import Reason
from elastrain.service.scheduler import Ask, Grant, Node, Wait, plan


def ask(id: str, min: int = 1, max: int = 4, per_group: int = 1, held: int = 0, cpu: float = 1.0) -> Ask:
    return Ask(id, f"name of {id}", min, max, per_group, {"CPU": cpu}, held)


def nodes(*cpus: float) -> list[Node]:
    return [Node(f"n{i}", {"CPU": cpu}) for i, cpu in enumerate(cpus)]


def test_each_gets_its_minimum_in_order_before_anybody_gets_more() -> None:
    assert plan([ask("a"), ask("b")], nodes(3)) == {"a": Grant(2), "b": Grant(1)}
    assert plan([ask("a", min=2), ask("b")], nodes(2))["b"] == Wait(
        Reason.NO_CAPACITY,
        "It needs at least 1 worker with 1 CPU each; 0 would fit now beside the jobs that run",
        1,
    )


def test_a_large_job_is_not_starved_by_small_ones_behind_it() -> None:
    answers = plan([ask("running", held=2, max=4), ask("large", min=3), ask("small")], nodes(4))
    assert answers["running"] == Grant(2)
    large, small = answers["large"], answers["small"]
    assert isinstance(large, Wait) and (large.reason, large.short_of) == (Reason.NO_CAPACITY, 1)
    assert isinstance(small, Wait) and small.reason is Reason.BEHIND_OTHER_JOBS and "large" in small.message


def test_a_job_that_could_never_run_holds_nobody_back() -> None:
    answers = plan([ask("giant", min=9, max=9), ask("small", max=1)], nodes(4))
    assert answers["small"] == Grant(1)
    giant = answers["giant"]
    assert isinstance(giant, Wait) and (giant.reason, giant.short_of) == (Reason.DOES_NOT_FIT, 5)
    assert "would hold 4" in giant.message


def test_a_group_shares_a_node() -> None:
    answers = plan([ask("pairs", min=2, max=8, per_group=2)], nodes(3, 3))
    assert answers["pairs"] == Grant(4)
    lonely = plan([ask("pairs", min=2, max=2, per_group=2)], nodes(1, 1, 1))["pairs"]
    assert isinstance(lonely, Wait) and lonely.reason is Reason.DOES_NOT_FIT
    assert "in groups of 2 on one node" in lonely.message


def test_spares_are_reserved_beside_the_workers() -> None:
    one = Ask("a", "name of a", 1, 4, 1, {"CPU": 1.0}, spares=1)
    assert plan([one], nodes(3)) == {"a": Grant(2)}, "the third CPU is for the spare"
    held = Ask("a", "name of a", 1, 2, 1, {"CPU": 1.0}, 2, spares=1)
    assert plan([held, ask("b")], nodes(4))["b"] == Grant(1)
    late = plan([held, ask("b")], nodes(3))["b"]
    assert isinstance(late, Wait) and late.reason is Reason.NO_CAPACITY
    lonely = plan([one], nodes(1))["a"]
    assert lonely == Wait(
        Reason.DOES_NOT_FIT,
        "It needs at least 1 worker and 1 spare with 1 CPU each; all nodes together, empty, would hold 1",
        1,
    )


def test_fractions_of_a_cpu_add_up() -> None:
    assert plan([ask("tenths", max=10, cpu=0.1)], nodes(1))["tenths"] == Grant(10)


def test_a_drivers_own_cost_counts() -> None:
    assert plan([ask("a", max=2)], nodes(2), driver_cpu=0.5)["a"] == Grant(1)


def test_what_a_job_holds_stays_its_own_when_a_node_is_lost() -> None:
    answers = plan([ask("a", held=3, max=4), ask("b")], nodes(2))
    assert answers["a"] == Grant(3)
    assert isinstance(answers["b"], Wait)


def test_a_cluster_without_nodes_is_said_to_be_too_small() -> None:
    answer = plan([ask("a")], [])["a"]
    assert isinstance(answer, Wait) and answer.reason is Reason.DOES_NOT_FIT


asks = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(1, 2), st.sampled_from([0.5, 1.0, 2.0])),
    max_size=6,
)


@given(asks, st.lists(st.sampled_from([1.0, 2.0, 3.5, 8.0]), max_size=4))
def test_never_over_capacity_and_never_outside_the_range(
    wishes: list[tuple[int, int, int, float]], cpus: list[float]
) -> None:
    jobs = [
        ask(str(i), least * group, (least + more) * group, group, cpu=cpu)
        for i, (least, more, group, cpu) in enumerate(wishes)
    ]
    answers = plan(jobs, nodes(*cpus))
    assert set(answers) == {job.id for job in jobs}
    used = 0.0
    for job in jobs:
        answer = answers[job.id]
        if isinstance(answer, Grant):
            assert job.min <= answer.workers <= job.max and answer.workers % job.per_group == 0
            used += answer.workers * job.worker["CPU"]
        else:
            assert answer.message
    assert used <= sum(cpus) + 1e-6

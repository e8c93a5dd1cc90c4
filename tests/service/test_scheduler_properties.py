"""What holds whatever is asked of the scheduler: single plans, and long runs of a simulated cluster."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_sim import Sim
from elastrain.service.scheduling import (
    Ask,
    Curve,
    Grant,
    Node,
    Policy,
    Preempt,
    Project,
    Quota,
    Stage,
    Wait,
    plan,
)
from elastrain.service.scheduling.room import Room


def ask(id: str, min: int = 1, max: int = 4, per_group: int = 1, cpu: float = 1.0, **more: Any) -> Ask:
    return Ask(id, f"name of {id}", min, max, per_group, {"CPU": cpu}, **more)


def nodes(*cpus: float) -> list[Node]:
    return [Node(f"n{i}", {"CPU": cpu}) for i, cpu in enumerate(cpus)]


@st.composite
def asks(draw: st.DrawFn, shapes: Any = st.sampled_from([0.5, 1.0, 2.0]), groups: int = 2) -> list[Ask]:
    found = []
    for number in range(draw(st.integers(0, 7))):
        group = draw(st.integers(1, groups))
        least, more = draw(st.integers(1, 3)), draw(st.integers(0, 3))
        servers = draw(st.sampled_from([0, 0, 1, 2]))
        found.append(
            ask(
                f"j{number}",
                least * group,
                (least + more) * group,
                group,
                draw(shapes),
                spares=draw(st.sampled_from([0, 0, group])),
                servers=servers,
                server={"CPU": 0.5} if servers else {},
                project=draw(st.sampled_from("pq")),
                priority=draw(st.integers(0, 2)),
                since=float(number),
            )
        )
    return found


clusters = st.lists(st.sampled_from([1.0, 2.0, 3.5, 8.0]), max_size=4).map(lambda cpus: nodes(*cpus))
policies = st.builds(
    lambda quota, weight: Policy({"p": Project(Quota(workers=quota), weight)}, now=1000.0),
    st.sampled_from([None, 0, 2, 5]),
    st.sampled_from([0.5, 1.0, 3.0]),
)


def begun(waiting: list[Ask], cluster: list[Node], policy: Policy) -> list[Ask]:
    """A state that the scheduler itself has made: the first half was there before, the second is new."""
    made = plan(waiting[: len(waiting) // 2], cluster, policy).answers
    found = []
    for one in waiting:
        answer = made.get(one.id)
        if isinstance(answer, Grant):
            held = {"held": answer.workers, "holds": answer.workers + one.spares}
            found.append(replace(one, stage=Stage.RUNNING, **held))
        else:
            found.append(one)
    return found


@given(asks(), clusters, policies)
def test_never_over_capacity_never_outside_the_range_and_every_answer_says_why(
    waiting: list[Ask], cluster: list[Node], policy: Policy
) -> None:
    jobs = begun(waiting, cluster, policy)
    made = plan(jobs, cluster, policy)
    assert set(made.answers) == {job.id for job in jobs}
    used, workers = 0.0, 0
    for job in jobs:
        answer = made.answers[job.id]
        if isinstance(answer, Grant):
            assert job.min <= answer.workers <= job.max and answer.workers % job.per_group == 0
        else:
            assert answer.why if isinstance(answer, Preempt) else answer.message
        if isinstance(answer, Wait):
            assert answer.short_of > 0 and job.id in made.queue
        # until a driver has followed, it has what it had
        kept = max(job.holds, answer.workers + job.spares if isinstance(answer, Grant) else 0)
        servers = job.servers if kept else 0
        used += kept * job.worker["CPU"] + servers * job.server.get("CPU", 0.0)
        workers += kept + servers if job.project == "p" else 0
    assert used <= sum(node.resources["CPU"] for node in cluster) + 1e-6
    quota = policy.project("p").quota.workers
    assert quota is None or workers <= quota


@given(asks(groups=3), clusters, policies)
def test_what_is_granted_can_be_packed_on_the_nodes(
    waiting: list[Ask], cluster: list[Node], policy: Policy
) -> None:
    made = plan(waiting, cluster, policy).answers
    running = [
        replace(job, stage=Stage.RUNNING, held=answer.workers, holds=answer.workers + job.spares)
        for job in waiting
        if isinstance(answer := made[job.id], Grant)
    ]
    biggest_first = sorted(running, key=lambda job: -job.group["CPU"])
    room = Room(cluster, Policy(), [])
    for job in biggest_first:
        for _ in range((job.held + job.spares) // job.per_group):
            room.take(job, 1, driver=False)
    # the room may be tight in another order than the plan's; in the plan's own it is exact
    left = [node["CPU"] for node in Room(cluster, Policy(), running).left[0]]
    assert min(left, default=0.0) >= -1e-6


@given(asks(), clusters, policies)
def test_nobody_starts_before_one_of_higher_priority_that_fits_in_its_place(
    waiting: list[Ask], cluster: list[Node], policy: Policy
) -> None:
    made = plan(waiting, cluster, policy).answers
    started = [job for job in waiting if isinstance(made[job.id], Grant)]
    for job in waiting:
        if not isinstance(made[job.id], Wait) or job.project == "p":  # quotas have their own order
            continue
        higher = [other for other in started if other.priority >= job.priority and other.id != job.id]
        alone = plan([*higher, job], cluster, policy).answers
        lower = [other for other in started if other.priority < job.priority]
        assert not lower or isinstance(alone[job.id], Wait), "a lower one took its place"


@given(asks(), st.sampled_from([2.0, 3.5, 8.0]).map(nodes), policies)  # one node: no question of packing
def test_only_a_strictly_lower_priority_is_preempted_and_only_when_nobody_could_shrink_instead(
    waiting: list[Ask], cluster: list[Node], policy: Policy
) -> None:
    jobs = begun(waiting, cluster, policy)
    made = plan(jobs, cluster, policy).answers
    highest = max((job.priority for job in jobs if job.stage is Stage.WAITING), default=0)
    gone = [job for job in jobs if isinstance(made[job.id], Preempt)]
    assert all(job.priority < highest for job in gone)
    if gone:
        smallest = [
            replace(job, held=job.min, holds=job.min + job.spares) if job.stage is Stage.RUNNING else job
            for job in jobs
        ]
        lowered = plan(smallest, cluster, policy).answers
        assert any(isinstance(answer, Preempt) for answer in lowered.values()), "shrinking would have done"


@given(asks(), clusters, policies)
def test_the_same_facts_give_the_same_plan_in_whatever_order_they_come(
    waiting: list[Ask], cluster: list[Node], policy: Policy
) -> None:
    jobs = begun(waiting, cluster, policy)
    assert plan(jobs, cluster, policy) == plan(list(jobs), cluster, policy)
    order = plan(jobs, cluster, policy).queue
    assert sorted(order) == sorted(set(order))
    assert plan(waiting, cluster, policy).queue == plan(waiting[::-1], cluster, policy).queue


# -- long runs


@settings(max_examples=25)
@given(asks(st.just(1.0), 1), st.integers(0, 1000), st.sampled_from([None, 6]))
def test_every_job_that_fits_ends_one_day_and_nothing_is_ever_promised_twice(
    wishes: list[Ask], seed: int, quota: int | None
) -> None:
    sim = Sim(nodes(4.0, 3.0), {"p": Project(Quota(workers=quota))}, seed)
    for number, wish in enumerate(wishes):
        sim.submit(wish, work=20.0 + 7 * number)
        sim.rounds(2)
    sim.rounds(250)
    assert [job.ask.id for job in sim.alive] == []


@settings(max_examples=15)
@given(asks(groups=3), st.integers(0, 1000))
def test_mixed_shapes_end_too(wishes: list[Ask], seed: int) -> None:
    sim = Sim(nodes(8.0, 4.0), {}, seed)
    for number, wish in enumerate(wishes):
        if (wish.min + wish.spares) // wish.per_group <= Room(sim.nodes, Policy(), []).empty(wish, 99):
            sim.submit(wish, work=20.0 + 7 * number)
            sim.rounds(2)
    sim.rounds(300)
    assert [job.ask.id for job in sim.alive] == []


def test_a_large_job_gets_its_turn_in_a_stream_of_small_ones() -> None:
    sim = Sim(nodes(4.0))
    large = None
    for number in range(60):
        sim.submit(ask(f"small{number}", 1, 1), work=7)
        sim.rounds(1)
        if number == 5:
            large = sim.submit(ask("large", 4, 4), work=4)
    assert large is not None and large.ended


def test_a_preempted_job_comes_back() -> None:
    sim = Sim(nodes(4.0))
    low = sim.submit(ask("low", 3, 4), work=60)
    sim.rounds(3)
    urgent = sim.submit(ask("urgent", 4, 4, priority=5), work=20)
    sim.rounds(20)
    assert urgent.ended and low.preempted == 1
    sim.rounds(20)
    assert low.ended


@given(st.integers(0, 10_000), st.integers(2, 6), st.sampled_from([0.0, 0.05, 0.1]))
@settings(max_examples=15)
def test_a_quiet_cluster_with_noisy_measurements_comes_to_rest(seed: int, many: int, noise: float) -> None:
    sim = Sim(nodes(6.0, 6.0), {}, seed)
    for number in range(many):
        bend = sim.random.uniform(0.1, 1.0)

        def speed(workers: int, bend: float = bend) -> float:
            return 100.0 * float(workers**bend) * (1 + sim.random.uniform(-noise, noise))

        sim.submit(ask(f"j{number}", 1, 9, project="pq"[number % 2]), speed=speed)
        sim.rounds(3)
    sim.rounds(120)
    before = sum(job.resizes for job in sim.alive)
    sim.rounds(120)  # ten minutes
    after = sum(job.resizes for job in sim.alive)
    assert after - before <= (0 if noise == 0 else 2 * many), "jobs are resized for noise"


def test_spare_workers_end_where_they_gain_most() -> None:
    sim = Sim(nodes(10.0))
    flat = sim.submit(ask("flat", 1, 8), speed=lambda n: 100.0 * min(n, 2))
    sim.rounds(10)
    assert flat.ask.held == 8, "nothing is known of its speed, and nobody else wants them"
    steep = sim.submit(ask("steep", 1, 8), speed=lambda n: 100.0 * n)
    sim.rounds(60)
    assert flat.ask.held <= 3 and steep.ask.held >= 7


def test_projects_get_what_their_weights_say() -> None:
    sim = Sim(nodes(12.0), {"p": Project(weight=2.0), "q": Project(weight=1.0)})
    for number in range(8):
        sim.submit(ask(f"p{number}", 1, 12, project="p"))
        sim.submit(ask(f"q{number}", 1, 12, project="q"))
    sim.rounds(40)
    held = {name: sum(job.ask.held for job in sim.alive if job.ask.project == name) for name in "pq"}
    assert held == {"p": 8, "q": 4}


def test_a_measured_curve_between_and_behind_its_points() -> None:
    curve = Curve(((2, 200.0), (4, 300.0)))
    assert curve.speed(3) == 250.0 and 100.0 < curve.speed(1) < 120.0
    assert 300.0 < curve.speed(8) < 460.0 and 0.4 < curve.gain(2, 2) < 0.5
    assert Curve().gain(1, 1) > Curve().gain(2, 1) > 0.5 and Curve(((1, 9.0), (2, 9.0))).gain(2, 1) == 0.0

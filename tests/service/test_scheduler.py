"""The scheduler's rules one by one: pure, and every job that waits can say why."""

from dataclasses import replace
from typing import Any

from elastrain.service.jobs import Reason
from elastrain.service.scheduling import (
    Answer,
    Ask,
    Curve,
    Grant,
    Node,
    Plan,
    Policy,
    Preempt,
    Project,
    Quota,
    Stage,
    Wait,
    plan,
)

SATURATED = Curve(((1, 100.0), (2, 190.0), (3, 195.0), (4, 196.0)))
LINEAR = Curve(((1, 100.0), (2, 200.0), (4, 400.0)))


def ask(id: str, min: int = 1, max: int = 4, per_group: int = 1, cpu: float = 1.0, **more: Any) -> Ask:
    return Ask(id, f"name of {id}", min, max, per_group, {"CPU": cpu}, **more)


def runs(id: str, held: int, min: int = 1, max: int = 4, **more: Any) -> Ask:
    return ask(id, min, max, stage=Stage.RUNNING, held=held, **{"holds": held, **more})


def nodes(*cpus: float) -> list[Node]:
    return [Node(f"n{i}", {"CPU": cpu}) for i, cpu in enumerate(cpus)]


def answers(asks: list[Ask], cluster: list[Node], **policy: Any) -> dict[str, Answer]:
    return plan(asks, cluster, Policy(**{"now": 1000.0, **policy})).answers


def workers(made: dict[str, Answer]) -> dict[str, int]:
    return {id: answer.workers for id, answer in made.items() if isinstance(answer, Grant)}


def waits(answer: Answer) -> Wait:
    assert isinstance(answer, Wait), answer
    return answer


# -- minima, in the order of the queue


def test_each_gets_its_minimum_in_order_before_anybody_gets_more() -> None:
    assert workers(answers([ask("a"), ask("b")], nodes(3))) == {"a": 2, "b": 1}
    assert answers([ask("a", min=2), ask("b")], nodes(2))["b"] == Wait(
        Reason.NO_CAPACITY,
        "It needs at least 1 worker with 1 CPU each; 0 would fit now beside the jobs that run",
        1,
    )


def test_a_large_job_is_not_starved_by_small_ones_behind_it() -> None:
    made = plan([runs("fixed", 2, min=2), ask("large", min=3), ask("small", since=5.0)], nodes(4), Policy())
    large, small = waits(made.answers["large"]), waits(made.answers["small"])
    assert (large.reason, large.short_of) == (Reason.NO_CAPACITY, 1)
    assert small.reason is Reason.BEHIND_OTHER_JOBS and "large" in small.message
    assert made.queue == ["large", "small"] and made.first is not None and made.first.id == "large"
    assert made.answers["fixed"] == Grant(2), "nor does a running job grow into what is kept for it"


def test_a_job_that_needs_other_nodes_is_not_held_back() -> None:
    cluster = [Node("gpu", {"CPU": 8, "GPU": 1}), Node("cpu", {"CPU": 2})]
    busy = Ask("busy", "busy", 1, 1, 1, {"CPU": 1, "GPU": 1}, stage=Stage.RUNNING, held=1, places=("gpu",))
    second = Ask("second", "second", 1, 1, 1, {"CPU": 8, "GPU": 1}, since=1.0)
    made = answers([busy, second, ask("small", max=2, since=2.0)], cluster)
    assert waits(made["second"]).short_of == 1
    assert made["small"] == Grant(2)


def test_a_job_that_could_never_run_holds_nobody_back() -> None:
    made = answers([ask("giant", min=9, max=9), ask("small", max=1)], nodes(4))
    assert made["small"] == Grant(1)
    giant = waits(made["giant"])
    assert (giant.reason, giant.short_of) == (Reason.DOES_NOT_FIT, 5) and "would hold 4" in giant.message


def test_a_group_shares_a_node() -> None:
    assert answers([ask("pairs", min=2, max=8, per_group=2)], nodes(3, 3))["pairs"] == Grant(4)
    lonely = waits(answers([ask("pairs", min=2, max=2, per_group=2)], nodes(1, 1, 1))["pairs"])
    assert lonely.reason is Reason.DOES_NOT_FIT and "in groups of 2 on one node" in lonely.message


def test_spares_are_reserved_beside_the_workers() -> None:
    one = ask("a", spares=1)
    assert answers([one], nodes(3)) == {"a": Grant(2)}, "the third CPU is for the spare"
    held = runs("a", 2, max=2, min=2, spares=1, holds=3)
    assert answers([held, ask("b", max=1)], nodes(4))["b"] == Grant(1)
    assert waits(answers([held, ask("b")], nodes(3))["b"]).reason is Reason.NO_CAPACITY
    assert answers([one], nodes(1))["a"] == Wait(
        Reason.DOES_NOT_FIT,
        "It needs at least 1 worker and 1 spare with 1 CPU each; all nodes together, empty, would hold 1",
        1,
    )


def test_fractions_of_a_cpu_add_up() -> None:
    assert answers([ask("tenths", max=10, cpu=0.1)], nodes(1))["tenths"] == Grant(10)


def test_a_drivers_own_cost_counts() -> None:
    assert answers([ask("a", max=2)], nodes(2), driver={"CPU": 0.5})["a"] == Grant(1)


def test_a_drivers_memory_counts_as_well() -> None:
    cluster = [Node("n0", {"CPU": 4, "memory": 6e9})]
    each = {"CPU": 1.0, "memory": 4e9}
    made = answers([ask("a", max=1), ask("b", max=1, since=1.0)], cluster, driver=each)
    assert made["a"] == Grant(1)
    assert waits(made["b"]).reason is Reason.NO_CAPACITY, "there are cores, and no memory for its driver"


def test_what_a_job_holds_stays_its_own_when_a_node_is_lost() -> None:
    made = answers([runs("a", 3, min=3, places=("n0", "n0", "gone")), ask("b")], nodes(2))
    assert made["a"] == Grant(3) and isinstance(made["b"], Wait)


def test_a_cluster_without_nodes_is_said_to_be_too_small() -> None:
    assert waits(answers([ask("a")], [])["a"]).reason is Reason.DOES_NOT_FIT


def test_what_others_use_on_the_cluster_is_not_handed_out() -> None:
    cluster = [Node("n0", {"CPU": 4.0}, others={"CPU": 3.0})]
    assert answers([ask("a")], cluster)["a"] == Grant(1)


def test_a_node_that_the_autoscaler_could_add_counts_after_those_that_are_there() -> None:
    cluster = [*nodes(2), Node("new", {"CPU": 2.0}, new=True)]
    assert answers([ask("a", min=3, max=4)], cluster)["a"] == Grant(4)
    tight = waits(answers([ask("a", min=5, max=5)], cluster)["a"])
    assert tight.reason is Reason.DOES_NOT_FIT and "that could still be added" in tight.message
    pair = [runs("b", 2, max=2, places=("n0", "n0")), ask("a", max=1)]
    assert answers(pair, cluster) == {"b": Grant(2), "a": Grant(1)}, "nobody shrinks if a node can be added"


# -- who is first


def test_higher_priority_is_first_then_the_longest_waiting() -> None:
    asks = [ask("old", since=1.0), ask("young", since=9.0), ask("urgent", since=99.0, priority=5)]
    made = plan(asks, nodes(1), Policy(now=100.0))
    assert workers(made.answers) == {"urgent": 1} and made.queue == ["old", "young"]


def test_projects_take_turns_in_the_queue_by_what_they_have() -> None:
    mine = [ask(f"m{i}", project="mine", since=float(i), max=1) for i in range(3)]
    late = ask("late", project="theirs", since=50.0, max=1)
    assert plan([*mine, late], nodes(2), Policy(now=60.0)).queue == ["m1", "m2"]
    rich = runs("rich", 1, max=1, project="mine")
    assert workers(answers([rich, *mine, late], nodes(2), now=60.0)) == {"rich": 1, "late": 1}
    weights = {"mine": Project(weight=4.0)}
    heavy = plan([rich, *mine, late], nodes(1), Policy(weights, now=60.0)).queue
    assert heavy == ["late", "m0", "m1", "m2"]


def test_who_waited_an_hour_no_longer_takes_turns() -> None:
    rich = runs("rich", 1, max=1, project="mine")
    asks = [rich, ask("old", project="mine", since=0.0), ask("new", project="theirs", since=3500.0)]
    assert plan(asks, nodes(2), Policy(now=3599.0)).queue == ["old"]
    assert plan(asks, nodes(2), Policy(now=3600.0)).queue == ["new"]


# -- shrinking, preempting


def test_an_elastic_job_shrinks_for_one_that_waits_and_nothing_is_promised_twice() -> None:
    made = plan([runs("big", 4), ask("new", min=2, since=5.0)], nodes(4), Policy(now=1000.0)).answers
    assert made["big"] == Grant(2, "for new (name of new), which needs at least 2 workers with 1 CPU each")
    assert (
        "once big (name of big) gave back" in waits(made["new"]).message and waits(made["new"]).short_of == 2
    )
    giving = runs("big", 2, holds=4, shrunk_at=1000.0)
    assert answers([giving, ask("new", min=2)], nodes(4), now=1001.0)["big"] == Grant(2)
    assert isinstance(answers([giving, ask("new", min=2)], nodes(4), now=1001.0)["new"], Wait)
    late = ask("late", since=9.0)
    assert waits(answers([giving, ask("new", min=2), late], nodes(4))["late"]).short_of == 1
    known = replace(giving, places=("n0",) * 4)
    assert "once big" in waits(answers([known, ask("new", min=2)], nodes(4), now=1001.0)["new"]).message
    gave = replace(giving, holds=2)
    assert workers(answers([gave, ask("new", min=2)], nodes(4), now=1001.0)) == {"big": 2, "new": 2}


def test_lower_priority_shrinks_first_then_the_project_with_most_then_what_is_worth_least() -> None:
    def shrinks(*running: Ask) -> list[str]:
        made = answers([*running, ask("new", project="n")], nodes(sum(job.held for job in running)))
        return [job.id for job in running if made[job.id] != Grant(job.held)]

    assert shrinks(runs("a", 2, priority=1, curve=SATURATED), runs("b", 2)) == ["b"]
    assert shrinks(runs("a", 2, project="p"), runs("b", 3, project="q")) == ["b"]
    assert shrinks(runs("a", 3, project="p"), runs("b", 2, project="q")) == ["a"]
    assert shrinks(runs("a", 3, curve=LINEAR), runs("b", 3, curve=SATURATED)) == ["b"]


def test_nobody_shrinks_in_vain() -> None:
    made = answers([runs("big", 4, min=3), ask("new", min=2)], nodes(4))
    assert made["big"] == Grant(4) and waits(made["new"]).short_of == 2


def test_only_the_lower_priority_is_preempted_and_only_if_shrinking_is_not_enough() -> None:
    low, equal = runs("low", 2, min=2), runs("equal", 2, min=2, priority=1)
    made = answers([low, equal, ask("new", min=2, priority=1)], nodes(4))
    assert isinstance(made["low"], Preempt) and made["equal"] == Grant(2)
    assert "low" in waits(made["new"]).message
    elastic = runs("elastic", 3, min=1)
    made = answers([low, elastic, ask("new", min=2, priority=1)], nodes(5))
    assert made["low"] == Grant(2) and isinstance(made["elastic"], Grant) and made["elastic"].workers == 1


def test_of_two_the_lower_and_then_the_younger_is_preempted() -> None:
    asks = [
        runs(id, 2, min=2, priority=p, since=s) for id, p, s in (("a", 0, 1.0), ("b", 0, 2.0), ("c", 1, 3.0))
    ]
    made = answers([*asks, ask("new", min=2, priority=9)], nodes(6))
    assert [id for id in made if isinstance(made[id], Preempt)] == ["b"]


def test_while_a_preempted_job_leaves_nobody_else_is_preempted() -> None:
    going = ask("going", min=2, stage=Stage.LEAVING, held=2, holds=2)
    made = answers([going, runs("other", 2, min=2), ask("new", min=2, priority=1)], nodes(4))
    assert made["other"] == Grant(2) and "once going" in waits(made["new"]).message


def test_the_group_that_shrinks_is_on_the_node_where_it_helps() -> None:
    """The last groups leave first, so that job gives up workers whose last one is in the right place."""
    asks = [
        runs("here", 2, min=1, places=("n0", "n1")),
        runs("there", 2, min=1, places=("n1", "n0")),
        ask("pair", min=2, max=2, per_group=2),
    ]
    made = answers(asks, nodes(2, 3))
    assert (made["here"], made["there"]) == (Grant(1, made["here"].why), Grant(2))  # type: ignore[union-attr]


# -- quotas


def test_a_quota_holds_and_the_sentence_names_it() -> None:
    projects = {"p": Project(Quota(workers=3))}
    asks = [runs("a", 2, max=2, min=2, project="p"), ask("b", min=2, project="p"), ask("c", project="q")]
    made = answers(asks, nodes(9), projects=projects)
    wait = waits(made["b"])
    assert (wait.reason, wait.short_of) == (Reason.OVER_QUOTA, 1)
    assert "the project p uses 2 of its 3 workers" in wait.message
    assert made["c"] == Grant(4), "another project is not held back"
    assert answers([runs("a", 1, max=9, project="p")], nodes(9), projects=projects)["a"] == Grant(3)


def test_a_quota_of_gpus_counts_gpus() -> None:
    worker = {"CPU": 1.0, "GPU": 2.0}
    job = Ask("a", "a", 1, 8, 1, worker, project="p")
    made = answers([job], [Node("n", {"CPU": 64, "GPU": 16})], projects={"p": Project(Quota(gpus=6))})
    assert made["a"] == Grant(3)


def test_within_a_quota_jobs_shrink_for_each_other_but_not_for_other_projects_quotas() -> None:
    projects = {"p": Project(Quota(workers=4))}
    asks = [runs("a", 4, project="p"), runs("z", 4, project="q"), ask("b", project="p", priority=9)]
    made = answers(asks, nodes(20), projects=projects)
    assert workers(made) == {"a": 3, "z": 4} and isinstance(made["b"], Wait)


def test_a_lowered_quota_shrinks_jobs_and_preempts_none() -> None:
    asks = [runs("a", 4, min=2, project="p"), runs("b", 4, min=3, project="p", priority=1)]
    assert workers(answers(asks, nodes(8), projects={"p": Project(Quota(workers=3))})) == {"a": 2, "b": 3}


# -- spare capacity


def test_spare_workers_go_where_they_gain_most() -> None:
    asks = [runs("flat", 2, curve=SATURATED), runs("steep", 2, max=6, curve=LINEAR)]
    assert workers(answers(asks, nodes(7))) == {"flat": 2, "steep": 5}
    alone = answers([runs("flat", 2, curve=SATURATED)], nodes(7))
    assert workers(alone) == {"flat": 2}, "more would be worth next to nothing"


def test_between_projects_shares_decide_and_within_one_the_gain() -> None:
    asks = [
        runs("flat", 1, max=9, project="p", curve=Curve(((1, 100.0), (2, 180.0)))),
        runs("q", 1, max=9, project="q"),
    ]
    assert workers(answers(asks, nodes(8))) == {"flat": 4, "q": 4}


def test_workers_move_to_where_they_gain_clearly_more_once_things_have_settled() -> None:
    asks = [runs("flat", 4, curve=SATURATED), runs("steep", 2, max=8, curve=LINEAR)]
    made = answers(asks, nodes(6))
    assert made["flat"] == Grant(2, "they gain more elsewhere") and made["steep"] == Grant(2)
    fresh = [replace(asks[0], grown_at=990.0), asks[1]]
    assert workers(answers(fresh, nodes(6))) == {"flat": 4, "steep": 2}


def test_jobs_that_are_nearly_level_are_left_alone() -> None:
    assert workers(answers([runs("a", 3), runs("b", 2)], nodes(5))) == {"a": 3, "b": 2}
    assert workers(answers([runs("a", 4), runs("b", 1)], nodes(5))) == {"a": 4, "b": 1}
    assert workers(answers([runs("a", 5, max=9), runs("b", 1)], nodes(6))) == {"a": 3, "b": 1}


def test_what_was_taken_from_a_job_does_not_come_back_at_once() -> None:
    assert workers(answers([runs("a", 2, shrunk_at=950.0)], nodes(4))) == {"a": 2}
    assert workers(answers([runs("a", 2, shrunk_at=940.0)], nodes(4))) == {"a": 4}


def test_workers_that_make_a_job_slower_are_given_back() -> None:
    slower = Curve(((3, 300.0), (4, 250.0)))
    assert workers(answers([runs("a", 4, curve=slower)], nodes(4))) == {"a": 3}
    assert workers(answers([runs("a", 3, curve=slower)], nodes(4))) == {"a": 3}


def test_a_job_whose_minimum_was_raised_gets_it_before_those_behind_it() -> None:
    made: Plan = plan([runs("a", 2, min=4, max=4), ask("b", since=5.0)], nodes(3), Policy())
    assert made.answers["a"] == Grant(2) and isinstance(made.answers["b"], Wait)
    assert plan([runs("a", 2, min=4, max=4), ask("b", since=5.0)], nodes(4), Policy()).answers["a"] == Grant(
        4
    )


def test_a_thousand_jobs_that_wait_cost_no_time_and_few_sentences() -> None:
    asks = [ask(f"j{i:04}", min=2, since=float(i)) for i in range(1000)]
    made = plan([runs("busy", 2, min=2), *asks], nodes(2), Policy())
    sentences = {answer.message for answer in made.answers.values() if isinstance(answer, Wait)}
    assert len(sentences) == 3 and made.queue == [job.id for job in asks]


# -- servers


def served(id: str, **more: Any) -> Ask:
    return ask(id, **{"servers": 2, "server": {"CPU": 0.5}, **more})


def test_servers_take_their_part_of_the_nodes_beside_the_workers() -> None:
    assert workers(answers([served("a", max=9)], nodes(4))) == {"a": 3}
    running = runs("a", 3, max=9, servers=2, server={"CPU": 0.5})
    made = answers([running, ask("b", since=1.0)], nodes(4))
    assert made["a"] == Grant(2, "for b (name of b), which needs at least 1 worker with 1 CPU each")
    assert workers(answers([replace(running, held=2, holds=2), ask("b")], nodes(4))) == {"a": 2, "b": 1}


def test_a_job_starts_only_once_there_is_room_for_its_servers_too_and_says_so() -> None:
    busy = runs("busy", 1, max=1)
    wait = waits(answers([busy, served("a")], nodes(2))["a"])
    assert wait.reason is Reason.NO_CAPACITY
    assert "at least 1 worker with 1 CPU each, and 2 servers with 0.5 CPU each" in wait.message
    alone = waits(answers([served("a", min=2)], nodes(1, 1))["a"])
    assert alone.reason is Reason.DOES_NOT_FIT and "and 2 servers" in alone.message
    assert workers(answers([served("a", min=2, max=2)], nodes(1, 2))) == {"a": 2}
    assert workers(answers([served("a", server={}, min=2, max=2)], nodes(1, 1))) == {"a": 2}


def test_servers_count_as_workers_in_a_quota() -> None:
    policy = {"projects": {"default": Project(Quota(workers=4))}}
    assert workers(answers([served("a", max=9)], nodes(9), **policy)) == {"a": 2}
    wait = waits(answers([runs("busy", 2, min=2, max=2), served("a")], nodes(9), **policy)["a"])
    assert wait.reason is Reason.OVER_QUOTA and "uses 2 of its 4 workers" in wait.message


def test_a_preempted_job_gives_its_servers_back_as_well() -> None:
    low = runs("low", 1, max=1, servers=2, server={"CPU": 0.5})
    urgent = ask("urgent", min=2, max=2, priority=1)
    made = answers([low, urgent], nodes(2))
    assert isinstance(made["low"], Preempt) and isinstance(made["urgent"], Wait)
    going = replace(low, stage=Stage.LEAVING)
    assert isinstance(answers([going, urgent], nodes(2))["urgent"], Wait), "they are there until it has left"


def test_a_driver_and_servers_find_room_on_nodes_of_several_sizes() -> None:
    assert workers(answers([served("a", min=4, max=4)], nodes(2, 3.5), driver={"CPU": 0.5})) == {"a": 4}
    wait = waits(answers([served("a", min=5, max=5)], nodes(2, 3.5), driver={"CPU": 0.5})["a"])
    assert wait.reason is Reason.DOES_NOT_FIT

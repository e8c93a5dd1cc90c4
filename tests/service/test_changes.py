"""News of jobs within one process: a shortcut that may wake somebody in vain, and never forgets anybody."""

import threading

import pytest

from elastrain.service import changes
from elastrain.service.changes import RECONCILER, Changes, orders


def test_a_driver_is_not_woken_by_what_it_reported_itself() -> None:
    news = Changes()
    seen = news.count(orders("j-1")), news.count("j-1")
    news.tell("j-1", reported=True)
    assert news.count(orders("j-1")) == seen[0]
    assert news.count("j-1") != seen[1]
    news.tell("j-1")
    assert news.count(orders("j-1")) != seen[0]


def test_facts_of_training_do_not_wake_the_reconciler() -> None:
    news = Changes()
    seen = news.count(RECONCILER)
    news.tell("j-1", reported=True)
    assert news.count(RECONCILER) == seen
    news.tell("j-1", reported=True, decide=True)
    assert news.count(RECONCILER) != seen


def test_a_thread_is_woken_by_what_it_waits_for_and_not_by_all_that_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    news, woken = Changes(), list[int]()
    wake = news._condition.notify_all
    monkeypatch.setattr(news._condition, "notify_all", lambda: (woken.append(1), wake()))
    seen, inside = news.count(RECONCILER), threading.Event()

    def wait() -> None:
        inside.set()
        news.wait(RECONCILER, seen, 30.0)

    waiting = threading.Thread(target=wait)
    waiting.start()
    inside.wait()
    while not news._waited_for:
        pass
    news.tell("j-1", reported=True)
    assert woken == []
    news.tell("j-1", decide=True)
    waiting.join()
    assert woken == [1]
    news.tell("j-1", decide=True)
    assert (woken, dict(news._waited_for)) == ([1], {})


def test_news_of_a_hundred_thousand_jobs_are_not_kept_for_ever_and_nobody_misses_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changes, "KEPT", 10)
    news = Changes()
    news.tell("j-first")
    seen = news.count("j-first")
    for number in range(1000):
        news.tell(f"j-{number}")
    assert len(news._last) < 20
    later = news.count("j-first")
    assert later != seen, "forgotten, so whoever waits must look"
    news.tell("j-first")
    assert news.count("j-first") != later


def test_a_listener_hears_of_its_own_job_until_it_leaves() -> None:
    news, heard = Changes(), list[str]()
    with news.listening(orders("j-1"), lambda: heard.append("1")):
        news.tell("j-2")
        assert heard == []
        news.tell("j-1")
        assert heard == ["1"]
    news.tell("j-1")
    assert heard == ["1"]
    assert news._listeners == {}

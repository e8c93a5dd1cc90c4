"""News of jobs within one process: a shortcut that may wake somebody in vain, and never forgets anybody."""

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

"""Real service processes on one store: two at once, and killed with SIGKILL while they work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from databases import Postgres
from service_process import Crew, HttpRay, Service, eventually
from world import SPEC

pytestmark = [pytest.mark.stores, pytest.mark.timeout(240)]

ONE = {**SPEC, "workers": {"min": 1, "max": 1}}
Start = Callable[..., Service]


@pytest.fixture
def ray() -> Iterator[HttpRay]:
    made = HttpRay()
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgres"])
def start(request: pytest.FixtureRequest, tmp_path: Path, ray: HttpRay) -> Iterator[Start]:
    """Starts services on one new database, that of the first."""
    server = request.getfixturevalue("postgres") if request.param == "postgres" else None
    url = server.empty() if server else None
    made: list[Service] = []

    def started(dies_at: str | None = None) -> Service:
        made.append(Service(tmp_path, ray, url))
        return made[-1].start(dies_at)

    yield started
    for service in made:
        service.stop()
    if server and url:
        server.drop(url)


@pytest.fixture
def crew(ray: HttpRay, tmp_path: Path) -> Iterator[Crew]:
    """Drivers from the beginning on."""
    made = Crew(ray, tmp_path)
    yield made
    made.close()
    assert made.faults == []


@pytest.fixture
def later(ray: HttpRay, tmp_path: Path) -> Iterator[Callable[..., Crew]]:
    """Drivers from the moment on in which the test asks for them."""
    made: list[Crew] = []

    def crew(**how: Any) -> Crew:
        made.append(Crew(ray, tmp_path, **how))
        return made[-1]

    yield crew
    for one in made:
        one.close()
        assert one.faults == []


def submit(client: httpx.Client, number: int) -> str | None:
    """The job's id; None if nobody answered."""
    try:
        reply = client.post("/v1/jobs", json={**ONE, "name": f"n-{number}"})
    except httpx.HTTPError:
        return None
    assert reply.status_code == 201, reply.text
    return str(reply.json()["id"])


def all_jobs(client: httpx.Client) -> list[dict[str, Any]]:
    reply = client.get("/v1/jobs", params={"limit": 200})
    assert reply.is_success, reply.text
    return list(reply.json()["items"])


def drivers(submissions: Iterable[str]) -> list[str]:
    """Without those that search nodes for what a driver did not vouch for."""
    return [id for id in submissions if "-sweep-" not in id]


def ended(client: httpx.Client, count: int) -> list[dict[str, Any]]:
    def look() -> Any:
        jobs = all_jobs(client)
        return jobs if len([job for job in jobs if job["finished_at"]]) >= count else None

    return list(eventually(look, f"the end of {count} jobs"))


def test_two_services_on_one_database_act_on_each_job_once(start: Start, ray: HttpRay, crew: Crew) -> None:
    services = [start(), start()]
    clients = [service.client() for service in services]
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda number: submit(clients[number % 2], number), range(50)))
    jobs = ended(clients[0], 50)
    assert {job["id"] for job in jobs} == set(ids)
    assert {(job["status"], job["counters"]["attempts"]) for job in jobs} == {("succeeded", 1)}
    submits = drivers(ray.submits)
    assert set(Counter(submits).values()) == {1} and len(submits) == 50
    stands_by = [service for service in services if "standing by" in service.log.read_text()]
    assert len(stands_by) == 1


def test_several_processes_at_one_address_act_on_each_job_once_though_one_of_them_is_killed(
    postgres: Postgres, tmp_path: Path, ray: HttpRay, crew: Crew
) -> None:
    service = Service(tmp_path, ray, postgres.empty(), arguments=("--workers", "2")).start()
    assert service.process is not None
    log = service.log.read_text
    eventually(lambda: "moves the jobs now" in log() and "standing by" in log(), "both")
    token = (tmp_path / "token").read_text().strip()

    def fresh(number: int) -> str | None:
        """Each on a connection of its own: whichever process takes it."""
        with httpx.Client(
            base_url=service.url, headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=30
        ) as client:
            return submit(client, number)

    ids = [fresh(number) for number in range(10)]
    answering = [
        child
        for child in psutil.Process(service.process.pid).children()
        if any("spawn_main" in part for part in child.cmdline())
    ]
    assert len(answering) == 2
    answering[0].kill()
    ids += [eventually(lambda number=number: fresh(number), "an answer") for number in range(10, 20)]
    jobs = ended(service.client(), 20)
    assert set(ids) <= {job["id"] for job in jobs}
    assert {(job["status"], job["counters"]["attempts"]) for job in jobs} == {("succeeded", 1)}
    assert set(Counter(drivers(ray.submits)).values()) == {1}
    service.stop()
    assert not any(process.is_running() for process in answering)


def test_a_scrape_reads_what_all_processes_at_one_address_count_and_what_a_killed_one_had_counted(
    postgres: Postgres, tmp_path: Path, ray: HttpRay
) -> None:
    service = Service(tmp_path, ray, postgres.empty(), arguments=("--workers", "2")).start()
    assert service.process is not None
    log = service.log.read_text
    eventually(lambda: "moves the jobs now" in log() and "standing by" in log(), "both")
    headers = {"Authorization": f"Bearer {(tmp_path / 'token').read_text().strip()}"}

    def ask(path: str) -> str:
        """On a connection of its own: whichever process takes it."""
        return httpx.get(f"{service.url}{path}", headers=headers, trust_env=False, timeout=30).text

    def read(name: str) -> float:
        (line,) = [line for line in ask("/metrics").splitlines() if line.startswith(name)]
        return float(line.rsplit(" ", 1)[1])

    me = 'elastrain_http_requests_total{method="GET",route="/v1/me",status="200"}'
    for _ in range(20):
        ask("/v1/me")
    assert {read(me) for _ in range(6)} == {20.0}
    eventually(lambda: read("elastrain_reconciler_leader ") == 1.0, "one leads")
    children = psutil.Process(service.process.pid).children()
    victim = next(c for c in children if any("spawn_main" in part for part in c.cmdline()))
    victim.kill()
    eventually(lambda: log().count("standing by") + log().count("moves the jobs now") > 2, "another one")
    assert eventually(lambda: read(me), "an answer") == 20.0
    eventually(lambda: read("elastrain_reconciler_leader ") == 1.0, "one leads")
    service.stop()


def test_when_the_leading_service_is_killed_the_other_one_goes_on(
    start: Start, ray: HttpRay, crew: Crew
) -> None:
    first = start()
    eventually(lambda: "moves the jobs now" in first.log.read_text())
    second = start()
    client = second.client()
    ids = [submit(client, number) for number in range(10)]
    eventually(lambda: len(ray.jobs) > 3)
    first.kill()
    ids += [submit(client, number) for number in range(10, 20)]
    # drivers of the first one hear of its successor when it listens again
    first.start()
    jobs = ended(client, 20)
    assert {job["id"] for job in jobs} == set(ids)
    assert {(job["status"], job["counters"]["attempts"]) for job in jobs} == {("succeeded", 1)}
    assert len(drivers(ray.jobs)) == 20
    assert "moves the jobs now" in second.log.read_text()


def test_a_service_killed_amid_twenty_submissions_loses_and_doubles_none(
    start: Start, ray: HttpRay, crew: Crew
) -> None:
    service = start()
    client = service.client()
    with ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(submit, client, number) for number in range(20)]
        eventually(lambda: sum(one.done() for one in waiting) >= 5)
        service.kill()
        answered = [one.result() for one in waiting]
    service.start()
    acknowledged = {id for id in answered if id is not None}
    jobs = ended(client, len(acknowledged))
    names = Counter(job["name"] for job in jobs)
    assert len(acknowledged) >= 5
    assert acknowledged <= {job["id"] for job in jobs}
    assert max(names.values()) == 1 and len(jobs) <= 20
    eventually(lambda: all(job["status"] == "succeeded" for job in all_jobs(client)))
    assert {job["counters"]["attempts"] for job in all_jobs(client)} == {1}


@pytest.mark.parametrize(
    "point", ["before open", "after open", "ray has the driver", "after submit", "after close", "placed"]
)
def test_a_service_that_kills_itself_at_a_point_is_followed_by_one_that_goes_on(
    point: str, start: Start, ray: HttpRay, later: Callable[..., Crew]
) -> None:
    service = start()
    client = service.client()
    id = submit(client, 1)
    eventually(lambda: len(ray.jobs) == 1)
    service.kill()
    ray.set(next(iter(ray.jobs)), "FAILED")  # its driver is gone, unclaimed
    service.start(dies_at=point)
    assert service.died() == -9
    service.start()
    later()
    [job] = ended(client, 1)
    assert (job["id"], job["status"], job["counters"]["attempts"]) == (id, "succeeded", 2)
    assert len(ray.jobs) == 2


def test_no_metric_and_no_job_is_lost_by_writers_in_parallel_or_by_a_kill_among_them(
    start: Start, ray: HttpRay, later: Callable[..., Crew]
) -> None:
    service = start()
    client = service.client()
    later(steps=150, pause_s=0.02)
    trained = [submit(client, number) for number in range(4)]
    eventually(lambda: len(ray.jobs) == 4)
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda number: submit(client, number), range(4, 24)))
        for _ in range(10):
            all_jobs(client)
    service.kill()
    service.start()
    jobs = ended(client, 24)
    assert None not in ids and {job["id"] for job in jobs} == {*trained, *ids}
    assert {job["status"] for job in jobs} == {"succeeded"}
    for job in jobs:
        loss = client.get(f"/v1/jobs/{job['id']}/metrics").json()["loss"]
        assert [point[0] for point in loss] == list(range(1, 151))

"""Numbers and names that JSON, SQL or a chart may choke on, from a driver's post to every answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from serving import Live
from world import World

# as a driver writes them; 1e400 is beyond what a float holds
ODD = """{"nan": "NaN", "inf": "Infinity", "neg": "-Infinity", "huge": 1e400, "zero": -0.0,
 "big": 9223372036854775808, "": 1.0, "verlust \u00fc\u2603": 2.0, "fine": 0.5}"""
SHOWN = {"nan": "NaN", "inf": "Infinity", "neg": "-Infinity", "huge": "Infinity", "zero": 0.0}
SHOWN |= {"big": 2.0**63, "(unnamed)": 1.0, "verlust \u00fc\u2603": 2.0, "fine": 0.5}


def strict(text: str) -> Any:
    """JSON as the standard has it: no NaN, no Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_odd_numbers_and_names_are_answered_everywhere_in_strict_json(
    tmp_path: Path, database: Callable[[], str | None]
) -> None:
    world = World(tmp_path, database=database())
    token = world.control.auth.ensure_admin_token(tmp_path / "token")
    id, driver = world.running()
    live = Live(world.control)
    admin, ours = ({"Authorization": f"Bearer {one}"} for one in (token, driver.token))
    with httpx.Client(base_url=live.url, trust_env=False) as http:
        facts = ", ".join(
            f'{{"kind": "metric", "step": {step}, "epoch_no": 0, "values": {values}}}'
            for step, values in ((1, '{"fine": 0.25}'), (2, ODD), (3, '{"fine": 0.75}'))
        )
        body = f'{{"attempt": 1, "first_seq": {driver.seq}, "facts": [{facts}]}}'
        ours["Content-Type"] = "application/json"
        posted = http.post("/v1/driver/facts", content=body.encode(), headers=ours)
        assert posted.status_code == 200, posted.text
        answers = {
            path: http.get(f"/v1/jobs{path}", headers=admin)
            for path in ("", f"/{id}", f"/{id}/metrics", f"/{id}/events")
        }
        stream = {**admin, "Accept": "text/event-stream"}
        driver.ends("succeeded")
        world.round()
        streamed = http.get(f"/v1/jobs/{id}/metrics", headers=stream).text
    live.stop()
    world.store.close()
    assert {reply.status_code for reply in answers.values()} == {200}
    found = {path: strict(reply.text) for path, reply in answers.items()}
    metrics = found[f"/{id}/metrics"]
    assert [point[1] for point in metrics["fine"]] == [0.25, 0.5, 0.75]
    for name, value in SHOWN.items():
        assert value in [point[1] for point in metrics[name]], name
    latest = found[f"/{id}"]["metrics"]["latest"]
    assert {name: latest[name] for name in SHOWN} == {**SHOWN, "fine": 0.75}
    assert found[""]["items"][0]["metrics"]["latest"] == latest
    for line in streamed.splitlines():
        if line.startswith("data: "):
            strict(line.removeprefix("data: "))
    assert '"nan":"NaN"' in streamed

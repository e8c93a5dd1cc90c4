"""doctor: is everything as it should be, and what is not?"""

from importlib.metadata import version as installed
from typing import Any

from elastrain.api.cli.output import Column, Format, Item, Output, field, print_table, show
from elastrain.client import Client

SOFTWARE = ("python", "elastrain", "ray", "torch")


def doctor(output: Output = Format.table) -> int:
    """Look at the service, its parts and its cluster; exits with 1 if something is not as it should be."""
    client = Client()
    server, who = client.version(), client.me()
    same = server["server"] == installed("elastrain")
    items = [
        item("service", same, f"elastrain {server['server']} at {client.http.url}"),
        item("token", True, f"of {who['name']}, role {who['role']}"),
    ]
    if not same:
        items[0]["detail"] += f"; this command is of version {installed('elastrain')}"
    for name, check in client.ready()["checks"].items():
        items.append(item(name, check["ok"], check["detail"] or ""))
    items += cluster(client.cluster()["check"])
    answer = {"ok": all(found["ok"] for found in items), "items": items}
    columns: list[Column] = [("", mark), field("what"), field("detail")]
    show(answer, output, lambda: print_table(items, columns))
    return 0 if answer["ok"] else 1


def cluster(check: Item | None) -> list[dict[str, Any]]:
    """What is known of the software on the cluster."""
    if check is None:
        return [item("cluster", True, "nobody has looked yet: that is done once, when Ray is there")]
    if check["found"] is None:
        return [item("cluster", False, check["detail"])]
    there = ", ".join(f"{name} {check['found'][name] or 'not installed'}" for name in SOFTWARE)
    alike = item("cluster", True, f"{there}; it writes to the storage and reaches the service")
    return [item("cluster", False, why) for why in check["differences"]] or [alike]


def item(what: str, ok: bool, detail: str) -> dict[str, Any]:
    return {"what": what, "ok": ok, "detail": detail}


def mark(found: Item) -> str:
    return "ok" if found["ok"] else "WRONG"


COMMANDS = (doctor,)

"""An MLflow tracking server for tests, as far as its REST API is used here."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Mlflow:
    """`away` has it answer 503; `held` has every answer wait until that is set; `refuses` names a metric."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.away = False
        self.held: threading.Event | None = None
        self.refuses = ""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: dict[str, Any]) -> None:
                server.asked.append((self.path, self.headers.get("Authorization")))
                if server.held is not None:
                    server.held.wait()
                path, _, query = self.path.removeprefix("/api/2.0/mlflow/").partition("?")
                status, said = (503, {}) if server.away else server.answer(path, query, body)
                data = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str, query: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "experiments/get-by-name":
            id = self.experiments.get(query.removeprefix("experiment_name="))
            return (200, {"experiment": {"experiment_id": id}}) if id else (404, {"error_code": "NO"})
        if path == "experiments/create":
            self.experiments[body["name"]] = str(len(self.experiments) + 1)
            return 200, {"experiment_id": self.experiments[body["name"]]}
        if path == "runs/search":
            found = [id for id, run in self.runs.items() if body["filter"].endswith(f"'{run['job']}'")]
            return 200, {"runs": [{"info": {"run_id": id}} for id in found]}
        if path == "runs/create":
            id = f"run{len(self.runs)}"
            tags = {tag["key"]: tag["value"] for tag in body["tags"]}
            self.runs[id] = {"job": tags["elastrain.job"], "metrics": [], "params": {}, "status": "RUNNING"}
            return 200, {"run": {"info": {"run_id": id}}}
        run = self.runs[body["run_id"]]
        if path == "runs/update":
            run["status"] = body["status"]
        if any(metric["key"] == self.refuses for metric in body.get("metrics", [])):
            return 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": f"no {self.refuses}"}
        run["metrics"] += body.get("metrics", [])
        run["params"] |= {item["key"]: item["value"] for item in body.get("params", [])}
        return 200, {}

    @property
    def run(self) -> dict[str, Any]:
        """The only one."""
        ((_, found),) = self.runs.items()
        return found

    def steps(self, name: str) -> list[int]:
        return [metric["step"] for metric in self.run["metrics"] if metric["key"] == name]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

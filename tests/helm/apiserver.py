"""A Kubernetes API server with its etcd, of the tests' own. Nothing runs in it: no node, no controller.

Its programs are found as controller-runtime's envtest finds them: in the folder KUBEBUILDER_ASSETS, or in
/usr/local/kubebuilder/bin. What controllers would do, a test does itself (`Stage`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from databases import free_port
from helm.rendering import Document

PROGRAMS = ("etcd", "kube-apiserver", "kubectl")
MISSING = (
    "no Kubernetes API server is here: `setup-envtest use 1.32.x`, then set KUBEBUILDER_ASSETS to the folder "
    f"that it names, with {', '.join(PROGRAMS)} in it"
)
TOKEN = "of-the-admin"
START_S = 120.0


def assets() -> Path | None:
    """The folder with the programs."""
    folder = Path(os.environ.get("KUBEBUILDER_ASSETS") or "/usr/local/kubebuilder/bin")
    return folder if all((folder / program).is_file() for program in PROGRAMS) else None


@contextmanager
def running() -> Iterator[Cluster | None]:
    """None where its programs are missing."""
    found = assets()
    if found is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="elastrain-kube-"))
    processes: list[subprocess.Popen[bytes]] = []
    cluster: Cluster | None = None
    try:
        cluster = _start(found, folder, processes)
        yield cluster
    finally:
        if cluster is not None:
            cluster.close()
        for process in reversed(processes):
            process.terminate()
            process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _start(programs: Path, folder: Path, processes: list[subprocess.Popen[bytes]]) -> Cluster:
    store, port = f"http://127.0.0.1:{free_port()}", free_port()
    key, tokens = folder / "sa.key", folder / "tokens.csv"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    tokens.write_text(f"{TOKEN},admin,0,system:masters\n")
    commands: list[Sequence[str | Path]] = [
        [
            programs / "etcd",
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={store}",
            f"--advertise-client-urls={store}",
            "--listen-peer-urls=http://127.0.0.1:0",
        ],
        [
            programs / "kube-apiserver",
            f"--etcd-servers={store}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={folder / 'certificates'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--endpoint-reconciler-type=none",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--authorization-mode=RBAC",
            f"--token-auth-file={tokens}",
        ],
    ]
    for number, command in enumerate(commands):
        with (folder / f"{number}.log").open("wb") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=folder))
    cluster = Cluster(programs / "kubectl", folder, port)
    deadline = time.monotonic() + START_S
    while not cluster.ready():
        logs = "".join((folder / f"{n}.log").read_text()[-3000:] for n in range(len(commands)))
        assert all(process.poll() is None for process in processes), logs
        assert time.monotonic() < deadline, logs
        time.sleep(0.1)
    return cluster


class Cluster:
    """What tests ask of the API server, as its admin."""

    def __init__(self, kubectl: Path, folder: Path, port: int) -> None:
        self._kubectl, self._folder, self.url = kubectl, folder, f"https://127.0.0.1:{port}"
        self._http: httpx.Client | None = None
        self._paths: dict[tuple[str, str], str] = {}
        self.kubeconfig = folder / "kubeconfig"

    def ready(self) -> bool:
        """Whether it answers; the first time, how it is reached is written down."""
        certificate = self._folder / "certificates/apiserver.crt"
        if not certificate.exists():
            return False
        if self._http is None:
            self._http = httpx.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {TOKEN}"},
                verify=ssl.create_default_context(cafile=certificate),
                trust_env=False,
                timeout=30.0,
            )
            self.kubeconfig.write_text(json.dumps(_kubeconfig(self.url, certificate)))
        try:
            return self._http.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def close(self) -> None:
        if self._http is not None:
            self._http.close()

    @property
    def version(self) -> tuple[int, int]:
        """Such as (1, 32)."""
        found = self._ask("GET", "/version")
        return int(found["major"]), int(found["minor"].rstrip("+"))

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        """What it prints."""
        done = subprocess.run(
            [self._kubectl, f"--kubeconfig={self.kubeconfig}", *arguments],
            env={"HOME": str(self._folder), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0 or not check, f"kubectl {' '.join(arguments)}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def namespace(self, name: str, labels: dict[str, str] | None = None) -> str:
        """Make one, with what a controller would put into it; -> its name."""
        about = {"name": name, "labels": labels or {}}
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": about})
        self.create(named("v1", "ServiceAccount", "default", name))
        return name

    def define(self, definition: Document) -> None:
        """Install a CustomResourceDefinition; returns once its kind is served."""
        made = self.create(definition)
        while not any(
            condition["type"] == "Established" and condition["status"] == "True"
            for condition in made.get("status", {}).get("conditions") or []
        ):
            time.sleep(0.05)
            made = self._ask("GET", f"{self._path(definition)}/{definition['metadata']['name']}")

    def create(self, document: Document, dry_run: bool = False) -> Document:
        """As the API server has it then. An unknown field is an error. Raises Refused."""
        asked = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        return self._ask("POST", self._path(document), params=asked, json=document)

    def get(self, document: Document) -> Document | None:
        """That object as it is now, if it is there."""
        try:
            return self._ask("GET", f"{self._path(document)}/{document['metadata']['name']}")
        except Refused as error:
            if error.status == 404:
                return None
            raise

    def list(self, version: str, kind: str, namespace: str) -> list[Document]:
        items: list[Document] = self._ask("GET", self._path(named(version, kind, "", namespace)))["items"]
        return items

    def patch(self, document: Document, changes: Document, part: str = "") -> Document:
        """A merge patch. part: such as /status."""
        headers = {"Content-Type": "application/merge-patch+json"}
        path = f"{self._path(document)}/{document['metadata']['name']}{part}"
        return self._ask("PATCH", path, headers=headers, content=json.dumps(changes))

    def may(self, account: str, verb: str, resource: str, namespace: str) -> bool:
        """`kubectl auth can-i`, asked as a service account: namespace:name."""
        asks = f"--as=system:serviceaccount:{account}"
        said = self.kubectl("auth", "can-i", verb, resource, f"--namespace={namespace}", asks, check=False)
        assert said in ("yes", "no"), said
        return said == "yes"

    def rules(self, account: str, namespace: str) -> set[tuple[str, str, str]]:
        """All that a service account may do there: (group, resource, verb)."""
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
        body = {**review, "metadata": {}, "spec": {"namespace": namespace}}
        path, headers = self._path(body), {"Impersonate-User": f"system:serviceaccount:{account}"}
        found = self._ask("POST", path, json=body, headers=headers)["status"]
        assert not found["incomplete"]
        return {
            (group, resource, verb)
            for rule in found["resourceRules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    def _path(self, document: Document) -> str:
        """Of the collection that it belongs to."""
        version, kind = document["apiVersion"], document["kind"]
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self._paths:
            found = [
                r for r in self._ask("GET", group)["resources"] if r["kind"] == kind and "/" not in r["name"]
            ]
            assert found, f"the API server knows no {kind} of {version}"
            self._paths[version, kind] = f"{group}/{'{}'}{found[0]['name']}"
        namespace = document["metadata"].get("namespace")
        return self._paths[version, kind].format(f"namespaces/{namespace}/" if namespace else "")

    def _ask(self, method: str, path: str, **request: Any) -> Document:
        assert self._http is not None
        reply = self._http.request(method, path, **request)
        if reply.status_code >= 400:
            raise Refused(reply.status_code, reply.text)
        answer: Document = reply.json()
        return answer


class Refused(Exception):
    """The API server's word."""

    def __init__(self, status: int, text: str) -> None:
        try:
            text = json.loads(text)["message"]
        except (ValueError, KeyError):
            pass
        super().__init__(f"{status}: {text}")
        self.status = status


class Stage:
    """Plays what the cluster lacks: pods and jobs that somebody waits for end as the test wants it."""

    def __init__(self, cluster: Cluster, namespace: str, well: bool = True) -> None:
        self._cluster, self._namespace, self._well = cluster, namespace, well
        self.seen: list[Document] = []
        self.meanwhile: list[Document] = []  # the deployments that were there when the first of them began
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._play)

    def __enter__(self) -> Stage:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _play(self) -> None:
        while not self._over.wait(0.05):
            for version, kind in (("batch/v1", "Job"), ("v1", "Pod")):
                for found in self._cluster.list(version, kind, self._namespace):
                    document = {"apiVersion": version, "kind": kind, **found}
                    if document["metadata"]["uid"] not in {d["metadata"]["uid"] for d in self.seen}:
                        with contextlib.suppress(Refused):  # it is gone
                            self._end(document)

    def _end(self, document: Document) -> None:
        if not self.seen:
            self.meanwhile = self._cluster.list("apps/v1", "Deployment", self._namespace)
        self.seen.append(document)
        if document["kind"] == "Pod":
            self._cluster.patch(
                document, {"status": {"phase": "Succeeded" if self._well else "Failed"}}, "/status"
            )
            return
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        kinds = ("SuccessCriteriaMet", "Complete") if self._well else ("FailureTarget", "Failed")
        conditions = [
            {"type": kind, "status": "True", "lastTransitionTime": stamp, "reason": "Played"}
            for kind in kinds
        ]
        counts = {"succeeded": 1, "completionTime": stamp} if self._well else {"failed": 1}
        status = {"startTime": stamp, "conditions": conditions, "uncountedTerminatedPods": {}, **counts}
        self._cluster.patch(document, {"status": status}, "/status")


def named(version: str, kind: str, name: str, namespace: str) -> Document:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}}


def _kubeconfig(url: str, certificate: Path) -> Document:
    cluster = {"server": url, "certificate-authority": str(certificate)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "tests",
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
    }

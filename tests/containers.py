"""Images built from a base that is made here, by the Dockerfiles as they are, and containers of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from ast import literal_eval
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("buildah", "podman", "runc", "mmdebstrap")
BASE = "localhost/elastrain-base:test"
CERTIFICATES = ("/etc/ssl/certs", "/usr/local/share/ca-certificates")
# an id that no image has ever heard of, as OpenShift gives them
SOMEBODY = "1000660000:0"
# as the chart starts them
PODMAN = ["podman", "--runtime=runc"]
LIMITS = ["--ulimit=nofile=20000:20000", "--ulimit=nproc=4096:4096"]
HARDENED = ["--read-only", "--cap-drop=all", "--security-opt=no-new-privileges"]
WAIT_S = 90.0


def run(*command: str | Path, timeout: float = 600) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout, cwd=ROOT)
    shown = " ".join(map(str, command))
    assert done.returncode == 0, f"{shown}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def build(name: str) -> Iterator[str]:
    """docker/NAME.Dockerfile as it is; only its base is one that was made here. -> the image's name"""
    missing = [program for program in NEEDED if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        need = ", ".join(missing) if missing else "root"
        pytest.skip(f"no image can be built here without {need} (Debian: apt-get install {' '.join(NEEDED)})")
    _make_base()
    image = f"localhost/elastrain-{name}:test"
    with _ways_to_packages() as ways:
        run(
            *("buildah", "build", "--isolation=chroot", "--pull=never", "--format=docker", "--layers=false"),
            *("--network=host", f"--build-arg=BASE={BASE}"),
            *(f"--volume={here}:{there}:ro" for here, there in ways.items()),
            *("-f", f"docker/{name}.Dockerfile", "-t", image, "."),
            timeout=1500,
        )
    yield image
    subprocess.run(["buildah", "rmi", "--force", image], capture_output=True, check=False)


@contextmanager
def _ways_to_packages() -> Iterator[dict[Path, Path]]:
    """What pip is told on this machine, wherever it is told, and the folders that this names: no business
    of the image's, so it is mounted while the image is built."""
    listed = re.findall(r"^(\S+)\.(\S+?)=('.*')$", run(sys.executable, "-m", "pip", "config", "list"), re.M)
    # the environment's word counts more than a file's
    listed.sort(key=lambda found: found[0] == ":env:")
    told = {key: literal_eval(value) for _, key, value in listed}
    ways = {path: path for path in map(Path, CERTIFICATES) if path.exists()}
    for word in " ".join(told.values()).split():
        # the files of an index lie beside its pages
        path = Path(word.removeprefix("file://")).parent if word.startswith("file://") else Path(word)
        if path.is_absolute() and path.exists() and not any(path.is_relative_to(way) for way in ways):
            ways[path] = path
    with tempfile.NamedTemporaryFile("w", prefix="pip-", suffix=".conf") as config:
        config.write("[global]\n" + "".join(f"{key} = {value}\n" for key, value in told.items()))
        config.flush()
        Path(config.name).chmod(0o644)
        yield {**ways, Path(config.name): Path("/etc/pip.conf")}


def _make_base() -> None:
    """Debian with Python, in the release that the Dockerfiles name. It stays for the next run."""
    if run("buildah", "images", "--quiet", "--filter", f"reference={BASE}").strip():
        return
    suite = re.findall(r"slim-(\w+)", (ROOT / "docker/service.Dockerfile").read_text())[0]
    with tempfile.TemporaryDirectory(prefix="elastrain-base-") as folder:
        tar = Path(folder) / "base.tar"
        run("mmdebstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", suite, tar)
        container = run("buildah", "from", "scratch").strip()
        run("buildah", "add", container, tar, "/")
        run("buildah", "commit", "--rm", container, BASE)


@contextmanager
def container(name: str, *arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`podman run` on this machine's network until the block ends. What it prints is in `log`."""
    about = [f"--name={name}", "--network=host", "--no-healthcheck", *LIMITS, *HARDENED]
    with log.open("wb") as output:
        command = [*PODMAN, "run", "--rm", *about, *arguments]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
    finally:
        subprocess.run([*PODMAN, "rm", "--force", "--time=2", name], capture_output=True, check=False)
        process.wait(timeout=30)


@contextmanager
def service(image: str, port: int, *options: str, home: Path) -> Iterator[str]:
    """A container of the service; -> its address, at which it answers."""
    url, log = f"http://127.0.0.1:{port}", home / "container.log"
    about = ["--tmpfs=/tmp", f"--volume={home}:/var/lib/elastrain", *options]
    command = ["--host", "127.0.0.1", "--port", str(port)]
    with container(name_of(port), *about, image, *command, log=log) as process:
        deadline = time.monotonic() + WAIT_S
        while not answers(f"{url}/healthz"):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield url


def name_of(port: int) -> str:
    return f"elastrain-test-{port}"


def answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.HTTPError:
        return False

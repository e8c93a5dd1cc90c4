"""The service's image, built from a base that is made here, and started as a cluster would start it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from databases import free_port
from elastrain.service.up_home import Home
from elastrain.service.up_ray import RayHead

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("buildah", "podman", "runc", "mmdebstrap")
IMAGE = "localhost/elastrain-service:test"
BASE = "localhost/elastrain-base:test"
WAIT_S = 90.0
WAYS = ("/etc/ssl/certs", "/usr/local/share/ca-certificates", "/etc/pip.conf")
# an id that the image has never heard of, as OpenShift gives them
SOMEBODY = "1000660000:0"
# as the chart starts it
PODMAN = ["podman", "--runtime=runc"]
LIMITS = ["--ulimit=nofile=20000:20000", "--ulimit=nproc=4096:4096"]
HARDENED = ["--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--tmpfs=/tmp"]


def run(*command: str | Path, timeout: float = 600) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout, cwd=ROOT)
    shown = " ".join(map(str, command))
    assert done.returncode == 0, f"{shown}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The service's image, by the Dockerfile as it is; only its base is one that was made here."""
    missing = [program for program in NEEDED if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        need = ", ".join(missing) if missing else "root"
        pytest.skip(f"no image can be built here without {need} (Debian: apt-get install {' '.join(NEEDED)})")
    _make_base(tmp_path_factory.mktemp("base") / "base.tar")
    # how this machine reaches its package index is no business of the image's
    ways = [path for path in WAYS if Path(path).exists()]
    run(
        *("buildah", "build", "--isolation=chroot", "--pull=never", "--format=docker", "--layers=false"),
        *("--network=host", f"--build-arg=BASE={BASE}"),
        *(f"--volume={path}:{path}:ro" for path in ways),
        *("-f", "docker/service.Dockerfile", "-t", IMAGE, "."),
    )
    yield IMAGE
    subprocess.run(["buildah", "rmi", "--force", IMAGE], capture_output=True, check=False)


def _make_base(tar: Path) -> None:
    """Debian with Python, in the release that the Dockerfile names. It stays for the next run."""
    if run("buildah", "images", "--quiet", "--filter", f"reference={BASE}").strip():
        return
    suite = re.findall(r"slim-(\w+)", (ROOT / "docker/service.Dockerfile").read_text())[0]
    run("mmdebstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", suite, tar)
    container = run("buildah", "from", "scratch").strip()
    run("buildah", "add", container, tar, "/")
    run("buildah", "commit", "--rm", container, BASE)
    tar.unlink()


@contextmanager
def started(image: str, port: int, *options: str, home: Path) -> Iterator[str]:
    """The service's container on this machine's network; -> its address."""
    name, url = name_of(port), f"http://127.0.0.1:{port}"
    about = [f"--name={name}", "--network=host", "--no-healthcheck", f"--volume={home}:/var/lib/elastrain"]
    command = ["--host", "127.0.0.1", "--port", str(port)]
    log = home / "container.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*PODMAN, "run", "--rm", *about, *LIMITS, *HARDENED, *options, image, *command],
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + WAIT_S
        while not answers(url):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield url
    finally:
        subprocess.run([*PODMAN, "rm", "--force", "--time=2", name], capture_output=True, check=False)
        process.wait(timeout=30)


def name_of(port: int) -> str:
    return f"elastrain-test-{port}"


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", trust_env=False).is_success
    except httpx.HTTPError:
        return False


@pytest.fixture
def home() -> Iterator[Path]:
    """A volume that everybody in the container's group may write."""
    with tempfile.TemporaryDirectory(prefix="elastrain-image-") as folder:
        path = Path(folder)
        path.chmod(0o777)
        yield path


def ready(url: str) -> httpx.Response:
    return httpx.get(f"{url}/readyz", trust_env=False, timeout=30)


def test_the_image_is_small_and_holds_neither_torch_nor_ray_nor_a_secret(image: str) -> None:
    program = "from importlib.metadata import distributions as d; print([x.name.lower() for x in d()])"
    alone = [*PODMAN, "run", "--rm", "--network=none", "--no-healthcheck", *LIMITS, "--entrypoint=python3"]
    listed = run(*alone, image, "-c", program)
    assert "'elastrain'" in listed and "'fastapi'" in listed
    assert "'torch'" not in listed and "'ray'" not in listed and "'numpy'" not in listed
    assert "'pip'" not in listed, "nothing is installed later"
    history = run("buildah", "inspect", image)
    assert "PASSWORD" not in history and "pip.conf" not in history


def test_the_service_is_healthy_at_once_and_ready_when_a_ray_head_is_beside_it(
    image: str, home: Path
) -> None:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="elastrain-ray-") as folder:
        head = RayHead(Home(Path(folder)), cpus=1)
        head.settle()
        token = Home(Path(folder)).ray_token_file.read_text().strip()
        options = [f"--env=ELASTRAIN_RAY_ADDRESS={head.address}", f"--env=RAY_AUTH_TOKEN={token}"]
        with started(image, port, *options, home=home) as url:
            assert httpx.get(f"{url}/healthz", trust_env=False).status_code == 200
            answer = ready(url)
            assert answer.status_code == 503
            checks = answer.json()["checks"]
            assert checks["ray"]["ok"] is False and "refused" in checks["ray"]["detail"]
            assert checks["database"]["ok"] and checks["objects"]["ok"]
            head.start()
            try:
                deadline = time.monotonic() + WAIT_S
                while (answer := ready(url)).status_code != 200:
                    assert time.monotonic() < deadline, (answer.json(), head.why())
                    time.sleep(1.0)
            finally:
                assert head.stop() == []
    assert "Ray 2." in answer.json()["checks"]["ray"]["detail"]


def test_the_service_runs_as_any_user_with_its_own_files_read_only(image: str, home: Path) -> None:
    port = free_port()
    with started(image, port, f"--user={SOMEBODY}", home=home) as url:
        assert httpx.get(f"{url}/healthz?db=1", trust_env=False).status_code == 200
        token = home / "token"
        assert token.stat().st_mode & 0o077 == 0, "the admin's token is its owner's alone"
        headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
        assert httpx.get(f"{url}/v1/me", headers=headers, trust_env=False).json()["role"] == "admin"


def test_the_images_health_check_and_the_migration_command_work_in_it(image: str, home: Path) -> None:
    port = free_port()
    with started(image, port, home=home):
        inside = [*PODMAN, "exec", name_of(port)]
        said = run(*inside, "elastrain", "migrate")
        assert "was there already" in said
        checked = re.search(r"urlopen\([^)]*\)", run("buildah", "inspect", image))
        assert checked and "/healthz" in checked[0]
        at = checked[0].replace("8470", str(port))
        run(*inside, "python3", "-c", f"from urllib.request import urlopen; {at}")

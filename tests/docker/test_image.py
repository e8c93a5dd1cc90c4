"""The service's image, built from a base that is made here, and started as a cluster would start it."""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path

import httpx
import pytest

from containers import LIMITS, PODMAN, SOMEBODY, WAIT_S, name_of, run, service
from databases import free_port
from elastrain.service.up_home import Home
from elastrain.service.up_ray import RayHead

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]


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
        with service(image, port, *options, home=home) as url:
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
    with service(image, port, f"--user={SOMEBODY}", home=home) as url:
        assert httpx.get(f"{url}/healthz?db=1", trust_env=False).status_code == 200
        token = home / "token"
        assert token.stat().st_mode & 0o077 == 0, "the admin's token is its owner's alone"
        headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
        assert httpx.get(f"{url}/v1/me", headers=headers, trust_env=False).json()["role"] == "admin"


def test_the_images_health_check_and_the_migration_command_work_in_it(image: str, home: Path) -> None:
    port = free_port()
    with service(image, port, home=home):
        inside = [*PODMAN, "exec", name_of(port)]
        said = run(*inside, "elastrain", "migrate")
        assert "was there already" in said
        checked = re.search(r"urlopen\([^)]*\)", run("buildah", "inspect", image))
        assert checked and "/healthz" in checked[0]
        at = checked[0].replace("8470", str(port))
        run(*inside, "python3", "-c", f"from urllib.request import urlopen; {at}")

"""Ray's image, built as the service's is, and a whole job in the two of them."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from containers import LIMITS, PODMAN, SOMEBODY, WAIT_S, answers, container, name_of, run, service
from databases import free_port
from elastrain.client import Client
from elastrain.service.up_ports import LOOPBACK, RayPorts, choose_ray_ports

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/digits.yaml"
FEW = ("epochs=10", "workers.min=2", "checkpoint.every_steps=20")


@contextmanager
def head(image: str, ports: RayPorts, *options: str, log: Path) -> Iterator[str]:
    """A container of Ray's head on this machine's network; -> the address of its dashboard."""
    given = [f"--{option}={port}" for option, port in ports.named.items()]
    at = [f"--node-ip-address={LOOPBACK}", f"--dashboard-host={LOOPBACK}", "--num-cpus=3"]
    command = ["ray", "start", "--head", "--block", *given, *at, "--object-store-memory=200000000"]
    # as the chart and the compose file start it
    folders = ["--tmpfs=/tmp:mode=1777", "--tmpfs=/home/elastrain:mode=0777", "--shm-size=1g"]
    names = [f"--env={name}={port}" for name, port in ports.environment.items()]
    with container(name_of(ports.gcs), *folders, *names, *options, image, *command, log=log) as process:
        health = f"http://{LOOPBACK}:{ports.named['dashboard-agent-listen-port']}/api/local_raylet_healthz"
        deadline = time.monotonic() + WAIT_S
        while not answers(health):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield f"http://{LOOPBACK}:{ports.dashboard}"


def test_rays_image_holds_what_jobs_import_and_neither_cuda_nor_a_way_to_install(ray_image: str) -> None:
    program = "from importlib.metadata import distributions as d; print([x.name.lower() for x in d()])"
    alone = [*PODMAN, "run", "--rm", "--network=none", "--no-healthcheck", *LIMITS]
    listed = run(*alone, ray_image, "python3", "-c", program)
    assert {"'elastrain'", "'torch'", "'ray'"} <= set(re.findall(r"'[^']+'", listed))
    assert "nvidia" not in listed, "built for the CPU, it is small"
    assert "PASSWORD" not in run("buildah", "inspect", ray_image)


def test_a_job_is_submitted_trained_and_saved_in_images_that_run_as_any_user(
    image: str, ray_image: str, home: Path
) -> None:
    """On OpenShift every pod runs as an id that its image has never heard of, in the root group."""
    port, ports, token = free_port(), choose_ray_ports(), secrets.token_hex(24)
    shared = home / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    both = [f"--user={SOMEBODY}", f"--volume={shared}:/shared", f"--env=RAY_AUTH_TOKEN={token}"]
    of_ray = [*both, "--env=RAY_AUTH_MODE=token"]
    with head(ray_image, ports, *of_ray, log=home / "ray.log") as address:
        told = {
            "ELASTRAIN_RAY_ADDRESS": address,
            "ELASTRAIN_STORAGE_URL": "file:///shared/jobs",
            "ELASTRAIN_URL": f"http://{LOOPBACK}:{port}",
        }
        options = [*both, *(f"--env={name}={value}" for name, value in told.items())]
        with service(image, port, *options, home=home) as url:
            client = Client(url, (home / "token").read_text().strip())
            job = client.submit(EXAMPLE, overrides=FEW)
            assert job.wait(timeout_s=300).status == "succeeded"
            checkpoints = job.checkpoints()
    assert [found.step for found in checkpoints][-1] == 60
    saved = [path for path in shared.rglob("*") if path.is_file()]
    assert saved and {path.stat().st_uid for path in saved} == {int(SOMEBODY.partition(":")[0])}

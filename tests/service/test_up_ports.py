"""Two elastrains on one machine never meet on a port."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from elastrain.service.up_home import Home
from elastrain.service.up_ports import (
    BLOCK,
    BLOCKS,
    LOOPBACK,
    PortTaken,
    RayPorts,
    choose_ray_ports,
    is_free,
    listen,
)
from elastrain.service.up_ray import RayHead


def test_a_taken_port_is_named_with_its_holder() -> None:
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"port {port} on .* is taken by .* \(pid {os.getpid()}\)"):
            listen(port)
        assert not is_free(port)


def test_a_running_head_keeps_others_off_its_whole_block() -> None:
    first = choose_ray_ports()
    with socket.socket() as gcs:
        gcs.bind((LOOPBACK, first.gcs))
        gcs.listen()
        assert not first.free()
        assert all(choose_ray_ports().base != first.base for _ in range(2 * len(BLOCKS)))


def test_a_head_whose_kept_ports_were_taken_since_moves_before_its_address_is_told(tmp_path: Path) -> None:
    home = Home(tmp_path)
    kept = choose_ray_ports()
    home.write("ports.json", {"service": 8470, "ray": kept.base})
    with socket.socket() as other:
        other.bind((LOOPBACK, kept.dashboard))
        other.listen()
        head = RayHead(home)
        assert head.settle() == head.address != f"http://{LOOPBACK}:{kept.dashboard}"
    assert home.read("ports.json") == {"service": 8470, "ray": head.ports.base}


def test_ports_taken_after_the_address_was_told_are_named(tmp_path: Path) -> None:
    head = RayHead(Home(tmp_path))
    head.settle()
    with socket.socket() as other:
        other.bind((LOOPBACK, head.ports.gcs))
        other.listen()
        with pytest.raises(PortTaken, match=str(head.ports.gcs)):
            head.start()


def test_no_port_of_a_head_is_used_twice() -> None:
    ports = RayPorts(BLOCKS.start)
    numbers = [*ports.named.values(), *(int(port) for port in ports.environment.values())]
    assert len(set(numbers)) == len(numbers)
    assert ports.base <= min(numbers) and max(numbers) < ports.base + BLOCK


def test_no_block_reaches_rays_default_worker_ports_or_the_systems_client_ports() -> None:
    assert BLOCKS.start > 19999
    assert BLOCKS[-1] + BLOCK <= 32768

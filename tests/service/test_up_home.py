"""One HOME, one `up`."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from elastrain.service.up_home import Home, HomeTaken


def test_a_second_up_on_one_home_is_told_where_the_first_one_is(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with home.locked():
        home.write("server.json", {"url": "http://127.0.0.1:8470"})
        with pytest.raises(HomeTaken, match=r"already running at http://127\.0\.0\.1:8470"), home.locked():
            pass
    with home.locked():
        assert home.read("server.json") is None


def test_a_killed_up_lets_go_of_its_home(tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from elastrain.service.up_home import Home
with Home(Path(sys.argv[1])).locked():
    print("held", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(HomeTaken), Home(tmp_path).locked():
            pass
        os.kill(holder.pid, signal.SIGKILL)
    with Home(tmp_path).locked():
        pass


def test_rays_token_is_made_once_and_is_for_its_owners_eyes_only(tmp_path: Path) -> None:
    file = Home(tmp_path / "home").ray_token_file
    assert file.read_text() == Home(tmp_path / "home").ray_token_file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_file_cut_short_by_a_crash_counts_as_missing(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (tmp_path / "ray.json").write_text('{"pid": 12')
    assert home.read("ray.json") is None

"""Packing a working directory: same code, same digest; nothing that workers do not need."""

import os
import time
import zipfile
from pathlib import Path

import pytest

from elastrain.client.errors import FixRequest
from elastrain.client.package import pack


def write(folder: Path, **files: str) -> Path:
    """Files by name; two underscores stand for a slash, one more for the dot before the ending."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py").replace("_txt", ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(folder: Path) -> list[str]:
    with pack(folder) as package, zipfile.ZipFile(package.file) as archive:
        return archive.namelist()


def test_the_same_code_gives_the_same_digest_on_another_day_in_another_folder(tmp_path: Path) -> None:
    first = write(tmp_path / "one", task_py="x = 1", lib__a_py="y = 2")
    second = write(tmp_path / "two", lib__a_py="y = 2", task_py="x = 1")
    os.utime(second / "task.py", (0, time.time() - 10**6))
    with pack(first) as a, pack(second) as b:
        assert a.sha256 == b.sha256
        assert list(a.chunks()) == list(b.chunks())


def test_a_changed_file_changes_the_digest(tmp_path: Path) -> None:
    folder = write(tmp_path, task_py="x = 1")
    with pack(folder) as before:
        write(tmp_path, task_py="x = 2")
        with pack(folder) as after:
            assert before.sha256 != after.sha256


def test_history_environments_and_caches_stay_at_home(tmp_path: Path) -> None:
    write(tmp_path, task_py="", lib__a_py="", lib__git_txt="")
    for unwanted in (".git/objects/x", "env/lib/y.py", "lib/__pycache__/a.pyc", "node_modules/z.js"):
        (tmp_path / unwanted).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / unwanted).write_text("no")
    (tmp_path / "env/pyvenv.cfg").write_text("home = /usr")
    assert names(tmp_path) == ["lib/a.py", "lib/git.txt", "task.py"]


def test_an_ignore_file_keeps_named_things_out(tmp_path: Path) -> None:
    write(tmp_path, task_py="", data__big_txt="", notes_txt="", docs__notes_txt="", data_py="")
    (tmp_path / ".elastrainignore").write_text("# not these\ndata/\n/notes.txt\n\n")
    assert names(tmp_path) == [".elastrainignore", "data.py", "docs/notes.txt", "task.py"]


def test_too_much_code_is_refused_with_both_sizes_and_the_largest_files(tmp_path: Path) -> None:
    write(tmp_path, task_py="x = 1")
    (tmp_path / "weights.bin").write_bytes(os.urandom(3 * 2**20))
    with pytest.raises(
        FixRequest, match=r"3\.0 MiB in 2 files.*limit is 1\.0 MiB.*weights\.bin \(3\.0 MiB\)"
    ) as caught:
        pack(tmp_path, max_bytes=2**20)
    assert ".elastrainignore" in (caught.value.hint or "")


def test_code_near_the_limit_is_warned_of_and_small_code_is_not(tmp_path: Path) -> None:
    write(tmp_path, task_py="x = 1")
    (tmp_path / "weights.bin").write_bytes(os.urandom(600_000))
    with pack(tmp_path) as package:
        assert "weights.bin (0.6 MiB)" in (package.warning(max_bytes=10**6) or "")
        assert package.warning(max_bytes=10**7) is None


def test_a_link_out_of_the_folder_is_refused_by_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "code", task_py="")
    (tmp_path / "secret").write_text("s")
    (folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(FixRequest, match=r"link to .*secret, outside the working directory"):
        pack(folder)


def test_an_empty_folder_and_a_missing_one_are_named(tmp_path: Path) -> None:
    with pytest.raises(FixRequest, match="holds no files"):
        pack(tmp_path)
    with pytest.raises(FixRequest, match="not a folder"):
        pack(tmp_path / "nowhere")

"""`python -m elastrain.api.serve` and what it depends on."""

from pathlib import Path

import pytest

from buckets import Seaweed
from elastrain.api import serve


@pytest.mark.stores
def test_a_service_whose_bucket_nobody_made_names_it_and_ends(
    seaweed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ELASTRAIN_HOME", str(tmp_path))
    monkeypatch.setenv("ELASTRAIN_STORAGE_URL", "s3://forgotten/prefix")
    monkeypatch.setenv("ELASTRAIN_S3_ENDPOINT", seaweed.url)
    for name, value in seaweed.options().items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    monkeypatch.delenv("AWS_ENDPOINT", raising=False)
    assert serve.main(["--port", "0"]) == 2
    assert "the bucket 'forgotten' does not exist" in capsys.readouterr().err


def test_several_processes_on_sqlite_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ELASTRAIN_HOME", str(tmp_path))
    monkeypatch.setenv("ELASTRAIN_DATABASE_URL", "")
    assert serve.main(["--workers", "2"]) == 2
    assert "ELASTRAIN_DATABASE_URL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "code", "said"),
    [
        ("DATABASE_URL", "nonsense", 2, "ELASTRAIN_DATABASE_URL cannot be used"),
        ("DATABASE_URL", "postgresql://user:secret@127.0.0.1:9/name", 1, "refused"),
        ("STORAGE_URL", "ftp://host/folder", 2, "ELASTRAIN_STORAGE_URL: cannot open the storage"),
        ("STORAGE_URL", "file:///proc/nowhere", 2, "ELASTRAIN_STORAGE_URL: cannot open the storage"),
        ("HOME", "/proc/nowhere", 2, "/proc/nowhere"),
        ("CANCEL_GRACE_S", "soon", 2, "ELASTRAIN_CANCEL_GRACE_S"),
    ],
)
def test_whatever_is_wrong_with_a_setting_is_said_in_a_line_and_ends_the_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    code: int,
    said: str,
) -> None:
    for unset in ("DATABASE_URL", "STORAGE_URL"):
        monkeypatch.setenv(f"ELASTRAIN_{unset}", "")
    monkeypatch.setenv("ELASTRAIN_HOME", str(tmp_path))
    monkeypatch.setenv(f"ELASTRAIN_{name}", value)
    assert serve.main(["--port", "0"]) == code
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("Error: ") and said in line and "secret" not in line

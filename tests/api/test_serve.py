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

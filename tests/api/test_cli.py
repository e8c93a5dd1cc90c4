"""The command line against a real service: what is printed, and the exit codes."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml
from typer.testing import CliRunner, Result

from elastrain.api.cli.app import app
from serving import RECEIPT, SPEC, Life, Live

Run = Callable[..., Result]


@pytest.fixture
def run(live: Live, token: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("ELASTRAIN_URL", live.url)
    monkeypatch.setenv("ELASTRAIN_TOKEN", token)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(SPEC))

    def run(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == code, result.output
        return result

    return run


def test_a_job_goes_in_and_comes_out_in_every_format(run: Run) -> None:
    job = run("submit", "job.yaml", "-o", "id").stdout.strip()
    assert json.loads(run("get", job, "-o", "json").stdout)["id"] == job
    assert yaml.safe_load(run("get", job, "-o", "yaml").stdout)["id"] == job
    assert run("ls", "-o", "id").stdout.split() == [job]
    table = run("ls").stdout
    assert job in table and "queued" in table and "digits" in table
    assert "queued" in run("get", job[:8]).stdout
    assert job in run("queue").stdout


def test_a_wrong_spec_names_every_field_and_exits_2(run: Run) -> None:
    result = run("submit", "job.yaml", "--set", "batch.microbatch=48", "--set", "sede=1", code=2)
    assert "batch.microbatch" in result.stderr and "48" in result.stderr
    assert "seed" in result.stderr
    alone = run("submit", "job.yaml", "--set", "sede=1", code=2).stderr
    assert alone.count("seed") == 1 and "\n  " not in alone
    assert "Traceback" not in result.output
    assert "nowhere.yaml" in run("submit", "nowhere.yaml", code=2).stderr
    assert "colour" in run("submit", "job.yaml", "--colour", "red", code=2).stderr


def test_each_kind_of_trouble_has_its_exit_code(
    run: Run, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("get", "j-none", code=3)
    run("wait", life.job, "--timeout", "0", code=6)
    run("scale", life.job, "many", code=2)
    run("scale", life.job, "1:", code=2)
    assert "no id" in run("version", "-o", "id", code=2).stderr
    life.runs()
    life.succeeds()
    refused = run("cancel", life.job, code=5).stderr
    assert "Possible now: clone, delete" in refused and "Hint" not in refused
    monkeypatch.setenv("ELASTRAIN_TOKEN", "elt_wrong")
    run("ls", code=4)
    monkeypatch.setattr("elastrain.client.http.PAUSES_S", (0.0,))
    monkeypatch.setenv("ELASTRAIN_URL", "http://127.0.0.1:9")
    assert "elastrain up" in run("ls", code=7).stderr


def test_a_dry_run_says_what_it_would_get(run: Run) -> None:
    assert "would" in run("submit", "job.yaml", "--dry-run").stdout
    assert run("ls", "-o", "id").stdout == ""


def test_scale_and_cancel_say_what_is_now(run: Run, life: Life) -> None:
    assert "2 to 3 workers" in run("scale", life.job, "2:3").stdout
    assert "has 3 workers" in run("scale", life.job, "3").stdout
    assert "cancelled" in run("cancel", life.job, "--force").stdout


def test_a_cancelled_job_shows_what_is_known_of_its_processes(run: Run, life: Life) -> None:
    life.runs()
    assert "receipt" not in run("get", life.job).stdout
    life.is_cancelled(RECEIPT)
    said = "proven: 1 node searched, 2 processes left behind and ended, pids 41, 42 (0.4 s)"
    assert said in run("get", life.job).stdout


def test_requests_to_a_job_say_what_became_of_it(run: Run, life: Life) -> None:
    assert "is paused" in run("pause", life.job).stdout
    assert "Possible now: cancel, resume" in run("checkpoint", life.job, code=5).stderr
    assert "is queued" in run("resume", life.job[:8]).stdout
    life.runs()
    assert "Request 1" in run("checkpoint", life.job).stdout
    run("checkpoint", life.job, "--wait", "0", code=6)
    assert "cannot be deleted" in run("delete", life.job, code=5).stderr
    life.fails("x")
    assert "is pinned" in run("pin", life.job).stdout
    assert "is queued" in run("retry", life.job).stdout
    clone = run(
        "clone", life.job, "--set", "optimizer.lr=0.5", "--set", "name=again", "-o", "id"
    ).stdout.strip()
    assert json.loads(run("get", clone, "-o", "json").stdout)["spec"]["optimizer"]["lr"] == 0.5
    assert "is cancelled" in run("cancel", life.job).stdout
    assert "is deleted" in run("delete", life.job).stdout
    run("get", life.job, code=3)


def test_what_is_wrong_with_a_spec_was_said_once_each(run: Run) -> None:
    wrong = ("--set", "optimizer.lrr=1", "--set", "worker.max=2")
    assert run("submit", "job.yaml", *wrong, code=2).stderr.splitlines() == [
        "Error: 2 fields are wrong:",
        "  optimizer.lrr: unknown field 'lrr' (did you mean 'lr'?)",
        "  worker: unknown field 'worker' (did you mean 'workers'?)",
    ]
    gpu = run("submit", "job.yaml", "--set", "resources.gpu=1", code=2).stderr
    assert gpu.startswith("Error: resources.gpu 1 is not supported yet")


def test_many_jobs_are_cancelled_by_what_they_have_in_common(run: Run, life: Life) -> None:
    ids = [run("submit", "job.yaml", "--set", "labels.team=a", "-o", "id").stdout.strip() for _ in range(2)]
    listed = run("cancel", "--label", "team:a", "--dry-run")
    assert all(id in listed.stdout for id in ids) and life.job not in listed.stdout
    assert "2 would be cancelled" in listed.stderr
    assert run("cancel", "--label", "team:a", "-o", "id").stdout.split() == ids[::-1]
    assert run("ls", "--status", "queued", "-o", "id").stdout.split() == [life.job]
    assert "status=queued" in run("cancel", code=2).stderr
    run("cancel", life.job, "--status", "queued", code=2)


def test_following_shows_losses_joins_and_the_end(run: Run, life: Life) -> None:
    life.runs()
    life.step(1, loss=0.5, samples_per_s=480.0, workers=2)
    life.event("worker.lost", "w1 was lost: signal 9 (SIGKILL)", worker="w1")
    life.event("worker.joined", "w2 joined at step 2", worker="w2")
    life.step(100, loss=0.1, samples_per_s=490.0, workers=2)
    life.succeeds()
    shown = run("follow", life.job).stdout
    assert "step 100/100  loss 0.1  490 samples/s, 2 workers" in shown
    assert "worker.lost" in shown and "signal 9" in shown and "w2 joined" in shown
    assert f"Job {life.job} succeeded after 100 steps, loss 0.1" in shown
    lines = [json.loads(line) for line in run("follow", life.job, "-o", "json").stdout.splitlines()]
    assert lines[-1]["kind"] == "end"


def test_a_failed_job_shows_the_users_error_and_line_first_and_exits_1(run: Run, life: Life) -> None:
    trace = (
        "Traceback (most recent call last):\n"
        '  File "/env/lib/python3.11/site-packages/elastrain/trainers/worker.py", line 9, in main\n    go()\n'
        '  File "/code/script.py", line 12, in loss\n    return lss(x)\n'
        "NameError: name 'lss' is not defined\n"
    )
    life.runs()
    life.fails(trace)
    for command in ("follow", "wait", "get"):
        result = run(command, life.job, code=0 if command == "get" else 1)
        assert "NameError: name 'lss' is not defined" in result.output
        assert "script.py:12 in loss" in result.output
        assert "site-packages" not in result.output
    assert "site-packages" in run("get", life.job, "--trace").stdout


def test_logs_are_prefixed_by_worker_or_raw_for_one(run: Run, life: Life) -> None:
    life.runs()
    life.prints("w0", b"half a li")
    life.prints("w1", b"other\n")
    life.prints("w0", b"ne\nlast")
    assert "w1 | other" in run("logs", life.job).stdout
    assert run("logs", life.job, "--worker", "0").stdout == "half a line\nlast"
    life.succeeds()
    assert run("logs", life.job, "-f").stdout.splitlines() == ["w1 | other", "w0 | half a line", "w0 | last"]
    assert run("logs", life.job, "-f", "--worker", "w1").stdout == "other\n"


def test_events_and_metrics_are_listed_plotted_and_exported(run: Run, life: Life) -> None:
    life.runs()
    life.event("worker.joined", "w0 joined", worker="w0")
    for step in range(3):
        life.step(step, loss=1.0 / (step + 1), lr=0.1)
    life.step(3, loss=float("nan"))
    assert "w0 joined" in run("events", life.job).stdout
    assert "loss" in run("metrics", life.job).stdout
    assert "step 0 to 2" in run("metrics", life.job, "--plot", "--names", "loss").stdout
    assert "No metrics yet." in run("metrics", life.job, "--plot", "--names", "no_such").output
    rows = run("metrics", life.job, "--csv").stdout.splitlines()
    assert rows[0] == "step,loss,lr"
    assert rows[1] == "0,1.0,0.1" and rows[-1] == "3,NaN,"
    life.succeeds()
    assert run("events", life.job, "-f").stdout.splitlines()[-1].endswith("The job is succeeded")


def test_checkpoints_are_listed_and_downloaded(run: Run, life: Life, tmp_path: Path) -> None:
    life.saves(10, model_safetensors=b"weights")
    assert "10" in run("checkpoints", life.job).stdout
    run("download", life.job, "--out", "model", "--step", "10")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == b"weights"
    assert "saved steps: 10" in run("download", life.job, "--step", "11", code=3).stderr


def test_a_folder_that_cannot_be_written_is_named_without_a_traceback(
    run: Run, life: Life, tmp_path: Path
) -> None:
    life.runs()
    life.saves(10, model_safetensors=b"weights")
    (tmp_path / "taken").write_text("")
    told = run("download", life.job, "--out", "taken", code=2).stderr
    assert "taken" in told and "File exists" in told and "Traceback" not in told


def test_the_cluster_is_shown_even_before_ray_was_seen(run: Run) -> None:
    assert run("cluster").exit_code == 0
    assert "server" in run("version").stdout


def test_no_command_loads_torch_ray_or_the_server_to_talk_to_it() -> None:
    heavy = "{'torch', 'ray', 'fastapi', 'sqlalchemy', 'uvicorn', 'numpy'}"
    code = f"import sys, elastrain.api.cli.app; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "id", ["../queue", "..", ".", "", "x/events", "a b", "j-1?x=1", "j-1#x", "%2e%2e", "é", "\n"]
)
def test_what_is_no_id_is_not_found_and_names_nothing_else(run: Run, id: str) -> None:
    for command in (["get"], ["cancel"], ["delete"], ["events"], ["pause"], ["wait", "--timeout", "1"]):
        said = run(*command, "--", id, code=3).stderr
        assert "no job" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("name", "value", "code", "said"),
    [
        ("URL", "localhost:8470", 2, "http(s)://host:port"),
        ("URL", "http://127.0.0.1:port", 2, "http(s)://host:port"),
        ("URL", "http://[::1", 2, "http(s)://host:port"),
        ("URL", "//", 2, "http(s)://host:port"),
        ("TOKEN", "elt_\u2026", 4, "copied whole"),
        ("TOKEN", "elt_a\nb", 4, "copied whole"),
    ],
)
def test_a_setting_that_cannot_be_right_is_named_without_a_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str, code: int, said: str
) -> None:
    monkeypatch.setenv(f"ELASTRAIN_{name}", value)
    result = run("ls", code=code)
    assert said in result.stderr and "Traceback" not in result.output


def test_certificates_that_are_none_are_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ELASTRAIN_URL", "https://127.0.0.1:9")
    (tmp_path / "empty.pem").write_text("no certificate")
    for file in ("nowhere.pem", "empty.pem"):
        monkeypatch.setenv("ELASTRAIN_CA_BUNDLE", str(tmp_path / file))
        assert "ELASTRAIN_CA_BUNDLE" in run("ls", code=2).stderr


def test_an_answer_that_is_no_json_is_said_to_come_from_somebody_else(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = httpx.Response(200, html="<h1>Please sign in</h1>")
    monkeypatch.setattr(httpx.Client, "request", lambda *_, **__: page)
    result = run("ls", code=7)
    assert "text/html" in result.stderr and "another program" in result.stderr


def test_a_full_disk_under_a_download_is_said_without_a_traceback(
    run: Run, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.runs()
    life.saves(1, model_safetensors=b"weights")

    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("elastrain.client.files._fetch", full)
    result = run("download", life.job, code=2)
    assert "No space left on device" in result.stderr and "Traceback" not in result.output


def test_a_filter_from_a_variable_that_is_not_set_cancels_nothing(run: Run, life: Life) -> None:
    for filter in (
        ["--status", "queued", "--label", ""],
        ["--label", ","],
        ["--status", "queued", "--project", ""],
    ):
        assert "Error" in run("cancel", *filter, code=2).stderr
    assert "queued" in run("get", life.job).stdout


def test_a_terminal_without_the_letters_still_shows_the_rest(run: Run, life: Life) -> None:
    life.runs()
    life.step(1, loss=1.0)
    life.step(2, loss=2.0)
    program = "from elastrain.api.cli import main; main()"
    command = [sys.executable, "-c", program, "metrics", life.job]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, "Traceback" in ran.stderr) == (0, False)
    assert "loss" in ran.stdout and "?" in ran.stdout

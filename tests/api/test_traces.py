"""A failed job: the user's own error first."""

from elastrain.api.cli.traces import failure_lines, headline, read

MESSAGE = """Traceback (most recent call last):
  File "/opt/env/lib/python3.11/site-packages/elastrain/trainers/worker.py", line 88, in main
    run(start)
  File "/tmp/code/script.py", line 12, in loss
    return lss(model(batch))
  File "/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _call
    return forward_call(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
NameError: name 'lss' is not defined
"""
JOB = {"id": "j-1", "status": "failed", "failed_by": "user", "message": MESSAGE}


def test_the_error_and_the_users_line_come_first() -> None:
    lines = failure_lines(JOB)
    assert lines[:3] == [
        "Job j-1 failed (by user): NameError: name 'lss' is not defined",
        "  at script.py:12 in loss",
        "    return lss(model(batch))",
    ]
    assert not any("site-packages" in line for line in lines)


def test_the_whole_trace_is_one_flag_away() -> None:
    lines = failure_lines(JOB, whole=True)
    assert "\n".join(lines[: len(MESSAGE.splitlines())]) == MESSAGE.rstrip()
    assert lines[-3].endswith("NameError: name 'lss' is not defined")


def test_a_cause_without_a_trace_is_told_as_it_is() -> None:
    job = {**JOB, "message": "worker w1: signal 9 (SIGKILL)", "failed_by": "infrastructure"}
    assert failure_lines(job) == ["Job j-1 failed (by infrastructure): worker w1: signal 9 (SIGKILL)"]


def test_a_message_of_several_lines_belongs_to_the_error() -> None:
    trace = read('Traceback:\n  File "a.py", line 1, in <module>\n    x\nValueError: one\ntwo')
    assert trace is not None
    assert trace.error == "ValueError: one\ntwo"


def test_a_terminal_obeys_nothing_of_a_users_text() -> None:
    message = "ValueError: \x1b]0;title\x07 and \x1b[31mred\x9b2J é\tü"
    for line in (headline(message), *failure_lines({**JOB, "message": message})):
        assert not set(line) & {"\x1b", "\x07", "\x9b"}
        assert line.endswith(r"\x1b[31mred\x9b2J é" + "\tü")

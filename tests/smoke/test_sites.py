"""What is shown of a server's log when it broke."""

from sparkforge.smoke.sites import last_lines

REFUSED = [
    "(APIServer pid=7) ERROR 11-20 13:44:07 [server_utils.py:408] Traceback (most recent call last):",
    "(APIServer pid=7) ERROR 11-20 13:44:07 [server_utils.py:408] ValueError: no JSON",
]
CAUSE = [
    "(Worker pid=9) ERROR 11-20 13:44:32 [multiproc_executor.py:962] WorkerProc hit an exception.",
    "(Worker pid=9) ERROR 11-20 13:44:32 [multiproc_executor.py:962] Traceback (most recent call last):",
    "(Worker pid=9) ERROR 11-20 13:44:32 [multiproc_executor.py:962] RuntimeError: no offset",
]
AFTER = [
    f"\x1b[36m(APIServer pid=7)\x1b[0m ERROR 11-20 13:44:33 request {number}: EngineDeadError" for number in range(90)
]
SAID = ["(EngineCore pid=8) INFO 11-20 13:44:00 [core.py:105] no error so far"] * 30


def shown(lines, count):
    return last_lines("\n".join(lines) + "\n", count).splitlines()


def test_the_first_fault_of_an_engine_is_shown_before_the_last_lines():
    log = [*SAID, *REFUSED, *CAUSE, *AFTER]
    assert shown(log, 20) == [*CAUSE, *AFTER[:17], "[53 lines left out]", *AFTER[70:]]


def test_no_line_is_shown_twice():
    log = [*SAID, *REFUSED, *CAUSE, *AFTER]
    assert shown(log, 60) == [*CAUSE, *AFTER]
    assert shown(log, 500) == log
    assert shown([*SAID, *CAUSE], 5) == [*SAID[:2], *CAUSE]


def test_the_last_lines_are_shown_where_nothing_but_a_refused_request_was_traced():
    assert shown([*REFUSED, *SAID], 20) == SAID[:20]
    assert shown([], 20) == []


def test_a_fault_below_python_is_one():
    for fault in (
        "Fatal Python error: Segmentation fault",
        "terminate called after throwing an instance of 'c10::Error'",
    ):
        assert shown([fault, *SAID], 2) == [fault, SAID[0], "[27 lines left out]", *SAID[:2]]


def test_a_long_line_is_cut():
    (line,) = shown(["x" * 3000], 1)
    assert line == "x" * 400 + " ..."

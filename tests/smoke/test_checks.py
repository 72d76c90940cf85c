import pytest

from sparkforge.smoke.checks import CheckVerdict, chatted, repeated, stopped, streamed, whole

ANY_REPLY = [
    "no choices",
    "empty choices",
    "no usage",
    "usage off",
    "usage does not add up",
    "ids short",
    "prompt ids short",
    "finish",
    "no text",
    "garbage",
    "status",
]


@pytest.mark.parametrize("look", [whole, streamed, repeated, chatted])
def test_a_right_server_passes(client, look):
    found = look(client(), 8)
    assert found.verdict is CheckVerdict.PASSED, found.said


def test_tokens_are_counted(client):
    assert whole(client(), 8).numbers["tokens"] == 8
    assert streamed(client(), 8).numbers["pieces"] == 8


@pytest.mark.parametrize("fault", ANY_REPLY)
def test_a_wrong_reply_fails(client, fault):
    assert whole(client(fault), 8).verdict is CheckVerdict.FAILED


@pytest.mark.parametrize("fault", [*ANY_REPLY, "one piece", "no done", "after done", "other stream", "breaks off"])
def test_a_wrong_stream_fails(client, fault):
    assert streamed(client(fault), 8).verdict is CheckVerdict.FAILED


@pytest.mark.parametrize("fault", [*(one for one in ANY_REPLY if one != "prompt ids short"), "no chat", "no template"])
def test_a_wrong_chat_fails(client, fault):
    assert chatted(client(fault), 8).verdict is CheckVerdict.FAILED


def test_tokens_that_change_fail_and_the_place_is_named(client):
    found = repeated(client("nondeterministic"), 8)
    assert found.verdict is CheckVerdict.FAILED
    assert "token 5" in found.said


def test_a_prompt_that_the_prefix_cache_may_answer_shows_nothing(client):
    assert repeated(client("long prompt"), 8).verdict is CheckVerdict.FAILED


def test_a_clean_shutdown_passes():
    assert stopped(0, 1.0, "all done", bound=5.0).verdict is CheckVerdict.PASSED


@pytest.mark.parametrize(
    ("code", "log"), [(None, ""), (143, ""), (1, ""), (0, "x\n(W pid=1) Traceback (most recent call last):\n  boom")]
)
def test_any_other_shutdown_fails(code, log):
    assert stopped(code, 1.0, log, bound=5.0).verdict is CheckVerdict.FAILED

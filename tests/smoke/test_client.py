import pytest

from sparkforge.smoke.client import BadReply, Client, NoReply


def test_a_reply_is_read_whole(client):
    made = client().complete("abc", 4)
    assert made.text == " 3 10 17 24"
    assert made.tokens == (3, 10, 17, 24)
    assert made.prompt == tuple(b"abc")
    assert made.finish == "length"
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (7, 4)


def test_a_stream_is_put_together(client):
    asked = client()
    made, whole = asked.stream("abc", 4), asked.complete("abc", 4)
    assert (made.text, made.tokens, made.prompt, made.finish) == (whole.text, whole.tokens, whole.prompt, whole.finish)
    assert made.usage == whole.usage
    assert len(made.chunks) == 4
    assert list(made.chunks) == sorted(made.chunks)


@pytest.mark.parametrize("fault", ["no choices", "empty choices", "garbage", "text is a number", "status"])
def test_a_reply_that_is_no_completion_is_refused(client, fault):
    with pytest.raises(BadReply):
        client(fault).complete("abc", 4)


@pytest.mark.parametrize(
    "fault", ["no choices", "empty choices", "garbage", "text is a number", "status", "no done", "after done"]
)
def test_a_stream_that_is_no_completion_is_refused(client, fault):
    with pytest.raises(BadReply):
        client(fault).stream("abc", 4)


def test_an_error_says_what_the_server_said(client):
    with pytest.raises(BadReply) as refused:
        client("status").complete("abc", 4)
    assert "500" in refused.value.what
    assert "out of memory" in refused.value.why


@pytest.mark.parametrize("ask", [Client.complete, Client.stream])
def test_a_connection_that_breaks_is_no_reply(client, ask):
    with pytest.raises(NoReply):
        ask(client("breaks off"), "abc", 4)


@pytest.mark.parametrize("ask", [Client.complete, Client.stream])
def test_silence_is_bounded(client, ask):
    with pytest.raises(NoReply):
        ask(client("silent", timeout=0.1), "abc", 4)


def test_nobody_listening_is_no_reply():
    with pytest.raises(NoReply):
        Client("http://127.0.0.1:9", "smoke").complete("abc", 4)

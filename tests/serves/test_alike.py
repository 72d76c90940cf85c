"""Two answers: what must be equal, what may vary, and that nothing else may."""

import copy
import json

import pytest
from alike import difference
from answers import Answer
from asks import Ask, steps

WHOLE = Ask("whole", "/v1/completions", {})
STREAM = Ask("stream", "/v1/completions", {"stream": True})
LOOSE = Ask("loose", "/v1/completions", {}, loose=True)
LOOSE_STREAM = Ask("loose stream", "/v1/completions", {"stream": True}, loose=True)
TOKENS = ((65, "A", -0.5), (66, "B", -1.25), (67, "C", -0.125))
BODY = {
    "id": "cmpl-1",
    "created": 17,
    "system_fingerprint": "vllm-1",
    "model": "smoke",
    "choices": [
        {
            "index": 0,
            "text": "ABC",
            "token_ids": [65, 66, 67],
            "prompt_token_ids": [1, 2],
            "finish_reason": "length",
            "logprobs": {
                "tokens": ["A", "B", "C"],
                "token_logprobs": [-0.5, -1.25, -0.125],
                "top_logprobs": [{"A": -0.5, "x": -2.0}, {"B": -1.25}, {"C": -0.125}],
                "text_offset": [0, 1, 2],
            },
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
}


def changed(value, path, new):
    """A copy of a value in which one place is another."""
    made = copy.deepcopy(value)
    *way, last = path
    here = made
    for key in way:
        here = here[key]
    here[last] = new
    return made


def seen(ask, one, other):
    kind = "text/event-stream" if ask.streamed else "application/json"
    return difference(ask, Answer(200, kind, one), Answer(200, kind, other))


def events(*cuts, tokens=TOKENS):
    """The events of a stream of these tokens, cut after these counts."""
    made, begun = [], 0
    for cut in cuts:
        part = tokens[begun:cut]
        logprobs = {"token_logprobs": [one[2] for one in part], "text_offset": [place for place, _ in enumerate(part)]}
        choice = {"index": 0, "text": "".join(one[1] for one in part), "logprobs": logprobs}
        choice |= {"token_ids": [one[0] for one in part], "finish_reason": "length" if cut == len(tokens) else None}
        made.append({"id": f"cmpl-{cut}", "created": cut, "choices": [choice]})
        begun = cut
    made[0]["choices"][0]["prompt_token_ids"] = [1, 2]
    usage = {"id": "cmpl", "created": 0, "choices": [], "usage": {"completion_tokens": len(tokens)}}
    return [*made, usage, "[DONE]"]


def test_ids_and_times_may_vary():
    other = {**BODY, "id": "cmpl-2", "created": 18, "system_fingerprint": "vllm-2"}
    assert seen(WHOLE, BODY, other) == ""


@pytest.mark.parametrize("name", ["id", "created", "system_fingerprint"])
def test_ids_and_times_must_be_there_and_of_their_type(name):
    assert name in seen(WHOLE, BODY, {key: value for key, value in BODY.items() if key != name})
    assert name in seen(WHOLE, BODY, {**BODY, name: None})


@pytest.mark.parametrize(
    ("path", "new"),
    [
        (("model",), "other"),
        (("choices", 0, "text"), "ABD"),
        (("choices", 0, "token_ids", 2), 68),
        (("choices", 0, "prompt_token_ids", 0), 3),
        (("choices", 0, "finish_reason"), "stop"),
        (("choices", 0, "logprobs", "token_logprobs", 1), -1.2500000000000002),  # the next double
        (("choices", 0, "logprobs", "top_logprobs", 0, "x"), -2.5),
        (("choices", 0, "logprobs", "text_offset", 2), 3),
        (("choices", 0, "logprobs"), None),
        (("usage", "total_tokens"), 6),
        (("usage", "total_tokens"), 5.0),
        (("more",), 1),
    ],
)
def test_all_else_must_be_equal_and_the_place_is_named(path, new):
    found = seen(WHOLE, BODY, changed(BODY, path, new))
    assert ".".join(str(part) for part in path if isinstance(part, str)) in found.replace("[0]", "")


def test_ids_elsewhere_are_no_ids_of_a_run():
    models = {"data": [{"id": "smoke", "created": 1, "root": "/a", "permission": [{"id": "p-1", "created": 1}]}]}
    other = {"data": [{"id": "smoke", "created": 2, "root": "/b", "permission": [{"id": "p-2", "created": 2}]}]}
    assert seen(WHOLE, models, other) == ""
    assert "data[0].id" in seen(WHOLE, models, changed(other, ("data", 0, "id"), "forge"))


def test_status_and_content_type_must_be_equal():
    one = Answer(200, "application/json", BODY)
    assert "404" in difference(WHOLE, one, Answer(404, "application/json", BODY))
    assert "text/plain" in difference(WHOLE, one, Answer(200, "text/plain", BODY))


def test_a_file_in_an_error_is_named_from_site_packages_on():
    def error(where, line):
        said = f'1 error:\n  File "{where}/lib/python3.11/site-packages/vllm/utils.py", line {line}'
        return {"error": {"message": said}}

    assert seen(WHOLE, error("/a", 34), error("/opt/venv", 34)) == ""
    assert seen(WHOLE, error("/a", 34), error("/a", 35))


def test_types_of_one_name_are_compared_as_a_set():
    def interface(plain, long, **more):
        types = {"Place": plain, "openai__a__Place": long, "Tool": {"$ref": "#/components/schemas/openai__a__Place"}}
        return {"components": {"schemas": types | more}}

    one = interface({"title": "a"}, {"title": "b"})
    assert seen(WHOLE, one, interface({"title": "b"}, {"title": "a"})) == ""
    assert seen(WHOLE, one, {**one, "info": 1})
    assert seen(WHOLE, one, interface({"title": "a"}, {"title": "c"}))
    assert seen(WHOLE, one, interface({"title": "a"}, {"title": "b"}, More={}))
    assert seen(WHOLE, one, interface({"title": "a"}, {"title": "b"}, Tool={"$ref": "#/components/schemas/Usage"}))


def test_streams_cut_alike_must_be_equal_in_every_event():
    assert seen(STREAM, events(1, 2, 3), events(1, 2, 3)) == ""
    for path, new in (
        ((1, "choices", 0, "text"), "X"),
        ((1, "choices", 0, "logprobs", "text_offset", 0), 9),
        ((0, "choices", 0, "prompt_token_ids", 1), 9),
        ((2, "choices", 0, "finish_reason"), None),
        ((3, "usage", "completion_tokens"), 4),
        ((4,), "[END]"),
    ):
        assert seen(STREAM, events(1, 2, 3), changed(events(1, 2, 3), path, new)), path


@pytest.mark.parametrize("cuts", [(3,), (1, 3), (2, 3)])
def test_streams_cut_otherwise_are_equal_where_both_were_cut(cuts):
    assert seen(STREAM, events(1, 2, 3), events(*cuts)) == ""
    for place in range(3):
        wrong = list(TOKENS)
        wrong[place] = (wrong[place][0], "X", wrong[place][2])
        assert seen(STREAM, events(1, 2, 3), events(*cuts, tokens=tuple(wrong)))
        wrong[place] = (*TOKENS[place][:2], -9.0)
        assert seen(STREAM, events(1, 2, 3), events(*cuts, tokens=tuple(wrong)))


def test_text_that_moves_over_a_common_cut_is_seen():
    moved = ((65, "AB", -0.5), (66, "", -1.25), TOKENS[2])
    assert seen(STREAM, events(1, 3), events(1, 3, tokens=moved))
    assert seen(STREAM, events(1, 2, 3), events(1, 3, tokens=moved))


def test_a_stream_that_ends_early_is_seen():
    assert seen(STREAM, events(1, 2, 3), events(1, 2, tokens=TOKENS[:2]))
    assert seen(STREAM, events(1, 2, 3), events(1, 2, 3)[:-1])
    assert seen(STREAM, events(1, 2, 3), [])


def test_a_loose_request_may_give_other_tokens_but_not_more_or_less():
    other = changed(BODY, ("choices", 0, "text"), "xyz")
    other = changed(other, ("choices", 0, "token_ids"), [7, 8, 9])
    other = changed(other, ("choices", 0, "logprobs", "token_logprobs"), [-3.0, -3.0, -3.0])
    assert seen(LOOSE, BODY, other) == ""
    assert seen(LOOSE, BODY, changed(other, ("choices", 0, "token_ids"), [7, 8]))
    assert seen(LOOSE, BODY, changed(other, ("choices", 0, "prompt_token_ids", 0), 9))
    assert seen(LOOSE, BODY, changed(other, ("usage", "total_tokens"), 9))


def test_a_loose_stream_may_be_cut_and_read_otherwise_but_not_be_longer():
    other = tuple((token + 1, "x", -7.0) for token, _, _ in TOKENS)
    assert seen(LOOSE_STREAM, events(1, 2, 3), events(2, 3, tokens=other)) == ""
    assert seen(LOOSE_STREAM, events(1, 2, 3), events(1, 2, tokens=other[:2]))


def test_every_request_has_a_name_of_its_own_and_can_be_sent():
    asked = [ask for step in steps("smoke") for ask in step.asks]
    assert len({ask.name for ask in asked}) == len(asked)
    assert all(isinstance(ask.body, bytes) or json.dumps(ask.body) for ask in asked)


def test_only_what_is_under_way_by_chance_is_loose():
    for step in steps("smoke"):
        assert all(ask.loose for ask in step.asks) == (len(step.asks) > 1 and not step.held)


def test_a_seed_comes_with_others_only_where_its_prompt_cannot_be_divided():
    (asks,) = [step.asks for step in steps("x") if len(step.asks) > 1 and not step.held]
    assert [len(ask.body["prompt"]) for ask in asks if "seed" in ask.body] == [1]
    assert [isinstance(ask.body["prompt"], list) for ask in asks if "seed" in ask.body] == [True]

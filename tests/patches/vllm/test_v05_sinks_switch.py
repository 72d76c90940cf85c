"""V-05: VLLM_ATTENTION_SINKS decides, for every backend at once, whether attention uses the model's sinks."""

from __future__ import annotations

import pytest

SWITCH = "VLLM_ATTENTION_SINKS"


@pytest.fixture
def build(one_rank, tiny_gpt_oss, monkeypatch):
    """A function that builds gpt-oss's real attention block; also what the choice of backend heard of sinks."""

    def make(value: str | None):
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.config.device import DeviceConfig
        from vllm.model_executor.layers.attention import attention
        from vllm.model_executor.models.gpt_oss import OAIAttention

        if value is not None:
            monkeypatch.setenv(SWITCH, value)
        asked: list[bool] = []
        choose = attention.get_attn_backend

        def watched(*args, has_sink=False, **kwargs):
            asked.append(has_sink)
            return choose(*args, has_sink=has_sink, **kwargs)

        monkeypatch.setattr(attention, "get_attn_backend", watched)
        with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
            block = OAIAttention(tiny_gpt_oss, prefix="model.layers.0.attn")
        return block, asked

    return make


@pytest.mark.parametrize("value", [None, "auto", "true"])
def test_sinks_are_used_unless_forbidden(said, build, value):
    from vllm import envs

    block, asked = build(value)
    assert SWITCH in envs.environment_variables, f"{SWITCH} is not declared"
    assert block.attn.has_sink
    assert asked == [True]
    assert not [text for text in said if SWITCH in text]


def test_false_takes_them_from_choice_and_kernel_alike_and_warns(said, build):
    block, asked = build("false")
    assert asked == [False], "the backend is still chosen for a layer with sinks"
    assert not block.attn.has_sink
    assert getattr(block.attn.impl, "sinks", None) is None
    assert [text for text in said if SWITCH in text and "gpt-oss needs them" in text]


def test_the_parameter_stays_for_the_loader(build):
    block, asked = build("false")
    assert asked == [False]
    assert "sinks" in dict(block.named_parameters())


def test_a_wrong_value_is_refused_with_the_choices(monkeypatch):
    from vllm import envs

    monkeypatch.setenv(SWITCH, "off")
    refusal = ""
    try:
        envs.validate_environ(hard_fail=False)
    except ValueError as error:
        refusal = str(error)
    assert SWITCH in refusal
    for choice in ("auto", "true", "false"):
        assert choice in refusal


def test_it_enters_the_compile_key(monkeypatch):
    from vllm import envs

    before = envs.compile_factors().get(SWITCH)
    monkeypatch.setenv(SWITCH, "false")
    assert (before, envs.compile_factors().get(SWITCH)) == ("auto", "false")

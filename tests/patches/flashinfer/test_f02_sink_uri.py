"""F-02: a module with attention sinks has one name, which says all that its code depends on."""

from __future__ import annotations

import inspect
import itertools

import pytest
import torch

BF16, FP16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn

# What a user of the wrapper can choose that changes the compiled code.
CHOICES = {
    "backend": ("fa2", "fa3"),
    "q_data_type": (BF16, FP16),
    "kv_data_type": (BF16, FP8),
    "head_dim_qk": (64, 128),
    "head_dim_vo": (64, 128),
    "window_left": (-1, 127),
    "pos_encoding_mode": ("NONE", "ROPE_LLAMA"),
    "use_fp16_qk_reduction": (False, True),
}


class Asked(Exception):
    """Stops the wrapper where it has chosen its module."""


@pytest.fixture
def module_of(monkeypatch):
    """What the wrapper asks for: the name, and everything else that the generator is given."""
    from flashinfer import attention, prefill
    from flashinfer.jit.attention.modules import gen_customize_batch_prefill_module

    signature = inspect.signature(gen_customize_batch_prefill_module)

    def record(*args, **kwargs):
        raise Asked(args, kwargs)

    monkeypatch.setattr(prefill, "get_customize_batch_prefill_module", record)

    def ask(**choice):
        with pytest.raises(Asked) as asked:
            attention.BatchAttentionWithAttentionSinkWrapper(torch.empty(16), **choice)
        args, kwargs = asked.value.args
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        return arguments.pop("uri"), arguments

    return ask


def test_what_differs_in_code_differs_in_name(module_of):
    seen: dict[str, dict] = {}
    for values in itertools.product(*CHOICES.values()):
        choice = dict(zip(CHOICES, values, strict=True))
        uri, arguments = module_of(**choice)
        known = seen.setdefault(uri, arguments)
        assert known == arguments, f"{choice} gets the compiled code of another choice, {uri}"
    assert len(seen) == 2 ** len(CHOICES)


def test_bf16_and_fp8_cache_in_one_process_get_two_modules(module_of):
    common = {"backend": "fa2", "head_dim_qk": 64, "head_dim_vo": 64, "window_left": 127}
    plain, _ = module_of(kv_data_type=BF16, **common)
    fp8, _ = module_of(kv_data_type=FP8, **common)
    assert plain != fp8


def test_the_window_length_is_no_part_of_the_name(module_of):
    common = {"backend": "fa2", "head_dim_qk": 64, "head_dim_vo": 64}
    assert module_of(window_left=127, **common)[0] == module_of(window_left=1023, **common)[0]


@pytest.mark.parametrize("backend", ["fa2", "fa3"])
@pytest.mark.parametrize("kv_dtype", [BF16, FP8])
@pytest.mark.parametrize("window_left", [-1, 127])
def test_the_module_compiled_ahead_of_time_is_the_one_asked_for(module_of, monkeypatch, backend, kv_dtype, window_left):
    from flashinfer.jit.attention import modules

    signature = inspect.signature(modules.gen_customize_batch_prefill_module)
    built = []
    monkeypatch.setattr(modules, "gen_customize_batch_prefill_module", lambda *a, **k: built.append((a, k)))
    modules.gen_batch_prefill_attention_sink_module(
        backend=backend,
        dtype_q=BF16,
        dtype_kv=kv_dtype,
        dtype_o=BF16,
        dtype_idx=torch.int32,
        head_dim_qk=64,
        head_dim_vo=64,
        pos_encoding_mode=0,
        use_sliding_window=window_left >= 0,
    )
    ((args, kwargs),) = built
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    ahead = dict(bound.arguments)

    uri, asked = module_of(
        backend=backend,
        q_data_type=BF16,
        kv_data_type=kv_dtype,
        head_dim_qk=64,
        head_dim_vo=64,
        window_left=window_left,
    )
    assert ahead.pop("uri") == uri, "the module compiled ahead of time is never found"
    assert ahead == asked, "the module compiled ahead of time is not the one asked for"

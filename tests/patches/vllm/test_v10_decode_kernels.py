"""V-10: few tokens go to decode kernels of another package where it has them for the device and they are faster."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

KERNEL = "VLLM_MXFP4_MOE_KERNEL"


def registry():
    """The module under test; asked for inside each test, so that its absence is a failure, not an error."""
    name = "vllm.utils.decode_kernels"
    assert importlib.util.find_spec(name) is not None, "there is no registry of decode kernels"
    module = importlib.import_module(name)
    module._registry.cache_clear()
    module.decode_kernel.cache_clear()
    return module


@pytest.mark.parametrize(
    ("device", "switch", "faster", "dense", "moe"),
    [
        ((12, 1), "auto", True, True, True),
        ((12, 1), "auto", False, False, True),
        ((12, 1), "gemv", False, True, True),
        ((12, 1), "marlin", True, True, False),  # the switch names the experts' kernel, and no other
        ((12, 1), "marlin", False, False, False),
        ((12, 1), "gemm", True, True, False),
        ((9, 0), "auto", True, False, False),
    ],
)
def test_the_switch_the_device_and_the_measure_decide(
    install, capability, monkeypatch, device, switch, faster, dense, moe
):
    kernels = registry()
    install("offered").faster = faster
    capability(*device)
    monkeypatch.setenv(KERNEL, switch)
    assert (kernels.has_decode_kernel("dense"), kernels.has_decode_kernel("moe")) == (dense, moe)
    assert (kernels.decode_kernel("dense", 8) is not None) is dense
    assert kernels.decode_kernel("dense", 9) is None
    assert kernels.decode_kernel("moe", 65) is None


def test_one_line_says_what_is_taken_and_what_is_not(install, capability, said):
    kernels = registry()
    install("offered")
    install("broken", "greedy")
    capability(12, 1)
    for kind in ("dense", "router", "moe"):
        assert kernels.has_decode_kernel(kind)
    lines = [line for line in said if line.startswith("Decode kernels: ")]
    assert len(lines) == 1
    for words in ("a_gemv (dense, M 1..8)", "more_moe (moe, M 5..64)", "libcuda is not there", "too_many asks for"):
        assert words in lines[0]


def test_nothing_installed_changes_nothing_and_gemv_is_refused(capability, monkeypatch):
    kernels = registry()
    capability(12, 1)
    assert not any(kernels.has_decode_kernel(kind) for kind in ("dense", "router", "moe"))
    monkeypatch.setenv(KERNEL, "gemv")
    kernels._registry.cache_clear()
    with pytest.raises(ValueError, match="no package is installed"):
        kernels.has_decode_kernel("moe")


def test_gemv_is_refused_where_only_other_kinds_are_offered(install, capability, monkeypatch):
    kernels = registry()
    install("only_dense")
    capability(12, 1)
    monkeypatch.setenv(KERNEL, "gemv")
    with pytest.raises(ValueError, match="only other kinds are offered"):
        kernels.has_decode_kernel("moe")


def test_an_installed_package_changes_the_compile_key(install):
    from vllm import envs

    registry()
    before = envs.compile_factors()
    install("offered")
    one = envs.compile_factors()
    install("offered", version="2.0")
    two = envs.compile_factors()
    assert before != one
    assert one != two


@pytest.fixture
def linear(one_rank, capability, install, monkeypatch):
    """A function that builds a layer held in MXFP4 on a device that is said to be 12.1, and a Marlin that reads
    the unpacked layout and adds 1000 to what it returns: the answer tells who gave it."""

    def build(n=100, k=192, package=True, bias=True):
        import torch

        registry()
        fake = install("offered") if package else None
        capability(12, 1)
        from vllm.model_executor.layers import decode_ops
        from vllm.model_executor.layers.quantization.online import mxfp4 as online

        def prepare(layer):
            layer.workspace = torch.zeros(1)

        def marlin(*, weight, weight_scale, bias=None, **rest):
            full = online.dequantize_mxfp4(weight, weight_scale).to(torch.bfloat16)
            return torch.nn.functional.linear(rest["input"], full, bias) + 1000

        monkeypatch.setattr(online, "prepare_fp4_layer_for_marlin", prepare)
        for module in (online, decode_ops):
            monkeypatch.setattr(module, "apply_fp4_marlin_linear", marlin)
        layer = torch.nn.Module()
        method = online.Mxfp4OnlineLinearMethod("a.o_proj")
        method.create_weights(layer, k, [n], k, n, torch.bfloat16, weight_loader=lambda *_: None)
        generator = torch.Generator().manual_seed(3)
        layer.weight.data = torch.randn(n, k, generator=generator).to(torch.bfloat16)
        layer.bias = torch.nn.Parameter(torch.randn(n, generator=generator).to(torch.bfloat16)) if bias else None
        exact = online.dequantize_mxfp4(*online.quantize_mxfp4(layer.weight.data)).to(torch.bfloat16)
        plain = layer.bias.data.clone() if bias else None
        method.process_weights_after_loading(layer)
        return layer, method, fake, lambda x: torch.nn.functional.linear(x, exact, plain)

    return build


@pytest.mark.parametrize("bias", [False, True])
def test_few_tokens_go_to_the_kernel_and_more_to_marlin(linear, bias):
    import torch

    layer, method, fake, want = linear(bias=bias)
    assert hasattr(layer, "rows_weight")
    for m in (1, 2, 8, 9, 64):
        fake.calls.clear()
        x = torch.randn(m, 192).to(torch.bfloat16)
        y = method.apply(layer, x, layer.bias)
        assert y.shape == (m, 100)
        assert y.is_contiguous()
        assert fake.calls == ([("dense", m)] if m <= 8 else [])
        shift = 0 if m <= 8 else 1000
        torch.testing.assert_close(y.float(), want(x).float() + shift, rtol=2**-7, atol=2**-3 if m <= 8 else 8)


def test_without_a_kernel_one_layout_is_held(linear):
    layer, _, _, _ = linear(package=False)
    assert not hasattr(layer, "rows_weight")


def test_one_graph_serves_every_number_of_tokens(linear):
    """fullgraph: no break; the choice falls inside the operator, so no size asks for a compilation of its own."""
    import torch

    layer, method, fake, want = linear()
    compiled: list[int] = []

    def backend(graph, inputs):
        compiled.append(sum("mxfp4_linear" in str(node.target) for node in graph.graph.nodes))
        return graph.forward

    torch._dynamo.reset()
    step = torch.compile(lambda x: method.apply(layer, x * 1, layer.bias) * 1, backend=backend, fullgraph=True)
    for m in (2, 3, 4, 8, 9, 33, 100):
        x = torch.randn(m, 192).to(torch.bfloat16)
        torch._dynamo.mark_dynamic(x, 0)
        fake.calls.clear()
        y = step(x)
        assert fake.calls == ([("dense", m)] if m <= 8 else [])
        torch.testing.assert_close(
            y.float(), want(x).float() + (0 if m <= 8 else 1000), rtol=2**-7, atol=2**-3 if m <= 8 else 8
        )
    assert compiled == [1]


def test_the_operators_are_sound_for_torch(linear):
    """Schema, fake implementation and tracing, as torch itself checks them."""
    import torch

    layer, _, _, _ = linear(n=128)
    for m in (4, 16):
        x = torch.randn(m, 192).to(torch.bfloat16)
        arguments = (x, layer.weight, layer.weight_scale, layer.bias, layer.workspace, layer.marlin_rows)
        rows = (layer.rows_weight, layer.rows_scale, layer.rows_bias)
        torch.library.opcheck(
            torch.ops.vllm.mxfp4_linear.default,
            (*arguments, *rows),
            test_utils=("test_schema", "test_faketensor"),
        )


def test_the_routers_few_tokens_go_to_the_kernel(one_rank, capability, install):
    import torch

    registry()
    fake = install("offered")
    capability(12, 1)
    from vllm.model_executor.layers.decode_ops import use_decode_router
    from vllm.model_executor.layers.linear import ReplicatedLinear

    router = ReplicatedLinear(64, 16, bias=True, params_dtype=torch.bfloat16, return_bias=False, disable_tp=True)
    torch.nn.init.normal_(router.weight)
    torch.nn.init.normal_(router.bias)
    use_decode_router(router)
    for m in (1, 8, 9):
        x = torch.randn(m, 64).to(torch.bfloat16)
        plain = torch.nn.functional.linear(x, router.weight, router.bias)
        fake.calls.clear()
        assert torch.equal(router(x), plain + 1000 if m <= 8 else plain)
        assert fake.calls == ([("router", m)] if m <= 8 else [])


@pytest.fixture
def experts(one_rank, capability, install, monkeypatch, moe_config, oracle):
    """A function that builds the experts as the MoE method would and returns (experts, package, what CUTLASS got)."""

    def build(package=True, switch="auto", **changes):
        import torch
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.config.device import DeviceConfig
        from vllm.model_executor.layers.fused_moe.config import mxfp4_mxfp8_moe_quant_config
        from vllm.model_executor.layers.fused_moe.experts import flashinfer_cutlass_moe
        from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4MoEMethod

        registry()
        fake = install("offered") if package else None
        capability(12, 1)
        monkeypatch.setenv(KERNEL, switch)
        cutlass: list[dict] = []
        monkeypatch.setattr(
            flashinfer_cutlass_moe, "flashinfer_cutlass_fused_moe", lambda **given: cutlass.append(given)
        )
        with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
            config = moe_config(
                num_experts=4,
                num_local_experts=4,
                num_logical_experts=4,
                experts_per_token=2,
                hidden_dim=128,
                intermediate_size_per_partition=128,
                **changes,
            )
            kind = GptOssMxfp4MoEMethod(config).experts_cls
            scale = torch.zeros(4, 256, 4, dtype=torch.uint8), torch.zeros(4, 128, 4, dtype=torch.uint8)
            quant = mxfp4_mxfp8_moe_quant_config(w1_scale=scale[0], w2_scale=scale[1])
            built = kind(config, quant)
            return built, fake, cutlass

    return build


def call(experts, m):
    """One call as the modular kernel makes it."""
    import torch
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    out = torch.zeros(m, 128, dtype=torch.bfloat16)
    experts.apply(
        output=out,
        hidden_states=torch.randn(m, 128).to(torch.bfloat16),
        w1=torch.zeros(4, 256, 64, dtype=torch.uint8),
        w2=torch.zeros(4, 128, 64, dtype=torch.uint8),
        topk_weights=torch.ones(m, 2),
        topk_ids=torch.zeros(m, 2, dtype=torch.int64),
        activation=MoEActivation.SWIGLUOAI,
        global_num_experts=4,
        expert_map=None,
        a1q_scale=None,
        a2_scale=None,
        workspace13=None,
        workspace2=None,
        expert_tokens_meta=None,
        apply_router_weight_on_input=False,
    )
    return out


@pytest.mark.parametrize("switch", ["auto", "gemv"])
def test_the_experts_few_tokens_go_to_the_kernel_that_takes_as_many(experts, monkeypatch, switch):
    registry()
    import torch
    from vllm.model_executor.layers.fused_moe.experts import mxfp4_decode

    quantized: list[tuple] = []

    def quantize(x, scale, **given):
        quantized.append((tuple(x.shape), given["quant_dtype"], given["is_scale_swizzled"]))
        return x.to(torch.float8_e4m3fn), torch.zeros(1, dtype=torch.uint8)

    monkeypatch.setattr(mxfp4_decode, "moe_kernel_quantize_input", quantize)
    built, fake, cutlass = experts(switch=switch)
    assert built.expects_unquantized_inputs
    for m, who in ((1, ["few", ("moe", 1)]), (4, ["few", ("moe", 4)]), (5, [("moe", 5)]), (64, [("moe", 64)])):
        fake.calls.clear()
        assert torch.equal(call(built, m), torch.full((m, 128), 7.0, dtype=torch.bfloat16))
        assert fake.calls == who
    assert (quantized, cutlass) == ([], [])
    fake.calls.clear()
    call(built, 65)
    assert fake.calls == []
    assert quantized == [((65, 128), "mxfp8", True)]
    assert cutlass[0]["input"].dtype == torch.float8_e4m3fn
    assert cutlass[0]["input_sf"] is not None
    assert cutlass[0]["use_mxfp8_act_scaling"]


def test_without_a_kernel_the_experts_are_cutlass_itself(experts):
    registry()
    built, _, _ = experts(package=False)
    assert type(built).__name__ == "FlashInferExperts"
    assert not built.expects_unquantized_inputs


def test_gemv_without_a_kernel_for_the_experts_is_refused(experts):
    registry()
    with pytest.raises(ValueError, match="gemv: no decode kernel for the MoE is found"):
        experts(package=False, switch="gemv")


def test_gemv_is_a_choice_and_disagrees_with_another_kernel(monkeypatch, capability, oracle, moe_config):
    from vllm import envs

    capability(12, 1)
    monkeypatch.setenv(KERNEL, "gemv")
    refusal = ""
    try:
        envs.validate_environ(hard_fail=False)
    except ValueError as error:
        refusal = str(error)
    assert refusal == ""
    assert oracle.select_mxfp4_moe_backend(moe_config())[0].value == "FLASHINFER_CUTLASS_MXFP4_MXFP8"
    with pytest.raises(ValueError, match="disagree"):
        oracle.select_mxfp4_moe_backend(moe_config(moe_backend="marlin"))


def test_on_a_device_without_the_layout_gemv_is_refused(monkeypatch, capability, oracle, moe_config):
    registry()
    capability(9, 0)
    monkeypatch.setenv(KERNEL, "gemv")
    with pytest.raises(ValueError, match="does not support"):
        oracle.select_mxfp4_moe_backend(moe_config())

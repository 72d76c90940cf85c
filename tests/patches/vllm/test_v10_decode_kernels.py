"""V-10: few tokens go to decode kernels of another package where it has them for the device and they are faster."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

KERNEL, DECODE = "VLLM_MXFP4_MOE_KERNEL", "VLLM_MXFP4_DECODE_KERNELS"


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
        ((12, 1), "all", False, True, True),
        ((12, 1), "none", True, False, False),
        ((9, 0), "auto", True, False, False),
        ((9, 0), "all", True, False, False),
    ],
)
@pytest.mark.parametrize("experts_kernel", ["auto", "marlin", "gemm"])
def test_the_switch_the_device_and_the_measure_decide(
    install, capability, monkeypatch, device, switch, faster, dense, moe, experts_kernel
):
    """Naming the experts' GEMM takes nothing away from the other kinds."""
    kernels = registry()
    install("offered").faster = faster
    capability(*device)
    monkeypatch.setenv(DECODE, switch)
    monkeypatch.setenv(KERNEL, experts_kernel)
    assert bool(kernels.decode_kernels("dense")) is dense
    assert bool(kernels.decode_kernels("router")) is moe
    for layout in ("marlin", "cutlass"):
        assert len(kernels.decode_kernels("moe", layout)) == (2 if moe else 0)
        assert kernels.decode_kernel("moe", 65, layout) is None
    assert (kernels.decode_kernel("dense", 8) is not None) is dense
    assert kernels.decode_kernel("dense", 9) is None


def test_one_line_says_what_is_taken_and_what_is_not(install, capability, said):
    kernels = registry()
    install("offered")
    install("broken", "greedy", "odd")
    capability(12, 1)
    assert kernels.decode_kernels("dense")
    lines = [line for line in said if line.startswith("Decode kernels: ")]
    assert len(lines) == 1
    for words in (
        "a_gemv (dense, M 1..8)",
        "more_moe (moe, M 5..64)",
        "libcuda is not there",
        "too_many asks for",
        "no_layout (moe) reads ''",
    ):
        assert words in lines[0]


def test_nothing_installed_changes_nothing(capability, said):
    kernels = registry()
    capability(12, 1)
    assert not any(kernels.decode_kernels(kind, layout) for kind, layout in (("dense", ""), ("moe", "marlin")))
    assert "Decode kernels: none; no package is installed." in said


def test_the_switch_is_a_known_variable_with_three_values(monkeypatch):
    from vllm import envs

    assert DECODE in envs.environment_variables
    monkeypatch.setenv(DECODE, "gemv")
    with pytest.raises(ValueError, match="Invalid value 'gemv'"):
        envs.environment_variables[DECODE]()


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
    assert layer.few_tokens_apart
    for m in (1, 2, 8, 9, 64):
        fake.calls.clear()
        x = torch.randn(m, 192).to(torch.bfloat16)
        y = method.apply(layer, x, layer.bias)
        assert y.shape == (m, 100)
        assert y.is_contiguous()
        assert fake.calls == ([("dense", m)] if m <= 8 else [])
        shift = 0 if m <= 8 else 1000
        torch.testing.assert_close(y.float(), want(x).float() + shift, rtol=2**-7, atol=2**-3 if m <= 8 else 8)


@pytest.mark.parametrize("package", [False, True])
def test_one_layout_is_held(linear, package):
    """Marlin's: its weights, scales, bias and workspace, and nothing beside them."""
    layer, _, _, _ = linear(package=package)
    held = {name for name, value in vars(layer).items() if hasattr(value, "shape")} | set(layer._parameters)
    assert held == {"weight", "weight_scale", "bias", "workspace"}
    assert layer.few_tokens_apart is package


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
        arguments = (x, layer.weight, layer.weight_scale, layer.bias, layer.workspace, layer.marlin_rows, 128)
        torch.library.opcheck(
            torch.ops.vllm.mxfp4_linear.default,
            arguments,
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
    """A function that builds the experts as the MoE method would and returns (experts, package, what the GEMM got)."""

    def build(kernel, package=True, **changes):
        import torch
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.config.device import DeviceConfig
        from vllm.model_executor.layers.fused_moe import config as configs
        from vllm.model_executor.layers.fused_moe.experts import flashinfer_cutlass_moe, marlin_moe
        from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4MoEMethod

        registry()
        fake = install("offered") if package else None
        capability(12, 1)
        monkeypatch.setenv(KERNEL, kernel)
        gemm: list[dict] = []
        monkeypatch.setattr(flashinfer_cutlass_moe, "flashinfer_cutlass_fused_moe", lambda **given: gemm.append(given))
        monkeypatch.setattr(marlin_moe, "fused_marlin_moe", lambda **given: gemm.append(given))
        with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
            config = moe_config(
                num_experts=4,
                num_local_experts=4,
                num_logical_experts=4,
                experts_per_token=2,
                hidden_dim=128,
                hidden_dim_unpadded=96,
                intermediate_size_per_partition=128,
                intermediate_size_per_partition_unpadded=64,
                **changes,
            )
            kind = GptOssMxfp4MoEMethod(config).experts_cls
            scales = torch.zeros(4, 256, 4, dtype=torch.uint8), torch.zeros(4, 128, 4, dtype=torch.uint8)
            biases = torch.zeros(4, 256, dtype=torch.bfloat16), torch.zeros(4, 128, dtype=torch.bfloat16)
            of = configs.mxfp4_w4a16_moe_quant_config if kernel == "marlin" else configs.mxfp4_mxfp8_moe_quant_config
            quant = of(w1_scale=scales[0], w2_scale=scales[1], w1_bias=biases[0], w2_bias=biases[1])
            return kind(config, quant), fake, gemm

    return build


W1, W2 = (4, 256, 64), (4, 128, 64)


def call(experts, m, **changes):
    """One call as the modular kernel makes it; what it was made with."""
    import torch
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    given = {
        "output": torch.zeros(m, 128, dtype=torch.bfloat16),
        "hidden_states": torch.randn(m, 128).to(torch.bfloat16),
        "w1": torch.zeros(W1, dtype=torch.uint8),
        "w2": torch.zeros(W2, dtype=torch.uint8),
        "topk_weights": torch.rand(m, 2),
        "topk_ids": torch.randint(0, 4, (m, 2)),
        "activation": MoEActivation.SWIGLUOAI,
        "global_num_experts": 4,
        "expert_map": None,
        "a1q_scale": None,
        "a2_scale": None,
        "workspace13": None,
        "workspace2": None,
        "expert_tokens_meta": None,
        "apply_router_weight_on_input": False,
    } | changes
    experts.apply(**given)
    return given


@pytest.mark.parametrize("kernel", ["marlin", "gemm"])
def test_the_experts_few_tokens_go_to_the_kernel_that_takes_as_many(experts, monkeypatch, kernel):
    registry()
    import torch
    from vllm.model_executor.layers.fused_moe.experts import mxfp4_decode

    quantized: list[tuple] = []

    def quantize(x, scale, **given):
        quantized.append((tuple(x.shape), given["quant_dtype"], given["is_scale_swizzled"]))
        return x.to(torch.float8_e4m3fn), torch.zeros(1, dtype=torch.uint8)

    monkeypatch.setattr(mxfp4_decode, "moe_kernel_quantize_input", quantize)
    built, fake, gemm = experts(kernel)
    for m, who in ((1, ["few", ("moe", 1)]), (4, ["few", ("moe", 4)]), (5, [("moe", 5)]), (64, [("moe", 64)])):
        fake.calls.clear()
        assert torch.equal(call(built, m)["output"], torch.full((m, 128), 7.0, dtype=torch.bfloat16))
        assert fake.calls == who
    assert (quantized, gemm) == ([], [])
    fake.calls.clear()
    given = call(built, 65)
    assert fake.calls == []
    assert len(gemm) == 1
    if kernel == "marlin":
        assert quantized == []
        assert gemm[0]["hidden_states"] is given["hidden_states"]
        assert gemm[0]["output"] is given["output"]
    else:
        assert quantized == [((65, 128), "mxfp8", True)]
        assert gemm[0]["input"].dtype == torch.float8_e4m3fn
        assert gemm[0]["input_sf"] is not None
        assert gemm[0]["use_mxfp8_act_scaling"]


@pytest.mark.parametrize("kernel", ["marlin", "gemm"])
def test_the_kernel_is_handed_each_tensor_under_its_name(experts, kernel):
    """Nothing is copied, nothing is exchanged: the very tensors that the GEMM holds, and the sizes without padding."""
    registry()
    import torch

    built, fake, _ = experts(kernel)
    given = call(built, 3)
    (handed,) = fake.handed
    assert handed["x"].data_ptr() == given["hidden_states"].data_ptr()
    assert handed["out"] is given["output"]
    assert handed["w13"] is given["w1"]
    assert handed["w2"] is given["w2"]
    for ours, theirs in (
        ("w13_scale", "w1_scale"),
        ("w2_scale", "w2_scale"),
        ("w13_bias", "w1_bias"),
        ("w2_bias", "w2_bias"),
    ):
        assert handed[ours] is getattr(built, theirs) is not None
    assert handed["topk_ids"].dtype == torch.int32
    assert torch.equal(handed["topk_ids"], given["topk_ids"].int())
    assert torch.equal(handed["topk_weights"], given["topk_weights"])
    assert (handed["alpha"], handed["limit"], handed["hidden"], handed["inter"]) == (1.702, 7.0, 96, 64)
    names = ["x", "w13", "w13_scale", "w13_bias", "w2", "w2_scale", "w2_bias", "topk_ids", "topk_weights"]
    assert set(handed) == {*names, "alpha", "limit", "hidden", "inter", "scratch", "out"}


def test_scratch_is_made_once_by_the_first_call_of_any_size_and_is_zero(experts):
    registry()
    built, fake, _ = experts("marlin")
    call(built, 65)  # vLLM measures its memory with many tokens, before it captures anything
    assert fake.asked == [(4, 2, 4, 96, 64), (64, 2, 4, 96, 64)]
    call(built, 1)
    call(built, 8)
    first, second = (one["scratch"] for one in fake.handed)
    assert first is second
    assert first.numel() == 64000
    assert not first.any()
    assert len(fake.asked) == 2


def test_what_a_kernel_does_not_know_goes_to_marlin(experts):
    registry()
    import torch
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    built, fake, gemm = experts("marlin")
    call(built, 1, activation=MoEActivation.SILU)
    call(built, 1, expert_map=torch.arange(4))
    call(built, 1, apply_router_weight_on_input=True)
    assert fake.calls == []
    assert len(gemm) == 3


@pytest.mark.parametrize(("kernel", "name"), [("marlin", "MarlinExperts"), ("gemm", "FlashInferExperts")])
def test_without_a_kernel_the_experts_are_the_gemm_itself(experts, kernel, name):
    registry()
    built, _, _ = experts(kernel, package=False)
    assert type(built).__name__ == name
    assert not built.expects_unquantized_inputs or kernel == "marlin"


def test_a_kernel_of_the_other_layout_is_not_asked(experts, install, monkeypatch):
    registry()
    fake = install("offered")
    fake.layouts = ("cutlass",)
    built, _, _ = experts("marlin", package=False)
    assert type(built).__name__ == "MarlinExperts"

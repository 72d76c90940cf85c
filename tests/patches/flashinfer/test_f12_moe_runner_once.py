"""F-12: the MoE runner is made once for all calls that are alike, and its identity to the tuner is stable."""

from __future__ import annotations


def runners(moe, calls=3, **kwargs):
    for _ in range(calls):
        moe.run(**kwargs)
    by_gemm = {1: [], 2: []}
    for name, runner, _ in moe.chosen:
        by_gemm[int(name[-1])].append(runner)
    moe.chosen.clear()
    return by_gemm


def test_calls_that_are_alike_share_their_runners(fake_moe):
    found = runners(fake_moe())
    for gemm, objects in found.items():
        assert len({id(runner) for runner in objects}) == 1, f"GEMM{gemm}: a new runner for every call"


def test_each_gemm_has_its_own_runner_that_does_not_change(fake_moe):
    found = runners(fake_moe())
    one, two = found[1][0], found[2][0]
    assert one is not two, "one runner serves both GEMMs and is changed between them"
    assert (one.gemm_idx_for_tuning, two.gemm_idx_for_tuning) == (1, 2)
    assert hash(one) != hash(two), "the tuner cannot tell the GEMMs apart"


def test_each_gemm_is_tuned_over_its_own_tactics(fake_moe):
    moe = fake_moe()
    found = runners(moe)
    assert found[1][0].get_valid_tactics([], None) == [0, 1]
    assert found[2][0].get_valid_tactics([], None) == [2, 3, 4, 5]


def test_calls_that_differ_have_different_runners(fake_moe):
    moe = fake_moe()
    base = runners(moe, calls=1)[1][0]
    for change in ({"top_k": 2}, {"ep_size": 2}, {"enable_pdl": True}, {"tp_rank": 1, "tp_size": 2}):
        other = runners(moe, calls=1, **change)[1][0]
        assert other is not base, f"{change} made no other runner"
        assert hash(other) != hash(base), f"{change} is not in the runner's hash"
    assert runners(moe, calls=1)[1][0].top_k == 4


def test_the_number_of_tokens_makes_no_runner(fake_moe):
    moe = fake_moe()
    first, *others = [runners(moe, calls=1, tokens=n)[1][0] for n in (1, 4, 300)]
    assert all(runner is first for runner in others), "a new runner for every number of tokens"


def test_the_compiled_runner_is_made_once(fake_moe):
    moe = fake_moe()
    runners(moe)
    assert moe.inits == 1

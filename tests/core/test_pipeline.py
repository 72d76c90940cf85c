from __future__ import annotations

from sparkforge.core.pipeline import Pipeline


def test_a_step_runs_once_and_says_what_changed(store, capsys):
    made = {}

    def run(inputs, dry=False):
        line = Pipeline(store, "line", dry=dry)
        key = "".join(value or "" for value in inputs.values())
        result = line.step(
            "compile", inputs=inputs, look=lambda: made.get(key), make=lambda: made.setdefault(key, key), shows=str
        )
        return result, line.ran[-1]

    assert run({"source": "a", "flags": "x"}, dry=True)[0] is None
    assert made == {}
    result, ran = run({"source": "a", "flags": "x"})
    assert (result, ran.cached, ran.why) == ("ax", False, "not in the store yet")
    result, ran = run({"source": "a", "flags": "x"})
    assert (result, ran.cached) == ("ax", True)
    _, ran = run({"source": "b", "flags": "x"})
    assert ran.why == "changed: source"
    made.clear()
    _, ran = run({"source": "b", "flags": "x"})
    assert ran.why == "its result is gone"
    _, ran = run({"source": None, "flags": "x"}, dry=True)
    assert ran.why == "follows source"
    assert "[cached] compile: ax" in capsys.readouterr().err

from sparkforge.smoke.waiting import news


def test_news_is_what_the_server_said_last_without_its_prefixes():
    log = (
        "(APIServer pid=7) INFO 11-20 13:44:07 [utils.py:306]  █▄█▀ █     █     █     █  model   tiny\n"
        "(Worker pid=9) INFO 11-20 13:44:32 [cpu_model_runner.py:119] Warming up model for the compilation...\n"
        "(Worker pid=9) \n"
        "\x1b[0;36m(EngineCore pid=8)\x1b[0;0m INFO 11-20 13:44:07 [utils.py:306]        █     █     █▄   ▄█\n"
        "(Worker pid=9) "
    )
    assert news(log) == "Warming up model for the compilation..."
    assert news("(Worker pid=9) Loading weights: 50% | 1/2\n") == "Loading weights: 50% | 1/2"
    waits = (
        "(EngineCore pid=3) INFO 11-20 15:00:15 [shm.py:681] No available shared memory broadcast block found in 60 s\n"
    )
    assert news(f"(Worker pid=9) Loading\n{waits}") == "Loading"
    advice = "(APIServer pid=7) WARNING 11-20 14:12:26 [system_utils.py:294] Found ulimit of 1024\n"
    assert news(f"(Worker pid=9) Loading\n{advice}W1120 13:44:24.792000 8979 torch/x.py:140] No CUDA") == "Loading"
    assert news("(Worker pid=9) \n\n") == "it says nothing yet"
    assert news("x" * 500).endswith(" ...")
    assert len(news("x" * 500)) < 130

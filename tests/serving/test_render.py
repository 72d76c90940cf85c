"""What a profile prints, read back as a shell and as compose would read it."""

import json
import os
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import yaml

from sparkforge.serving import render
from sparkforge.serving.profile import ContainerOptions
from sparkforge.serving.serve import changed
from sparkforge.serving.service import ServiceMount, Word, launch, services
from sparkforge.serving.words import command, with_users

IMAGE = "localhost/sparkforge:a"
SHORT = "gpt-oss-120b-short"
GOLDEN = """\
mkdir -p "${HF_HOME:-$HOME/.cache/huggingface}"
docker run --rm \\
    --name sparkforge-gpt-oss-120b-ngram \\
    --gpus all \\
    --user "$(id -u):0" \\
    --ipc host \\
    --publish 127.0.0.1:8000:8000 \\
    --volume "${HF_HOME:-$HOME/.cache/huggingface}:/home/vllm/.cache/huggingface" \\
    --volume sparkforge-cache:/home/vllm/.cache/sparkforge \\
    --env HF_TOKEN \\
    --env HF_HUB_OFFLINE \\
    --env VLLM_API_KEY \\
    --env VLLM_MXFP4_MOE_KERNEL=marlin \\
    localhost/sparkforge:a \\
    openai/gpt-oss-120b \\
    --max-model-len 32768 \\
    --max-num-seqs 8 \\
    --max-num-batched-tokens 2048 \\
    --gpu-memory-utilization 0.7 \\
    --enable-auto-tool-choice \\
    --tool-call-parser openai \\
    --mxfp4-layers all \\
    --attention-backend TRITON_ATTN \\
    --speculative-config '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4,"prompt_lookup_min":2}'\
"""


@pytest.fixture
def made(known):
    """Containers of a profile."""

    def make(name, target="serve", model=None, parts="soaked", words=(), **own):
        profile = changed(known.find(name), **own)
        return services(with_users(command(known, profile, parts), words), IMAGE, target, model=model)

    return make


def ran(text, tmp_path, **more):
    """Words that `docker` gets when a shell runs a text, one list for each time, and the folders that it made."""
    programs = tmp_path / "bin"
    programs.mkdir()
    docker = programs / "docker"
    docker.write_text("#!/usr/bin/python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    docker.chmod(0o755)
    env = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path / "home dir")} | more
    done = subprocess.run(["sh", "-euc", text], env=env, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_docker_run_reads_as_it_should(made):
    (service,) = made("gpt-oss-120b-ngram")
    assert render.shell(service) == GOLDEN


@pytest.mark.parametrize("parts", ["soaked", "all"])
def test_a_shell_makes_of_every_text_the_words_that_we_would_run(known, made, tmp_path, monkeypatch, parts):
    home = tmp_path / "home dir"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("HF_HOME", raising=False)
    found = [one for name in known.profiles for one in made(name, model=Path("/a b/$c"), parts=parts)]
    words = ran("\n".join(render.shell(one) for one in found), tmp_path)
    assert words == [render.argv(one)[1:] for one in found]
    assert (home / ".cache" / "huggingface").is_dir()


def test_the_users_model_cache_is_taken_where_they_say(made, tmp_path, monkeypatch):
    elsewhere = tmp_path / "hub of mine"
    monkeypatch.setenv("HF_HOME", str(elsewhere))
    (service,) = made(SHORT)
    (words,) = ran(render.shell(service), tmp_path, HF_HOME=str(elsewhere))
    assert f"{elsewhere}:/home/vllm/.cache/huggingface" in words
    assert words == render.argv(service)[1:]
    assert elsewhere.is_dir()


def interpolated(value, env):
    """Compose's interpolation, as far as we use it: `$$`, `${NAME}` and `${NAME:-...}`, nested."""
    out = ""
    while value:
        if value.startswith("$$"):
            out, value = out + "$", value[2:]
        elif value.startswith("${"):
            depth, end = 1, 2
            while depth:
                depth += {"{": 1, "}": -1}.get(value[end], 0)
                end += 1
            name, _, default = value[2 : end - 1].partition(":-")
            out, value = out + (env.get(name) or interpolated(default, env)), value[end:]
        else:
            assert not value.startswith("$"), value
            out, value = out + value[0], value[1:]
    return out


def told(file, env):
    """The words of the `docker run` that a compose file is worth."""
    whole = yaml.safe_load(file)
    ((_, said),) = whole["services"].items()
    words = ["run", "--rm", "--name", said["container_name"]]
    if "deploy" in said:
        (device,) = said["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        words += ["--gpus", "all"]
    words += ["--user", said["user"]]
    for key, flag in (("ipc", "--ipc"), ("shm_size", "--shm-size"), ("network_mode", "--network")):
        words += [flag, said[key]] if key in said else []
    for port in said.get("ports", ()):
        words += ["--publish", port]
    for device in said.get("devices", ()):
        words += ["--device", device.partition(":")[0]]
    for capability in said.get("cap_add", ()):
        words += ["--cap-add", capability]
    for name, limit in said.get("ulimits", {}).items():
        words += ["--ulimit", f"{name}={limit}"]
    for volume in said["volumes"]:
        if volume["type"] == "volume":
            assert whole["volumes"][volume["source"]] == {"name": volume["source"]}
        read_only = ":ro" if volume.get("read_only") else ""
        words += ["--volume", f"{interpolated(volume['source'], env)}:{volume['target']}{read_only}"]
    for one in said["environment"]:
        words += ["--env", interpolated(one, env)]
    return [*words, said["image"], *(interpolated(one, env) for one in said["command"])]


@pytest.mark.parametrize("parts", ["soaked", "all"])
def test_a_compose_file_says_the_same_as_a_docker_run(known, made, monkeypatch, parts):
    monkeypatch.delenv("HF_HOME", raising=False)
    for name in known.profiles:
        for service in made(name, model=Path("/a b/$c"), parts=parts, words=["--chat-template", "a$b ${c}"]):
            file = render.compose(service)
            assert all(isinstance(word, str) for word in yaml.safe_load(file)["services"][service.name]["command"])
            assert told(file, {"HOME": str(Path.home())}) == render.argv(service)[1:], name


def test_shared_memory_of_a_private_kind(known):
    profile = msgspec.structs.replace(known.find(SHORT), container=ContainerOptions(ipc="private", shm="2g", port=9000))
    (service,) = services(command(known, profile), IMAGE, "serve")
    words = render.argv(service)
    assert "--ipc" not in words
    assert words[words.index("--shm-size") + 1] == "2g"
    assert words[words.index("--publish") + 1] == "127.0.0.1:9000:9000"
    assert words[words.index("--port") + 1] == "9000"
    assert told(render.compose(service), dict(os.environ)) == words[1:]


def test_the_tiny_model_is_mounted_read_only_and_a_cpu_image_gets_no_gpus(made):
    (service,) = made("tiny", target="cpu", model=Path("/store/tiny"))
    words = render.argv(service)
    assert "--gpus" not in words
    assert "deploy" not in render.compose(service)
    assert "/store/tiny:/models/tiny:ro" in words
    assert words[words.index(IMAGE) + 1] == "/models/tiny"
    assert words.count("HF_HUB_OFFLINE") == 0  # it is set, so it is not handed on


def test_what_a_user_says_takes_the_place_of_the_profiles_word(made):
    (service,) = made(SHORT, words=["--max-num-seqs=2", "--max_model_len", "-1", "--stream-interval", "4"])
    words = render.argv(service)
    assert "--max-num-seqs" not in words
    assert "--max-model-len" not in words
    assert words[-5:] == ["--max-num-seqs=2", "--max_model_len", "-1", "--stream-interval", "4"]


def test_an_engine_gets_what_a_docker_run_says(known, made, monkeypatch):
    """Word by word: each option of the printed command has its place in the launch."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in known.profiles:
        for service in made(name, model=Path("/a b/$c"), parts="all"):
            words, asked = render.argv(service), launch(service)
            at = words.index(asked.image)
            options = list(pairwise(words[:at]))
            assert words[at + 1 :] == asked.command, name
            assert [value for flag, value in options if flag == "--volume"] == [one.text for one in asked.mounts]
            env = dict(value.split("=", 1) for flag, value in options if flag == "--env" and "=" in value)
            assert env == asked.env
            assert [value for flag, value in options if flag == "--device"] == list(asked.devices)
            assert [value for flag, value in options if flag == "--cap-add"] == list(asked.capabilities)
            limits = [value for flag, value in options if flag == "--ulimit"]
            assert limits == [f"{limit}={value}" for limit, value in asked.ulimits.items()]
            published = [value for flag, value in options if flag == "--publish"]
            assert published == [f"{asked.publish}:{port}:{port}" for port in asked.ports]
            said = dict(options)
            one_each = (
                said.get("--network"),
                said.get("--ipc"),
                said.get("--shm-size"),
                said["--user"],
                said["--name"],
            )
            assert one_each == (asked.network, asked.ipc, asked.shm, asked.user, asked.name)
            assert ("--gpus" in words) is asked.gpus


def test_a_setting_of_the_users_is_passed_on_by_value(made, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "a token")
    (service,) = made(SHORT)
    assert launch(service).env["HF_TOKEN"] == "a token"
    assert "a token" not in " ".join(render.argv(service))


def test_on_the_hosts_network_the_server_itself_listens_where_it_is_told(known, made):
    (head, _) = made("gpt-oss-120b-two-sparks", nodes="10.0.0.1,10.0.0.2")
    assert "--host 127.0.0.1" in head.words[0][2]
    command_ = with_users(command(known, known.find("gpt-oss-120b-two-sparks"), "soaked"), ["--host", "10.0.0.1"])
    head, _ = services(command_, IMAGE, "serve")
    assert "--host 10.0.0.1" in head.words[0][2]
    assert "127.0.0.1" not in head.words[0][2]


def test_two_machines(made):
    head, worker = made(
        "gpt-oss-120b-two-sparks", nodes="10.0.0.1,10.0.0.2", link="enp1s0f1np1", hca="rocep1s0f1,roceP2p1s0f1"
    )
    for service, address in ((head, "10.0.0.1"), (worker, "10.0.0.2")):
        words = render.argv(service)
        env = dict(word.split("=", 1) for flag, word in pairwise(words) if flag == "--env" and "=" in word)
        assert env["VLLM_HOST_IP"] == address
        assert env["NCCL_IB_HCA"] == "rocep1s0f1,roceP2p1s0f1"
        names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES")
        assert {env[name] for name in names} == {"enp1s0f1np1"}
        assert words[words.index("--network") + 1] == "host"
        assert words[words.index("--device") + 1] == "/dev/infiniband"
        assert "--publish" not in words
    shell, option, script = head.words[0]
    assert (shell, option) == ("sh", "-c")
    ray, serves = (shlex.split(one) for one in script.split("&&"))
    assert ray[:2] == ["ray", "start"]
    assert {"--head", "--node-ip-address=10.0.0.1", "--port=6379"} <= set(ray)
    assert serves[:3] == ["exec", "/opt/sparkforge/entrypoint", "openai/gpt-oss-120b"]
    assert serves[serves.index("--distributed-executor-backend") + 1] == "ray"
    joins = [word for group in worker.words for word in group]
    assert {"--address=10.0.0.1:6379", "--node-ip-address=10.0.0.2", "--block"} <= set(joins)


def test_a_word_that_a_shell_would_change_is_quoted():
    mount = ServiceMount(Word.plain('/a"b`c$d\\e'), "/t")
    done = subprocess.run(["printf", "%s", mount.source.value], capture_output=True, text=True, check=True)
    shelled = subprocess.run(
        ["sh", "-c", f'printf %s "{mount.source.shell}"'], capture_output=True, text=True, check=True
    )
    assert shelled.stdout == done.stdout == '/a"b`c$d\\e'

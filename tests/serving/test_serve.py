"""`invoke serve` and `invoke profiles` as a person types them, with a Docker that tells what it was asked."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkforge.cli import namespace
from sparkforge.core import console
from sparkforge.core.platforms import Platform
from sparkforge.core.program import Program
from sparkforge.engine.docker import Docker
from sparkforge.serving import serve

HERE = Platform.host()
DOCKER = """\
#!/usr/bin/env python3
import json, os, sys
words = sys.argv[1:]
with open(os.environ["TOLD"], "a") as file:
    file.write(json.dumps(words) + "\\n")
images = json.loads(os.environ["IMAGES"])
if words[0] == "version":
    sys.exit("Cannot connect to the Docker daemon") if os.environ.get("DOWN") else print("28.0")
elif words[0] == "images":
    wanted = {word.partition("=")[2] for word in words if word.startswith("label=")}
    for name, labels in images.items():
        if wanted <= {f"{key}={value}" for key, value in labels.items()}:
            print(name)
elif words[:2] == ["image", "inspect"]:
    if words[-1] not in images:
        sys.exit("No such image")
    print(json.dumps(images[words[-1]]))
elif words[0] == "run":
    sys.exit(int(os.environ.get("STATUS", "0")))
"""


def labelled(target, stack="vllm-0.21", platform=HERE.oci, **more):
    said = {"stack": stack, "target": target, "platform": platform, **more}
    return {f"dev.sparkforge.{key}": value for key, value in said.items()}


IMAGES = {
    "localhost/sparkforge:newest": labelled("serve"),
    "localhost/sparkforge:older": labelled("serve"),
    "localhost/sparkforge:other": labelled("serve", platform="linux/riscv64"),
    "localhost/sparkforge:cpu": labelled("cpu"),
    "localhost/sparkforge:of-9": labelled("serve", stack="vllm-9"),
}


@pytest.fixture
def typed(tmp_path, monkeypatch, capsys):
    """Runs our program in this process: a process each would take a second each."""
    programs = tmp_path / "bin"
    programs.mkdir()
    docker = programs / "docker"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    told = tmp_path / "told"
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(serve, "clients", lambda: [Docker(str(docker))])
    monkeypatch.delenv("HF_HOME", raising=False)
    for name, value in {"TOLD": told, "HOME": home, "SPARKFORGE_STORE": tmp_path / "store"}.items():
        monkeypatch.setenv(name, str(value))

    def run(*words, images=IMAGES, **env):
        told.write_text("")
        code = 0
        with monkeypatch.context() as patch:
            for name, value in {"IMAGES": json.dumps(images), **env}.items():
                patch.setenv(name, value)
            try:
                Program(namespace=namespace()).run(["invoke", *words])
            except SystemExit as ended:
                code = ended.code or 0
        out, err = capsys.readouterr()
        ran = [json.loads(line) for line in told.read_text().splitlines() if '"run"' in line]
        return SimpleNamespace(returncode=code, stdout=out, stderr=err, ran=ran)

    run.home = home
    yield run
    console.quiet(on=False)


def test_no_words_run_the_default_profile_on_the_newest_image(typed):
    done = typed("serve")
    assert done.returncode == 0, done.stderr
    (words,) = done.ran
    assert words[words.index("localhost/sparkforge:newest") + 1] == "openai/gpt-oss-120b"
    assert f"{typed.home}/.cache/huggingface:/home/vllm/.cache/huggingface" in words
    assert (typed.home / ".cache" / "huggingface").is_dir()
    assert "profile gpt-oss-120b-short, parts marlin-moe" in done.stderr
    assert "off: xqa-decode" in done.stderr


def test_a_dry_run_runs_nothing_and_makes_no_folder(typed):
    done = typed("serve", "--dry-run")
    assert (done.returncode, done.ran) == (0, [])
    assert "run --rm --name sparkforge-gpt-oss-120b-short" in done.stderr
    assert not (typed.home / ".cache").exists()


@pytest.mark.parametrize(
    ("words", "env", "images", "status", "said"),
    [
        (("--profile", "fast"), {}, IMAGES, 2, "profiles: gpt-oss-120b-eagle3"),
        (("--parts", "fast"), {}, IMAGES, 2, "parts: marlin-moe, dense-mxfp4"),
        (("--target", "gpu"), {}, IMAGES, 2, "targets: serve"),
        (("--port", "70000"), {}, IMAGES, 2, "is no port"),
        (("--link", "eth0"), {}, IMAGES, 2, "takes one machine"),
        (("--profile", "gpt-oss-120b-two-sparks", "--nodes", "a"), {}, IMAGES, 2, "does not name two machines"),
        (("--profile", "gpt-oss-120b-two-sparks"), {}, IMAGES, 2, "add --print"),
        (("--image", "localhost/sparkforge:cpu"), {}, IMAGES, 2, "is no image for gpt-oss-120b-short"),
        (("--image", "localhost/sparkforge:of-9"), {}, IMAGES, 2, "it is vllm-9 serve"),
        (("--image", "localhost/sparkforge:lost"), {}, IMAGES, 3, "there is no image localhost/sparkforge:lost"),
        ((), {}, {}, 3, "do:  invoke build --target serve"),
        (("--profile", "tiny"), {}, {}, 3, "do:  invoke build --target cpu"),
        ((), {"DOWN": "1"}, IMAGES, 3, "no Docker that answers"),
        ((), {"STATUS": "1"}, IMAGES, 1, "the container ended with status 1"),
        ((), {"STATUS": "137"}, IMAGES, 1, "--gpu-memory-utilization"),
        ((), {"STATUS": "143"}, IMAGES, 0, ""),
    ],
)
def test_a_status_and_a_sentence(typed, words, env, images, status, said):  # noqa: PLR0917  columns of a table
    done = typed("serve", *words, images=images, **env)
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("words", [(), ("--image", "localhost/sparkforge:needed"), ("--print",)])
def test_a_part_whose_modules_were_left_out_of_the_image_is_refused(typed, words):
    images = {"localhost/sparkforge:needed": labelled("serve", **{"parts-left-out": "cutlass-moe,eagle3"})}
    refused = typed("serve", "--parts", "cutlass-moe", *words, images=images)
    assert (refused.returncode, refused.ran, refused.stdout) == (2, [], "")
    assert "localhost/sparkforge:needed cannot turn on cutlass-moe" in refused.stderr
    assert "invoke build --aot all" in refused.stderr
    assert typed("serve", *words, images=images).returncode == 0
    assert typed("serve", *words, "--parts", "xqa-decode", images=images).returncode == 0


def test_an_image_for_tests_is_served_from_with_a_warning(typed):
    done = typed("serve", "--dry-run", images={"localhost/sparkforge:t": labelled("serve", **{"test-only": "true"})})
    assert done.returncode == 0
    assert "warning: localhost/sparkforge:t is for tests" in done.stderr


def test_what_is_printed_needs_no_image(typed):
    done = typed("serve", "--print", "--profile", "gpt-oss-120b-long", "--port", "9000", images={})
    assert done.returncode == 0
    assert done.stdout.startswith('mkdir -p "${HF_HOME')
    assert f"localhost/sparkforge:vllm-0.21-serve-12.1f-{HERE.debian}" in done.stdout
    assert "--publish 9000:9000" in done.stdout
    assert "not here yet" in done.stderr
    assert done.ran == []


def test_the_tiny_model_is_made_and_mounted(typed):
    done = typed("serve", "--profile", "tiny")
    assert done.returncode == 0, done.stderr
    (words,) = done.ran
    (mount,) = [word for word in words if word.endswith(":/models/tiny:ro")]
    assert Path(mount.partition(":")[0], "config.json").is_file()
    assert "localhost/sparkforge:cpu" in words


def test_json_says_it_all(typed):
    words = ("serve", "--json", "--profile", "gpt-oss-120b-two-sparks", "--parts", "all", "--flags", "--max-num-seqs 4")
    done = typed(*words, "--nodes", "10.0.0.1,10.0.0.2")
    said = json.loads(done.stdout)
    assert done.stderr == ""
    assert said["off"] == []
    assert said["words"][-2:] == ["--max-num-seqs", "4"]
    assert [one["name"].rpartition("-")[2] for one in said["containers"]] == ["head", "worker"]
    assert said["predicted"]["weights_gb"] < 40
    composed = typed(
        "serve", "--compose", "--profile", "gpt-oss-120b-two-sparks", "--nodes", "10.0.0.1,10.0.0.2"
    ).stdout
    assert [one.splitlines()[0] for one in composed.split("---\n")] == [
        "# on 10.0.0.1, first: it serves, and waits half an hour for the other",
        "# on 10.0.0.2, once Ray runs on the first",
    ]


def test_profiles_are_listed_with_what_they_stand_on(typed):
    listed = typed("profiles").stdout
    assert "Predicted, not measured" in listed
    rows = json.loads(typed("profiles", "--json").stdout)
    assert all(row["name"] in listed for row in rows)
    assert {row["name"] for row in rows if row["default_of"]} == {"gpt-oss-120b-short", "tiny"}
    told = typed("profiles", "--name", "gpt-oss-120b-eagle3").stdout
    assert "eagle3 (off)" in told
    assert "soaked together as: results/vllm/soak-sm90.json: S.X.F.fp8.default" in told
    assert typed("profiles", "--name", "fast").returncode == 2

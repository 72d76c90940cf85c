"""`invoke serve` and `invoke profiles` as a person types them, with a Docker that tells what it was asked."""

import json
from types import SimpleNamespace

import pytest

from sparkforge.cli import namespace
from sparkforge.core import console
from sparkforge.core.errors import EnvironmentLacks
from sparkforge.core.platforms import Platform
from sparkforge.core.program import Program
from sparkforge.engine import gpu
from sparkforge.serving import serve

HERE = Platform.host()


class Daemon:
    """An engine with these images, whose containers end by themselves at once."""

    def __init__(self, images, status=0, down=False):
        self.images, self.status, self.down, self.ran = images, status, down, []

    def find(self, labels):
        if self.down:
            raise EnvironmentLacks("no Docker daemon answers", do="invoke setup")
        return [tag for tag, has in self.images.items() if labels.items() <= has.items()]

    def has(self, tag):
        return tag in self.images

    def labels(self, tag):
        return self.images[tag]

    def run(self, launch):
        self.ran.append(launch)
        return SimpleNamespace(
            id="one", follow=lambda: iter(()), wait=lambda: self.status, remove=lambda: self.ran.append("removed")
        )


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
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    monkeypatch.setattr(gpu, "DEV", tmp_path / "dev")
    monkeypatch.delenv("HF_HOME", raising=False)
    for name, value in {"HOME": home, "SPARKFORGE_STORE": tmp_path / "store"}.items():
        monkeypatch.setenv(name, str(value))

    def run(*words, images=IMAGES, **how):
        code, daemon = 0, Daemon(images, **how)
        with monkeypatch.context() as patch:
            patch.setattr(serve, "engine", lambda: daemon)
            try:
                Program(namespace=namespace()).run(["invoke", *words])
            except SystemExit as ended:
                code = ended.code or 0
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=out, stderr=err, ran=daemon.ran)

    run.home, run.dev = home, tmp_path / "dev"
    yield run
    console.quiet(on=False)


def test_no_words_run_the_default_profile_on_the_newest_image(typed):
    done = typed("serve")
    assert done.returncode == 0, done.stderr
    launch, removed = done.ran
    assert removed == "removed"
    assert (launch.image, launch.command[0]) == ("localhost/sparkforge:newest", "openai/gpt-oss-120b")
    assert (launch.gpus, launch.ports, launch.publish) == (True, (8000,), "127.0.0.1")
    assert f"{typed.home}/.cache/huggingface:/home/vllm/.cache/huggingface" in [one.text for one in launch.mounts]
    assert "sparkforge-cache:/home/vllm/.cache/sparkforge" in [one.text for one in launch.mounts]
    assert (typed.home / ".cache" / "huggingface").is_dir()
    assert "profile gpt-oss-120b-short, parts marlin-moe" in done.stderr
    assert "off: xqa-decode" in done.stderr


def test_a_dry_run_runs_nothing_and_makes_no_folder(typed):
    done = typed("serve", "--dry-run")
    assert (done.returncode, done.ran) == (0, [])
    assert "run --rm --name sparkforge-gpt-oss-120b-short" in done.stderr
    assert not (typed.home / ".cache").exists()


@pytest.mark.parametrize(
    ("words", "how", "images", "status", "said"),
    [
        (("--profile", "fast"), {}, IMAGES, 2, "profiles: gpt-oss-120b-eagle3"),
        (("--parts", "fast"), {}, IMAGES, 2, "parts: marlin-moe, dense-mxfp4"),
        (("--target", "gpu"), {}, IMAGES, 2, "targets: serve"),
        (("--port", "70000"), {}, IMAGES, 2, "is not a port"),
        (("--link", "eth0"), {}, IMAGES, 2, "takes one machine"),
        (("--profile", "gpt-oss-120b-two-sparks", "--nodes", "a"), {}, IMAGES, 2, "does not name two machines"),
        (("--profile", "gpt-oss-120b-two-sparks"), {}, IMAGES, 2, "add --print"),
        (("--image", "localhost/sparkforge:cpu"), {}, IMAGES, 2, "is not an image for gpt-oss-120b-short"),
        (("--image", "localhost/sparkforge:of-9"), {}, IMAGES, 2, "it is vllm-9 serve"),
        (("--image", "localhost/sparkforge:lost"), {}, IMAGES, 3, "there is no image localhost/sparkforge:lost"),
        ((), {}, {}, 3, "do:  invoke build --target serve"),
        (("--profile", "tiny"), {}, {}, 3, "do:  invoke build --target cpu"),
        ((), {"down": True}, IMAGES, 3, "no Docker daemon answers"),
        ((), {"status": 1}, IMAGES, 1, "the server ended with status 1"),
        ((), {"status": 137}, IMAGES, 1, "--gpu-memory-utilization"),
        ((), {"status": 143}, IMAGES, 0, ""),
        (("--host", "spark"), {}, IMAGES, 2, "is not an IP address"),
        (("--api-key-file", "/nowhere"), {}, IMAGES, 2, "/nowhere cannot be read"),
        (("--api-key-file", "/dev/null"), {}, IMAGES, 2, "/dev/null is empty"),
    ],
)
def test_a_status_and_a_sentence(typed, words, how, images, status, said):  # noqa: PLR0917  columns of a table
    done = typed("serve", *words, images=images, **how)
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
    assert "--publish 127.0.0.1:9000:9000" in done.stdout
    assert "--name sparkforge-gpt-oss-120b-long-9000" in done.stdout
    assert "--env VLLM_API_KEY" in done.stdout
    assert "not here yet" in done.stderr
    assert done.ran == []


def test_the_tiny_model_is_made_and_mounted(typed):
    done = typed("serve", "--profile", "tiny")
    assert done.returncode == 0, done.stderr
    launch, _ = done.ran
    (mount,) = [one for one in launch.mounts if one.target == "/models/tiny"]
    assert (mount.source / "config.json").is_file()
    assert mount.read_only
    assert (launch.image, launch.gpus) == ("localhost/sparkforge:cpu", False)


def test_a_machine_without_a_gpu_is_told_before_anything_starts(typed):
    (typed.dev / "nvidia0").unlink()
    done = typed("serve")
    assert (done.returncode, done.ran) == (3, [])
    assert "needs an NVIDIA GPU, and this machine has none" in done.stderr
    assert not (typed.home / ".cache").exists()
    assert typed("serve", "--dry-run").returncode == 0


def test_a_printed_command_reads_the_key_from_its_file(typed, tmp_path):
    (tmp_path / "a key").write_text("s3cret\n")
    words = ("serve", "--api-key-file", str(tmp_path / "a key"), "--host", "0.0.0.0", "--profile", "gpt-oss-120b-long")
    shell = typed(*words, "--print").stdout
    assert f"""VLLM_API_KEY="$(cat '{tmp_path}/a key')" docker run --rm""" in shell
    assert "--publish 0.0.0.0:8000:8000" in shell
    composed = typed(*words, "--compose").stdout
    assert composed.startswith(f"""# start it with: VLLM_API_KEY="$(cat '{tmp_path}/a key')" docker compose up""")
    assert "s3cret" not in shell + composed + typed(*words, "--dry-run").stderr + typed(*words, "--json").stdout


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


def test_every_line_about_profiles_fits_100_columns(typed, known):
    said = [typed("profiles").stdout, *(typed("profiles", "--name", name).stdout for name in known.profiles)]
    assert max(len(line) for text in said for line in text.splitlines()) <= 100


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

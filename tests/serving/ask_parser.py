"""Asks the parser of an installed vLLM, as `vllm serve` does, whether it takes words; runs with that vLLM's Python.

Standard input: {name: {"words": [...], "env": {...}}}. The last line of standard output: {name: null or the refusal}.
A variable is refused when vLLM does not declare it, or refuses its value.
"""

import contextlib
import io
import json
import os
import sys

from vllm import envs
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.openai.api_server import validate_api_server_args
from vllm.entrypoints.openai.cli_args import validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.mxfp4_layers import parse_mxfp4_layers


def refusal(parser, words, env):

    for name, value in env.items():
        if not name.startswith("VLLM_"):
            continue
        if name not in envs.environment_variables:
            return f"{name} is declared nowhere"
        os.environ[name] = value
        try:
            envs.environment_variables[name]()
        except ValueError as wrong:
            return f"{name}: {wrong}"
        finally:
            del os.environ[name]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed = parser.parse_args(words)
        parsed.model = parsed.model_tag
        validate_parsed_serve_args(parsed)
        validate_api_server_args(parsed)
        AsyncEngineArgs.from_cli_args(parsed)
        parse_mxfp4_layers(parsed.mxfp4_layers)  # which the model's configuration does, and there is no model here
    except SystemExit:
        return " ".join(said.getvalue().split("error:", 1)[-1].split())
    except Exception as wrong:  # noqa: BLE001  whatever it raises is its refusal
        return f"{type(wrong).__name__}: {wrong}".replace("\n", " ")
    return None


def main():
    asked = json.load(sys.stdin)
    parser = FlexibleArgumentParser(prog="vllm")
    ServeSubcommand().subparser_init(parser.add_subparsers(required=True, dest="subparser"))
    found = {name: refusal(parser, ["serve", *one["words"]], one["env"]) for name, one in asked.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

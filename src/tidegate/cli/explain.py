"""``tidegate explain``: the physical plan of a pipeline, without running anything of it."""

from __future__ import annotations

import argparse
import json

from tidegate.cli.console import Console
from tidegate.cli.load import load_for_spark

HELP = "show a pipeline's physical plan"
DESCRIPTION = "Show the physical plan of the pipeline that FILE defines: its stages, exchanges and barriers."
PARALLELISM = 2


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The verb's own arguments."""
    verb.add_argument("file", metavar="FILE[:name]", help="Python that defines `pipeline`, or another name after a colon")
    verb.add_argument("--format", choices=["text", "json", "mermaid"], default="text", help="default: text")
    verb.add_argument("--parallelism", type=int, default=PARALLELISM, metavar="N", help=f"default: {PARALLELISM}")


def execute(arguments: argparse.Namespace, output: Console) -> int:
    """``--json`` is ``--format json`` on one line."""
    pipeline = load_for_spark(arguments.file)
    wanted = "json" if output.as_json else arguments.format
    plan = pipeline.explain(parallelism=arguments.parallelism, format=wanted)
    output.say(plan)
    if output.as_json:
        output.document(json.loads(plan))
    return 0

"""`rankwise weights`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rankwise.cli.options import parser_for, width
from rankwise.errors import UsageError

_EPILOG = """examples:
  rankwise weights inspect last.pt
  rankwise weights convert last.pt plain.safetensors
  rankwise weights convert last.pt mlp.pt2 --build my_models:build_mlp --example "float32[8,784]" --dynamic-batch"""


def main(argv: list[str]) -> int:
    parser = parser_for("weights", add_options)
    options = parser.parse_args(argv)
    if options.action is None:
        parser.print_help()
        return 2
    return int(options.action(options))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = _EPILOG, argparse.RawDescriptionHelpFormatter
    parser.set_defaults(action=None)
    actions = parser.add_subparsers(title="actions", metavar="inspect|convert")
    inspect = actions.add_parser("inspect", help="what is in a checkpoint: names, shapes, dtypes, sizes, prefixes, what it looks like")
    inspect.set_defaults(action=_inspect)
    inspect.add_argument("path", metavar="CHECKPOINT", help="a file or a folder")
    inspect.add_argument("--all", action="store_true", help="list every tensor, also where there are hundreds")
    inspect.add_argument("--verify", action="store_true", help="read the whole checkpoint and compare it with its checksums")
    inspect.add_argument("--json", action="store_true", help="print one JSON document")
    convert = actions.add_parser("convert", help="a DDP, compiled or sharded checkpoint to plain safetensors, or to a program (.pt2)")
    convert.set_defaults(action=_convert)
    _add_convert_options(convert)


def _add_convert_options(convert: argparse.ArgumentParser) -> None:
    convert.add_argument("path", metavar="CHECKPOINT", help="a file or a folder")
    convert.add_argument("output", metavar="OUTPUT", help="ends in .safetensors or .pt2")
    convert.add_argument("--key", metavar="KEY", help="which set of weights, where there are several: ema")
    convert.add_argument("--prefix", metavar="PREFIX", help="take only names that begin with this, and cut it off: model.")
    convert.add_argument("--dtype", metavar="DTYPE", help="convert floating-point weights to this dtype: bfloat16")
    convert.add_argument("--tensors-only", action="store_true", help="leave out objects that only running code could rebuild")
    convert.add_argument("--build", metavar="MODULE:CALLABLE", help="the function that makes the model (for .pt2, or to compare outputs)")
    convert.add_argument(
        "--example", metavar="DTYPE[SIZES]", action="append", default=[], help="an input: float32[8,784], or module:callable"
    )
    convert.add_argument("--dynamic-batch", action="store_true", help="the program takes any size of the first dimension")
    convert.add_argument("--tolerance", metavar="X", type=float, help="how far outputs may differ, relative to their size")
    convert.add_argument("--overwrite", action="store_true", help="replace OUTPUT if it is there")
    convert.add_argument("--json", action="store_true", help="print one JSON document")


def _inspect(options: argparse.Namespace) -> int:
    from rankwise.report.weights_text import weights_text
    from rankwise.weights.danger import refusal
    from rankwise.weights.inspecting import inspect_checkpoint

    facts = inspect_checkpoint(options.path)
    if options.verify:
        from rankwise.weights.loading import verify_checkpoint

        facts["verified_bytes"] = verify_checkpoint(options.path)
    if options.json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        print(weights_text(facts, show_all=options.all, width=width(sys.stdout, unknown=140)))
    if facts["would_run"]:
        raise refusal(Path(options.path), facts["format"], facts["would_run"], has_tensors=bool(facts["weights"]))
    return 0


def _convert(options: argparse.Namespace) -> int:
    from rankwise.report.weights_text import converted_text
    from rankwise.weights.tensor_records import ITEM_SIZES

    path, output = Path(options.path), Path(options.output)
    if output.suffix not in (".safetensors", ".pt2"):
        better = output.with_suffix(".safetensors") if output.name else "plain.safetensors"  # "." has no name
        raise UsageError(f"{output} ends neither in .safetensors nor in .pt2", next=(f"{better}",))
    if output.exists() and not options.overwrite:
        raise UsageError(f"{output} is already there", next=("give another name, or --overwrite",))
    if options.dtype is not None and not (options.dtype in ITEM_SIZES and options.dtype.startswith(("float", "bfloat"))):
        raise UsageError(f"--dtype {options.dtype} is not a floating-point dtype of torch", next=("--dtype bfloat16",))
    if not output.parent.is_dir():
        raise UsageError(f"there is no folder {output.parent}", next=(f"mkdir -p {output.parent}",))
    facts = _to_program(options, path, output) if output.suffix == ".pt2" else _to_safetensors(options, path, output)
    print(json.dumps(facts, indent=2, ensure_ascii=False) if options.json else converted_text(facts))
    return 0


def _to_safetensors(options: argparse.Namespace, path: Path, output: Path) -> dict[str, Any]:
    from rankwise.weights.converting import convert_to_safetensors

    facts: dict[str, Any] = {}

    def check(written: Path) -> None:
        if options.build and options.example:
            from rankwise.weights.exporting import compare_outputs

            same = options.build, options.example, path, written, options.key, options.prefix, options.tolerance
            facts["outputs"] = asdict(compare_outputs(*same))

    done = convert_to_safetensors(path, output, options.key, options.prefix, options.dtype, options.tensors_only, check)
    return asdict(done) | facts


def _to_program(options: argparse.Namespace, path: Path, output: Path) -> dict[str, Any]:
    if not options.build or not options.example:
        raise UsageError(
            "a program needs --build and --example",
            why="torch.export traces the model once, with an input",
            next=('--build my_models:build --example "float32[8,784]"',),
        )
    from rankwise.weights.building import build_model, example_inputs
    from rankwise.weights.exporting import export_program
    from rankwise.weights.loading import load_weights

    model = build_model(options.build)
    load_weights(model, path, key=options.key, prefix=options.prefix, dtype=options.dtype, tensors_only=options.tensors_only)
    inputs = example_inputs(options.example)
    return asdict(export_program(model, inputs, output, dynamic_batch=options.dynamic_batch, tolerance=options.tolerance))

"""`rankwise predict`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

from rankwise.cli.options import add_engine_options, number_or_auto, parsed, print_finding
from rankwise.errors import UsageError
from rankwise.offline import formats

_EPILOG = """examples:
  rankwise predict --build my_models:build --weights last.pt --input data.parquet --columns pixels --output out.parquet
  rankwise predict --build mlp.pt2 --input x.npy --output y.npy --workers 0
  rankwise predict --build my_models:build --weights last.pt --input x.npy --output y.npy --engine ray
  rankwise predict --build my_models:build --weights last.pt --input images/ --load my_data:load_image --output out.jsonl

Killed at any moment, the same command goes on where it was; rows that fail are listed in errors.jsonl beside the output.
exit code: 0 when every row is through (failed ones included); 1 when no row worked, the first rows all fail alike, or more
failed than --max-errors; 2 for wrong usage, or when it had to stop for another reason"""
_EVERY_S = 0.2
_TOO_MANY_FAIL = "RW833"


def main(argv: list[str]) -> int:
    options = parsed("predict", add_options, argv)
    from rankwise.offline.checking import Options
    from rankwise.offline.running import predict
    from rankwise.offline.workspace import PredictError

    shown = PredictProgress()
    try:
        with _prints_to_stderr() if options.json else nullcontext():
            done = predict(
                options.build,
                options.input,
                options.output,
                weights=options.weights,
                columns=_names("--columns", options.columns),
                keep=_names("--keep", options.keep),
                load=options.load,
                stack=not options.separate,
                device=options.device,
                options=Options(
                    workers=number_or_auto("--workers", options.workers, least=0),
                    batch=number_or_auto("--batch", options.batch, least=1),
                    max_errors=options.max_errors,
                    restart=options.restart,
                    overwrite=options.overwrite,
                    errors=options.errors,
                    engine=options.engine or "processes",
                    address=options.address,
                ),
                on_progress=shown.update,
            )
    except KeyboardInterrupt:
        shown.clear()
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except PredictError as error:
        if error.finding.code != _TOO_MANY_FAIL:
            raise
        shown.clear()
        print_finding(error.finding)
        return 1
    finally:
        shown.clear()
    print(json.dumps(asdict(done), indent=2) if options.json else _result_text(asdict(done)))
    if done.failed and done.failed == done.rows:
        _warn_of_nothing(done.failed, _first_error(done.errors))
        return 1
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = _EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--build", metavar="MODULE:CALLABLE", required=True, help="the function that makes the model, or a .pt2 program")
    parser.add_argument("--weights", metavar="CHECKPOINT", help="any checkpoint, one of a DDP training included")
    suffixes = " ".join(f".{name}" for name in formats.names() if name != "folder")
    parser.add_argument("--input", metavar="PATH", required=True, help=f"a file ({suffixes}), or a folder of files; also s3://…")
    parser.add_argument(
        "--output",
        metavar="PATH",
        required=True,
        help="a file of any of these formats; a path without a suffix is a folder with one file per row",
    )
    parser.add_argument(
        "--columns", metavar="A,B", default="", help="columns that are the model's inputs, by name or else in this order (default: all)"
    )
    parser.add_argument("--keep", metavar="A,B", default="", help="columns to carry over to the output")
    parser.add_argument(
        "--load", metavar="MODULE:CALLABLE", default="", help="function that reads one file of a folder: path in, array or tensor out"
    )
    parser.add_argument("--separate", action="store_true", help="pass each column of numbers as an input of its own, not all as one matrix")
    parser.add_argument("--device", metavar="DEVICE", default="auto", help="auto, cpu, cuda, cuda:1 (default: auto)")
    parser.add_argument("--workers", metavar="N", default="auto", help="worker processes; 0 runs the model in this process (default: auto)")
    add_engine_options(parser)
    parser.add_argument("--batch", metavar="N", default="auto", help="rows per batch (default: auto, found by trying)")
    parser.add_argument(
        "--max-errors",
        metavar="N",
        type=int,
        help="stop when more rows than this failed (default: when the first rows all fail alike)",
    )
    parser.add_argument("--errors", metavar="PATH", help="where failed rows are listed (default: errors.jsonl beside the output)")
    parser.add_argument("--restart", action="store_true", help="begin anew, without the results of an earlier run")
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it is there")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


@contextmanager
def _prints_to_stderr() -> Iterator[None]:
    """What a model prints, in workers too, would stand in the JSON."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


class PredictProgress:
    """One line on the terminal: rows, rows per second, time left. Nothing where stderr is not a terminal."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._first: tuple[float, int] | None = None
        self._last = 0.0

    def update(self, done: int, failed: int, total: int | None) -> None:
        now = time.monotonic()
        if not self._is_shown or now - self._last < _EVERY_S:
            return
        self._first, self._last = self._first or (now, done), now
        rate = (done - self._first[1]) / (now - self._first[0]) if now > self._first[0] else 0.0
        sys.stderr.write("\r\x1b[2K" + progress_text(done, failed, total, rate))
        sys.stderr.flush()

    def clear(self) -> None:
        if self._is_shown and self._last:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def progress_text(done: int, failed: int, total: int | None, rate: float) -> str:
    """`1,024 of 10,000 rows · 512 rows/s · 17.5 s left · 3 failed`."""
    from rankwise.report.safe_text import duration_text

    rows = f"{done:,} of {total:,} rows" if total is not None else f"{done:,} rows"
    left = f"{duration_text((total - done) / rate)} left" if total is not None and rate else ""
    facts = [rows, f"{rate:,.0f} rows/s" if rate else "", left]
    return " · ".join(fact for fact in (*facts, f"{failed:,} failed" if failed else "") if fact)


def _result_text(done: dict[str, Any]) -> str:
    from rankwise.report.safe_text import duration_text

    resumed = f", {done['resumed_rows']:,} of them by an earlier run" if done["resumed_rows"] else ""
    lines = [f"{done['output']}: {done['rows']:,} rows{resumed}, in batches of {done['batch']}, {duration_text(done['seconds'])}"]
    if done["rows"] and done["resumed_rows"] == done["rows"]:
        lines.append("no row was run now; if the code of the model has changed since, which is not looked at: --overwrite")
    if done["batch_why"] and done["rows"]:
        lines.append(f"batches of {done['batch']:,}: {done['batch_why']}")
    if done["failed"]:
        count = "1 row" if done["failed"] == 1 else f"{done['failed']:,} rows"
        lines.append(f"{count} failed; see {done['errors']}; {_first_error(done['errors'])}")
    return "\n".join(lines)


def _first_error(path: str | None) -> str:
    """The first failed row of the list, so that the list need not be opened to see what went wrong."""
    from rankwise.offline.addresses import path_or_address

    try:
        with path_or_address(str(path)).open("rb") as file:
            error = json.loads(file.readline())
        return f"row {error['row']:,}: {error['error']}: {str(error['message'])[:200]}"
    except (OSError, ValueError, KeyError):  # it was moved meanwhile, or is at an address
        return "it cannot be opened from here"


def _warn_of_nothing(failed: int, example: str) -> None:
    from rankwise.offline.workspace import PredictError

    steps = ("see what the model takes, and choose it with --columns a,b (and --separate)", "then the same command with --overwrite")
    print_finding(PredictError(_TOO_MANY_FAIL, f"none of the {failed:,} rows worked", why=example, next=steps).finding)


def _names(option: str, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if text and not names:
        raise UsageError(f"{option} takes names of columns, not {text!r}")
    return names

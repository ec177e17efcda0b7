"""`rankwise demo`."""

from __future__ import annotations

import argparse


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="rankwise demo")
    add_options(parser)
    parser.parse_args(argv)
    raise SystemExit("not yet")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "A two-rank training on the CPU that works, then the same with a real fault, then its verdict."

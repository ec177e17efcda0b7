"""The command line's options are a promise: one that comes or goes has to be changed here too, deliberately."""

from __future__ import annotations

import argparse

import pytest

from rankwise.cli.main import build_parser
from rankwise.launch.plan import OWN_FLAGS, OWN_OPTIONS, TORCHRUN_FLAGS, TORCHRUN_VALUES

TORCHRUN = TORCHRUN_VALUES.keys() | TORCHRUN_FLAGS.keys()
FROZEN = {
    "": {"--help", "--version"},
    "run": {"--help", "--out", "--stall-after", "--on-stall", "--audit", "--profile"},  # and torchrun's, which are torch's promise
    "check": {"--help", "--json", "--script", "--fit", "--checkpoints", "--only", "--wait", "--time-limit"},  # and torchrun's
    "explain": {"--help", "--json", "--list"},
    "predict": {
        "--help",
        "--build",
        "--weights",
        "--input",
        "--output",
        "--columns",
        "--keep",
        "--load",
        "--separate",
        "--device",
        "--workers",
        "--engine",
        "--address",
        "--batch",
        "--max-errors",
        "--errors",
        "--restart",
        "--overwrite",
        "--json",
    },
    "weights": {"--help"},
    "weights inspect": {"--help", "--all", "--verify", "--json"},
    "weights convert": {
        "--help",
        "--key",
        "--prefix",
        "--dtype",
        "--tensors-only",
        "--build",
        "--example",
        "--dynamic-batch",
        "--tolerance",
        "--overwrite",
        "--json",
    },
    "worker": {"--help", "--broker", "--engine", "--address", "--queue", "--results", "--keep", "--files", "--prefetch", "--drain"},
    "serve": {
        "--help",
        "--http",
        "--grpc",
        "--build",
        "--weights",
        "--name",
        "--input",
        "--max-batch",
        "--device",
        "--workers",
        "--engine",
        "--address",
        "--token-file",
        "--certificate",
        "--private-key",
        "--max-body",
        "--drain",
        "--front-ends",
        "--traces",
        "--quiet",
    },
    "top": {"--help", "--pid", "--interval", "--once", "--json"},
    "demo": {"--help"},
}


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings if option.startswith("--")}


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The main parser under an empty name, each command's, and each action's of a command that has some."""
    top = build_parser()
    commands = commands_of(top)
    actions = {f"{name} {action}": own for name, parser in commands.items() for action, own in commands_of(parser).items()}
    return {"": top, **commands, **actions}


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: own for choices in found for name, own in choices.items()}


def test_the_commands_are_the_frozen_ones() -> None:
    assert parsers().keys() == FROZEN.keys()


@pytest.mark.parametrize("command", FROZEN)
def test_the_options_are_the_frozen_ones(command: str) -> None:
    own = options_of(parsers()[command]) - (TORCHRUN if command in ("run", "check") else set())

    assert own == FROZEN[command]


def test_options_of_run_are_those_it_takes_apart() -> None:
    assert FROZEN["run"] == {"--help", *OWN_OPTIONS, *OWN_FLAGS}


def test_help_of_run_shows_every_torchrun_option() -> None:
    assert options_of(parsers()["run"]) >= TORCHRUN


def test_no_option_of_run_hides_one_of_torchrun() -> None:
    assert not (OWN_OPTIONS.keys() | OWN_FLAGS.keys()) & TORCHRUN


def test_every_torchrun_option_is_known_with_or_without_a_value() -> None:
    torchrun = pytest.importorskip("torch.distributed.run").get_args_parser()
    spelt = {action: {name.replace("_", "-") for name in action.option_strings if name.startswith("--")} for action in torchrun._actions}
    flags = {name for action, names in spelt.items() if action.nargs == 0 for name in names} - {"--help"}
    values = {name for action, names in spelt.items() if action.nargs != 0 for name in names}

    assert flags <= TORCHRUN_FLAGS.keys()
    assert values <= TORCHRUN_VALUES.keys()

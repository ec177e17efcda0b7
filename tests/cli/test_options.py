"""What the commands share: their parsers."""

from __future__ import annotations

import importlib

import pytest

from rankwise.cli.options import COMMANDS, parser_for


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_says_what_it_does_and_what_each_option_does(command: str) -> None:
    parser = parser_for(command, importlib.import_module(f"rankwise.cli.{command}").add_options)

    paragraphs = parser.format_help().split("\n\n")

    assert paragraphs[0].startswith(f"usage: rankwise {command}")
    assert paragraphs[1].strip().endswith(".")
    assert [action.dest for action in parser._actions if not action.help and action.option_strings] == []

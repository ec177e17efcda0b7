"""Every cause has a whole page, and a test that expects it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from rankwise.causes import Cause, all_causes
from rankwise.stages import STAGE_NAMED
from tests.house.imports import ROOT, SRC

CAUSES = all_causes()
CODES = {cause.code for cause in CAUSES}
SECTIONS = ["What it is", "Why it happens", "How to fix it", "Before", "After"]
NEEDS_NO_STORY = {"RW001", "RW002"}  # said by the command line, tested with it


def faults_of(cause: Cause) -> list[str]:
    """What a page lacks."""
    parts = re.split(r"^## (.+)$", cause.page, flags=re.MULTILINE)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    rules = {
        "an empty line follows the title": cause.page.splitlines()[1] == "",
        "the title is short, without a full stop": len(cause.title) <= 100 and not cause.title.endswith("."),
        "it has all sections, in order": [name for name in sections if name != "When to ignore it"] == SECTIONS,
        "nothing but 'When to ignore it' follows 'After'": list(sections)[-1] in ("After", "When to ignore it"),
        "no section is empty": all(body.strip() for body in sections.values()),
        "Before and After show code": all("```" in sections.get(name, "") for name in ("Before", "After")),
        "severity is known": cause.severity in ("error", "warning", "info"),
        "it says what to do, in steps of one line": bool(cause.next) and all(_is_step(step) for step in cause.next),
        "its stage is one of start-up's": not cause.stage or cause.stage in STAGE_NAMED,
        "what it echoes exists": set(cause.echo_of) <= CODES,
        "examples are valid Python": all(_is_python(block) for block in re.findall(r"```python\n(.*?)```", cause.page, re.DOTALL)),
    }
    return [f"{cause.code}: {rule}" for rule, is_kept in rules.items() if not is_kept]


def test_every_page_is_whole() -> None:
    assert [fault for cause in CAUSES for fault in faults_of(cause)] == []


def test_every_page_of_the_folder_is_a_cause_and_no_name_is_given_twice() -> None:
    files = {path.stem for path in (SRC / "causes").glob("*.md")}

    assert {f"{cause.code}-{cause.name}" for cause in CAUSES} == files
    assert len({cause.name for cause in CAUSES}) == len(CAUSES)


def test_every_cause_is_expected_by_some_test() -> None:
    told = (path for path in files_below(ROOT / "tests") if "house" not in path.relative_to(ROOT).parts)
    text = "".join(path.read_text() for path in told)
    # As a string of its own, which is how a code is expected; not somewhere in a comment.
    forgotten = [code for code in sorted(CODES - NEEDS_NO_STORY) if not re.search(rf"""["'\s=]{code}["'\s,:]""", text)]

    assert not forgotten, f"no test expects {', '.join(forgotten)}"


def test_codes_named_in_the_source_exist() -> None:
    for path in SRC.rglob("*.py"):
        named = set(re.findall(r"\bRW\d{3}\b", path.read_text()))
        assert named <= CODES, f"{path.relative_to(SRC)} names {sorted(named - CODES)}, which have no page"


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in {".py", ".toml", ".json", ".expected", ".txt"}]


def _is_step(step: str) -> bool:
    return step == step.strip() and not step.endswith(".") and "\n" not in step


def _is_python(block: str) -> bool:
    try:
        ast.parse(block)  # not compiled: an excerpt may hold a lone `continue` or `return`
    except SyntaxError:
        return False
    return True

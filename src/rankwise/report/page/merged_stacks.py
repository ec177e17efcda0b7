"""Merged stacks: ranks at the same place of the user's code together, the largest group first."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import groupby

from rankwise.evidence.frames import user_frames
from rankwise.evidence.records import Frame, Helper, RankEvidence, Stack
from rankwise.report.page.markup import Html, block, joined, tag
from rankwise.report.page.rank_text import RankRow, state_mark
from rankwise.report.page.reported_job import ReportedJob, main_stack, raised_last, user_stack
from rankwise.report.places import short_ranks

_MAX_GROUPS = 12
_MAX_FRAMES = 60
_MAX_HELPERS = 6


@dataclass(frozen=True)
class StackGroup:
    """Ranks with the same frames of the user's own code, shown through one of them."""

    ranks: tuple[int, ...]
    example: RankEvidence
    stack: Stack
    culprits: tuple[int, ...]
    is_outlier: bool


def stack_section(reported: ReportedJob, states: list[RankRow]) -> Html:
    groups = merge_stacks(reported)
    by_rank = {state.rank: state for state in states}
    cards = joined(_card(reported, group, by_rank[group.ranks[0]]) for group in groups[:_MAX_GROUPS])
    rest = [rank for group in groups[_MAX_GROUPS:] for rank in group.ranks]
    note = tag("p", f"and {len(rest):,} more ranks at {len(groups) - _MAX_GROUPS:,} other places: {short_ranks(rest)}", class_="note")
    return joined([tag("div", cards, class_="stacks"), note if rest else None])


def merge_stacks(reported: ReportedJob) -> list[StackGroup]:
    """The groups, largest first; where the page has no room for all, those with a culprit are kept."""
    merged: dict[Hashable, list[int]] = {}
    for rank, evidence in sorted(reported.job.ranks.items()):
        raised = raised_last(evidence)
        merged.setdefault((user_stack(main_stack(evidence)), raised.type if raised else ""), []).append(rank)
    ordered = sorted(merged.values(), key=lambda ranks: (-len(ranks), ranks[0]))
    groups = [_group(reported, ranks, len(ordered[0])) for ranks in ordered]
    late = [group for group in groups[_MAX_GROUPS:] if group.culprits][:_MAX_GROUPS]
    first = groups[: _MAX_GROUPS - len(late)] + late
    drawn = {group.ranks for group in first}
    return first + [group for group in groups if group.ranks not in drawn]


def _group(reported: ReportedJob, ranks: list[int], largest: int) -> StackGroup:
    example = reported.job.ranks[ranks[0]]
    is_outlier = len(ranks) * 2 < len(reported.job.ranks) and len(ranks) < largest
    return StackGroup(tuple(ranks), example, main_stack(example), tuple(sorted(reported.culprits.intersection(ranks))), is_outlier)


def _card(reported: ReportedJob, group: StackGroup, state: RankRow) -> Html:
    total = len(reported.job.ranks)
    is_guilty = group.culprits == group.ranks
    mark = (
        "culprit"
        if is_guilty
        else f"with the culprit, {short_ranks(group.culprits)}"
        if group.culprits
        else "outlier"
        if group.is_outlier
        else ""
    )
    head = tag(
        "header",
        tag("b", short_ranks(group.ranks)),
        tag("em", mark, class_="outlier" if group.is_outlier and not group.culprits else None) if mark else None,
        state_mark(state),
        tag("small", f"{len(group.ranks):,} of {total:,}"),
    )
    frames = joined(_frames(reported, group.stack)) if group.stack else tag("p", "no stack was seen", class_="faint")
    return tag("article", head, frames, _raised(group), _helpers(reported, group), class_="culprit" if is_guilty else None)


def _frames(reported: ReportedJob, stack: Stack) -> Iterator[Html]:
    """The frames, outermost first as Python prints them; consecutive library frames are folded."""
    shown = tuple(reversed(stack[:_MAX_FRAMES]))
    if len(stack) > _MAX_FRAMES:
        yield tag("p", f"{len(stack) - _MAX_FRAMES:,} outer frames left out", class_="faint")
    own = user_frames(stack)
    for is_own, run in groupby(shown, key=set(own).__contains__):
        frames = list(run)
        if is_own:
            yield from (_user_frame(reported, frame, is_here=frame is own[0]) for frame in frames)
        else:
            yield _library_frames(reported, frames)


def _user_frame(reported: ReportedJob, frame: Frame, *, is_here: bool) -> Html:
    code = reported.line_of(frame)
    return tag(
        "div",
        tag("code", reported.place(frame), title=frame.file),
        tag("pre", code) if code else None,
        class_="frame here" if is_here else "frame",
    )


def _library_frames(reported: ReportedJob, frames: list[Frame]) -> Html:
    package = reported.short(frames[0].file).lstrip("/").split("/")[0].removesuffix(".py")
    count = f"{len(frames)} frame{'s' * (len(frames) > 1)} inside {package}, down to {frames[-1].function}()"
    return tag(
        "details", tag("summary", count), *(tag("code", reported.place(frame), title=frame.file) for frame in frames), class_="library"
    )


def _raised(group: StackGroup) -> Html | None:
    if not group.example.raised:
        return None
    raised = group.example.raised[0]
    said = tag("p", tag("b", raised.type), f": {raised.message}" if raised.message else None, class_="raised")
    traceback = tag("details", tag("summary", f"traceback of rank {group.ranks[0]}"), tag("pre", block(raised.text), class_="code"))
    return joined([said, traceback if raised.text else None])


def _helpers(reported: ReportedJob, group: StackGroup) -> Html | None:
    """Processes of a culprit: where a DataLoader worker is often says why its rank does not move."""
    helpers = group.example.helpers[:_MAX_HELPERS] if group.culprits else ()
    return tag("div", *(_helper(reported, helper) for helper in helpers), class_="helpers") if helpers else None


def _helper(reported: ReportedJob, helper: Helper) -> Html:
    kind = "DataLoader worker" if helper.is_dataloader_worker else "child process"
    main = sorted(helper.threads, key=lambda thread: not thread.is_main)
    stack = main[0].frames if main else ()
    place = tag("code", reported.place(user_stack(stack)[0])) if stack else tag("span", helper.command, class_="faint")
    return tag("p", f"{kind} pid {helper.pid}: ", place)

"""Which hosts measure with each other, and that this tells a bad host from a bad link."""

from __future__ import annotations

import pytest

from rankwise.meet.links import Pair, blame
from rankwise.preflight.survey import rounds_for, second_look


@pytest.mark.parametrize("num", range(2, 9))
def test_few_hosts_measure_every_pair_once(num: int) -> None:
    names = [str(i) for i in range(num)]
    rounds = rounds_for(names)

    assert {frozenset(pair) for some in rounds for pair in some} == {frozenset((a, b)) for a in names for b in names if a != b}
    assert sum(map(len, rounds)) == num * (num - 1) // 2
    for some in rounds:
        members = [name for pair in some for name in pair]
        assert len(members) == len(set(members)), "nobody can measure twice at a time"


def test_many_hosts_are_told_apart_in_two_rounds_and_a_second_look() -> None:
    names = [f"{i:02}" for i in range(20)]
    sick = "07"

    def is_bad(pair: Pair) -> bool:
        return sick in pair or pair in (("00", "19"), ("19", "00"))  # a bad host, and one bad link

    pairs = [pair for some in rounds_for(names) for pair in some]
    more = second_look(names, [p for p in pairs if not is_bad(p)], [p for p in pairs if is_bad(p)])
    pairs += [pair for some in more for pair in some]
    guilty = blame([p for p in pairs if is_bad(p)], [p for p in pairs if not is_bad(p)])

    assert len(pairs) < 2 * len(names)
    assert guilty.nodes == (sick,)
    assert [set(link) for link in guilty.links] == [{"00", "19"}]

"""Whether a host or a link is to blame."""

from __future__ import annotations

from rankwise.meet.links import blame


def test_a_host_whose_links_are_all_bad_is_to_blame() -> None:
    guilty = blame([("a", "c"), ("b", "c")], [("a", "b")])

    assert (guilty.nodes, guilty.links, guilty.text()) == (("c",), (), "every link of c")


def test_a_single_bad_link_blames_no_host() -> None:
    guilty = blame([("a", "b")], [("a", "c"), ("b", "c")])

    assert (guilty.nodes, guilty.links) == ((), (("a", "b"),))
    assert guilty.hosts() == ["a", "b"]


def test_nobody_stands_out_where_everything_is_bad() -> None:
    assert blame([("a", "b"), ("a", "c"), ("b", "c")], []).is_everywhere

"""Learns the job's own pace: how long a job may normally stand still, when to look closer, and when to report a finding."""

from __future__ import annotations

from rankwise.launch.observe import Observer

_LEAST_STALL_S = 10.0
_STARTING_EVENTS = 50  # a rank's first collectives, forwards and batches wait for connections, kernels and compilers
_FIRST_LOOK_S = 1.2
_LONGEST_REST_S = 4.0


class Pace:
    """Takes in every look at the job; its answers are in seconds."""

    def __init__(self, stall_after_s: float | None) -> None:
        self._given = stall_after_s
        self._longest_gap_s = 0.0  # after the first steps
        self._longest_start_gap_s = 0.0  # in the first steps: a gap there comes only once, so a smaller multiple of it is a stall
        self._last_move_ns = 0
        self._moves: dict[int, int] = {}
        self._looked_ns = 0
        self._next_look_s = _FIRST_LOOK_S
        self._state: object = None
        self._proof: dict[int, int] = {}  # rank: its last progress, for ranks in a proven deadlock
        self._proof_ns = 0  # since when
        self._deep_ns = 0
        self._rated: tuple[int, dict[int, int]] = (0, {})
        self._last_rate = 0.0

    @property
    def stall_after_s(self) -> float:
        return self._given if self._given is not None else max(_LEAST_STALL_S, 5 * self._longest_gap_s, 1.5 * self._longest_start_gap_s)

    def note(self, observer: Observer) -> None:
        """Take in one look: only what rings and journals show is progress, not that a process is alive."""
        watched, heads = observer.watched(), observer.heads()
        for pid in watched:
            moved = observer.moved_ns.get(pid, 0)
            if moved > self._moves.get(pid, 0):
                before = self._moves.get(pid)
                if before and pid in observer.journals and observer.journals[pid].inits:
                    gap_s = min((moved - before) / 1e9, 600.0)
                    if heads.get(pid, 0) < _STARTING_EVENTS:
                        self._longest_start_gap_s = max(self._longest_start_gap_s, gap_s)
                    else:
                        self._longest_gap_s = max(self._longest_gap_s, gap_s)
                self._moves[pid] = moved
                self._last_move_ns = max(self._last_move_ns, moved)
        state = tuple(sorted((pid, observer.is_alive(pid)) for pid in watched))
        if state != self._state or self._last_move_ns > self._looked_ns:
            self._state = state
            self._next_look_s = _FIRST_LOOK_S

    def quiet_s(self, now_ns: int) -> float:
        """Seconds since any process of the job made progress."""
        return max(0.0, (now_ns - self._last_move_ns) / 1e9) if self._last_move_ns else 0.0

    def longest_wait_s(self, observer: Observer, now_ns: int) -> float:
        """Seconds since the slowest living rank made progress."""
        waits = [(now_ns - observer.moved_ns[pid]) / 1e9 for pid, j in observer.journals.items() if j.inits and observer.is_alive(pid)]
        return max(waits, default=0.0)

    def wanted_depth(self, observer: Observer, now_ns: int) -> str:
        """Whether to look closer now: "" no, "flight" at the recorders, "deep" at the stacks too."""
        slowest = max(self.longest_wait_s(observer, now_ns), self.quiet_s(now_ns) if observer.watched() else 0.0)
        if slowest < self._next_look_s:
            return ""
        since_look = (now_ns - self._looked_ns) / 1e9
        # At most 2 % of a rank's background thread; on a busy machine an answer takes longer without costing more.
        if since_look < max(1.0, min(50 * observer.flight_cost_s, _LONGEST_REST_S)):
            return ""
        self._looked_ns = now_ns
        self._next_look_s = min(slowest * 1.5 + 0.5, slowest + 10)
        near_stall = slowest > min(2.5, self.stall_after_s * 0.6)
        if near_stall and (now_ns - self._deep_ns) / 1e9 > 2.0:
            self._deep_ns = now_ns
            if slowest >= self.stall_after_s * 0.6:
                self._next_look_s = min(self._next_look_s, max(self.stall_after_s, slowest + 1.5))
            return "deep"
        return "flight"

    def is_confirmed(self, progress: dict[int, int], now_ns: int, seconds: float) -> bool:
        """Whether a deadlock was proven twice, `seconds` or more apart, for ranks that did not move in between.

        So a snapshot taken in the middle of a step is not mistaken for a deadlock. `progress` says when each rank last moved. The second
        proof may name another cause or line than the first.
        """
        if not self._proof_ns or any(self._proof.get(rank, moved_ns) != moved_ns for rank, moved_ns in progress.items()):
            self._proof, self._proof_ns = {}, now_ns
            self._looked_ns = now_ns - int(0.2e9)
        self._proof |= progress
        self._next_look_s = 0.0
        return (now_ns - self._proof_ns) / 1e9 >= seconds

    def forget_proof(self) -> None:
        """After a look that proves nothing, the next proof counts as a first one."""
        self._proof_ns = 0

    def have_all_moved_since(self, observer: Observer, then_ns: int) -> bool:
        """Whether every living rank has made progress since a moment."""
        moved = [observer.moved_ns.get(pid, 0) for pids in observer.rank_pids().values() for pid in pids if observer.is_alive(pid)]
        return bool(moved) and min(moved) > then_ns

    def status_line(self, observer: Observer, started_ns: int, now_ns: int, waiting: str, starting: str = "") -> str:
        """Time elapsed, ranks alive, calls per second or the finding of the last look; while the job starts, how far it is."""
        ranks = observer.rank_pids()
        alive = sum(any(observer.is_alive(pid) for pid in pids) for pids in ranks.values())
        elapsed = int((now_ns - started_ns) / 1e9)
        parts = [f"rankwise {elapsed // 60}:{elapsed % 60:02d}", f"{alive} of {len(ranks)} ranks alive" if ranks else "starting"]
        quiet = self.quiet_s(now_ns)
        if starting:
            parts[1:] = [starting]
        elif quiet < 2:
            parts.append(f"{self._rate(observer, now_ns):.0f} calls/s")
        else:
            parts.append(f"quiet for {quiet:.0f} s" + (f": {waiting}" if waiting else ""))
        return " · ".join(parts)

    def _rate(self, observer: Observer, now_ns: int) -> float:
        """Collectives, forwards, backwards and batches per second, of the busiest rank, since the last answer."""
        heads = observer.heads()
        then, before = self._rated
        if now_ns - then > 1e9:
            deltas = [head - before.get(pid, head) for pid, head in heads.items()]
            self._last_rate = max(deltas, default=0) / ((now_ns - then) / 1e9)
            self._rated = (now_ns, heads)
        return self._last_rate

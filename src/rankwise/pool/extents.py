"""Which pages of a piece of memory are free: first fit, lowest address first, so that warm pages are used again."""

from __future__ import annotations

from bisect import bisect_left

PAGE = 4096


def rounded(nbytes: int) -> int:
    """Whole pages, at least one."""
    return max(PAGE, -(-nbytes // PAGE) * PAGE)


class Extents:
    """Free ranges of [0, size), sorted, never touching each other. Sizes and offsets are multiples of the page."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free_bytes = size
        self._starts = [0]
        self._sizes = [size]

    def take(self, nbytes: int) -> int | None:
        """The offset of `nbytes` (whole pages) that were free, or None."""
        for i, size in enumerate(self._sizes):
            if size >= nbytes:
                start = self._starts[i]
                if size == nbytes:
                    del self._starts[i], self._sizes[i]
                else:
                    self._starts[i] += nbytes
                    self._sizes[i] -= nbytes
                self.free_bytes -= nbytes
                return start
        return None

    def give(self, start: int, nbytes: int) -> None:
        """Free what `take` gave; joins it with its neighbours."""
        i = bisect_left(self._starts, start)
        before = i > 0 and self._starts[i - 1] + self._sizes[i - 1]
        if (i > 0 and before > start) or (i < len(self._starts) and start + nbytes > self._starts[i]):
            raise ValueError(f"{nbytes} bytes at {start} are free already")
        self.free_bytes += nbytes
        joins_next = i < len(self._starts) and start + nbytes == self._starts[i]
        if i > 0 and before == start:
            self._sizes[i - 1] += nbytes
            if joins_next:
                self._sizes[i - 1] += self._sizes[i]
                del self._starts[i], self._sizes[i]
        elif joins_next:
            self._starts[i], self._sizes[i] = start, self._sizes[i] + nbytes
        else:
            self._starts.insert(i, start)
            self._sizes.insert(i, nbytes)

    @property
    def is_empty(self) -> bool:
        return self.free_bytes == self.size

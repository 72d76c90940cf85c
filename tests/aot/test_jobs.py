"""Compilers at once are bounded by cores and by memory."""

from __future__ import annotations

import threading

import pytest

from sparkforge.aot import jobs
from sparkforge.aot.jobs import GIB, SPARE


def queue(items, free, held=lambda: 0, **rest):
    return jobs.MemoryQueue(list(items), lambda item: item[1], free=lambda: free, held=held, **rest)


class Watch:
    """Counts what runs at once, and holds it until as many run as are expected."""

    def __init__(self, expected):
        self.lock, self.now, self.most, self.bytes = threading.Lock(), 0, 0, 0
        self.barrier = threading.Barrier(expected)

    def __call__(self, item):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.barrier.wait(10)
        with self.lock:
            self.now -= 1


def test_as_many_as_are_allowed_run_where_memory_is_there():
    watch = Watch(2)
    jobs.each(queue([(name, GIB) for name in "abcd"], 64 * GIB), watch, 2)
    assert watch.most == 2


def test_two_that_do_not_fit_together_run_one_after_the_other(monkeypatch):
    monkeypatch.setattr(jobs, "_LOOK_EVERY", 0.01)
    said, told, watch = [], threading.Event(), Watch(1)

    def waits(text):
        said.append(text)
        told.set()

    def work(item):
        watch(item)
        assert item[0] != "a" or told.wait(10)

    jobs.each(queue([(name, 9 * GIB) for name in "abc"], 15 * GIB, waits=waits), work, 2)
    assert watch.most == 1
    assert "9.0 GiB wanted, 6.0 GiB free" in said[0]


def test_a_light_one_runs_beside_a_heavy_one_although_it_stands_behind_another():
    one = queue([("heavy", 9 * GIB), ("also heavy", 9 * GIB), ("light", GIB)], 15 * GIB)
    assert one.take() == (("heavy", 9 * GIB), 9 * GIB)
    assert one.take() == (("light", GIB), GIB)


def test_what_runs_and_has_taken_its_memory_is_not_counted_twice():
    """9 of 24 GiB were promised and are taken, so free memory no longer holds them."""
    one = queue([("a", 9 * GIB), ("b", 9 * GIB)], 15 * GIB, held=lambda: 9 * GIB)
    assert one.take() is not None
    assert one.take() is not None


def test_something_is_kept_for_everything_else():
    enough = queue([("a", GIB), ("b", GIB)], 2 * GIB + SPARE)
    assert [enough.take(), enough.take()] != [None, None]
    short = queue([("a", GIB), ("b", GIB)], 2 * GIB + SPARE - 1)
    short.take()
    taker = threading.Thread(target=short.take, daemon=True)
    taker.start()
    taker.join(0.2)
    assert taker.is_alive()
    short.drop()
    taker.join(5)


def test_one_runs_however_little_there_is():
    done = []
    jobs.each(queue([("a", 9 * GIB)], 0), done.append, 2)
    assert done == [("a", 9 * GIB)]


def test_the_first_failure_ends_it():
    done = []

    def work(item):
        done.append(item)
        raise ValueError(item[0])

    with pytest.raises(ValueError, match="a"):
        jobs.each(queue([(name, GIB) for name in "abcdef"], 64 * GIB), work, 1)
    assert len(done) == 1


def test_memory_and_cores_are_read():
    assert jobs.available() > 0
    assert jobs.cores() >= 1
    assert jobs.taken() >= 0

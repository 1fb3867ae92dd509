"""A small model of a log that is trimmed: three processes that may stall between any two requests, explored to the last state.

It knows slots, takeovers, commits and bases, nothing else. A process lists slot by slot, reads entry by entry, puts and deletes
one object at a time, and any other may act in between. The first one leads; the others read the log, try to take over, and then
lead as well. It deletes whatever lies below the newest base at once: the code is slower, so what holds here holds there.

``Rules`` has one switch per clause; each switched off must lead to a violation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

SLOTS = 11


class Rules(NamedTuple):
    """The clauses of trimming, and how much may happen."""

    commits: int = 3
    bases: int = 1
    takeovers_stay: bool = True
    held_entries_stay: bool = True
    takeover_is_confirmed: bool = True
    confirmed_after_landing: bool = True
    ascending: bool = True
    looks_again: bool = True
    begins_at_the_newest_base: bool = True


class Takeover(NamedTuple):
    kind: str = "T"


class Commit(NamedTuple):
    number: int
    kind: str = "C"


class Base(NamedTuple):
    """All commits so far, and the slot of the one that is still needed."""

    commits: frozenset[int]
    held: int | None
    kind: str = "B"


Entry: TypeAlias = Takeover | Commit | Base


class Process(NamedTuple):
    """``phase`` says what the next step is; the rest is what it knows."""

    phase: str = "away"
    at: int = 0
    seen: tuple[int, ...] = ()
    got: tuple[tuple[int, Entry], ...] = ()
    promised: frozenset[int] = frozenset()
    commits: frozenset[int] = frozenset()
    held: int | None = None
    next: int = 0
    unanswered: int | None = None
    doomed: frozenset[int] = frozenset()
    crowded: bool = False


class State(NamedTuple):
    slots: tuple[Entry | None, ...]
    processes: tuple[Process, ...]
    acknowledged: frozenset[int] = frozenset()
    commits: int = 0
    bases: int = 0


class Violation(AssertionError):
    """What must never be."""


def first(processes: int = 3) -> State:
    slots: list[Entry | None] = [None] * SLOTS
    slots[0] = Takeover()
    return State(tuple(slots), (Process("leading", next=1), *(Process() for _ in range(processes - 1))))


class Model:
    """What can happen next in a state, under some rules."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, process in enumerate(state.processes):
            for name, after in self._of(state, number, process):
                self._check(after)
                yield f"{number} {name}", after

    def _check(self, state: State) -> None:
        newest = next((entry for entry in reversed(state.slots) if isinstance(entry, Base)), None)
        if newest is not None and newest.held is not None and not isinstance(state.slots[newest.held], Commit):
            raise Violation("a retained manifest is gone")

    def _of(self, state: State, number: int, process: Process) -> Iterator[tuple[str, State]]:
        def now(changed: Process, **world: object) -> State:
            processes = (*state.processes[:number], changed, *state.processes[number + 1 :])
            return state._replace(processes=processes, **world)  # type: ignore[arg-type]

        for slot in sorted(process.doomed):  # in any order
            gone = process._replace(doomed=process.doomed - {slot})
            yield f"deletes {slot}", now(gone, slots=_with(state.slots, slot, None))
        match process.phase:
            case "away":
                listing = Process("listing", self._start(), promised=state.acknowledged, doomed=process.doomed)
                yield "comes", now(listing)
            case "listing":
                yield "lists", now(self._listed(state, process, "reading"))
            case "reading":
                yield "reads", now(self._read(state, process))
            case "looking again":
                yield "looks again", now(self._look_again(state, process))
            case "taking over":
                yield "takes over", self._take_over(state, number, process, now)
            case "confirming":
                yield "confirms", now(self._confirm(state, process))
            case "leading":
                yield from self._lead(state, number, process, now)

    # -- reading

    def _start(self) -> int:
        return 0 if self.rules.ascending else SLOTS - 1

    def _listed(self, state: State, process: Process, then: str, above: int = -1) -> Process:
        """The listing moves on to the next object that is there now."""
        if not self.rules.ascending and process.at >= 0:  # one name after the other, there or not
            seen = (process.at,) if state.slots[process.at] is not None and process.at > above else ()
            return process._replace(at=process.at - 1, seen=(*process.seen, *seen))
        rest = range(process.at, SLOTS) if self.rules.ascending else range(0)
        found = next((slot for slot in rest if state.slots[slot] is not None and slot > above), None)
        if found is None:
            return process._replace(phase=then, at=-1, seen=tuple(sorted(process.seen)))
        return process._replace(at=found + 1, seen=(*process.seen, found))

    def _read(self, state: State, process: Process) -> Process:
        """Backwards from the newest slot to a base, then what that one names."""
        wanted = self._wanted(process)
        if wanted is None:
            return process._replace(phase="looking again", at=self._start())
        entry = state.slots[wanted]
        if entry is None:  # it was trimmed: begin again
            return Process("away", doomed=process.doomed)
        return process._replace(got=(*process.got, (wanted, entry)))

    def _wanted(self, process: Process) -> int | None:
        got = dict(process.got)
        bases = [slot for slot, entry in process.got if isinstance(entry, Base)]
        for slot in reversed(process.seen):
            if bases and self.rules.begins_at_the_newest_base:
                break
            if slot not in got:
                return slot
        base = got[self._base(bases)] if bases else None
        held = base.held if isinstance(base, Base) else None
        return held if held is not None and held in process.seen and held not in got else None

    def _base(self, bases: list[int]) -> int:
        return max(bases) if self.rules.begins_at_the_newest_base else min(bases)

    def _look_again(self, state: State, process: Process) -> Process:
        """A slot that was trimmed may be filled again, by a takeover that does not count. Then a newer base is there."""
        newest = process.seen[-1]
        if self.rules.looks_again and any(entry is not None for entry in state.slots[newest + 1 :]):
            return Process("away", doomed=process.doomed)
        return self._understood(process)

    def _understood(self, process: Process) -> Process:
        got = dict(process.got)
        bases = [slot for slot, entry in got.items() if isinstance(entry, Base)]
        start = self._base(bases) if bases else 0
        later = sorted(slot for slot in got if slot >= start)
        whole = later == list(range(start, start + len(later)))
        base = got.get(start)
        lost = isinstance(base, Base) and base.held is not None and base.held not in got
        if (not whole or lost) and self.rules.begins_at_the_newest_base:
            return Process("away", doomed=process.doomed)
        view = Process("taking over", next=later[-1] + 1, doomed=process.doomed, crowded=False)
        for slot in later:
            if slot == start or not isinstance(got[slot], Base):
                view = _applied(view, slot, got[slot])
        if not process.promised <= view.commits:
            raise Violation("an acknowledged commit is missing from a reader's view")
        return view

    # -- leading

    def _take_over(self, state: State, number: int, process: Process, now) -> State:  # type: ignore[no-untyped-def]
        slot = process.next
        found = state.slots[slot]
        if found is not None:
            return now(Process("away", doomed=process.doomed))  # type: ignore[no-any-return]
        phase = "confirming" if self.rules.takeover_is_confirmed else "leading"
        early = not self.rules.confirmed_after_landing
        landed = process._replace(phase=phase, at=self._start(), seen=(), next=slot + 1, crowded=early)
        return now(landed, slots=_with(state.slots, slot, Takeover()))  # type: ignore[no-any-return]

    def _confirm(self, state: State, process: Process) -> Process:
        if process.crowded:  # the mutant: it looked before its takeover landed, and saw nothing
            return self._leader(state, process._replace(crowded=False))
        looked = self._listed(state, process, "confirmed", above=process.next - 1)
        if looked.phase != "confirmed":
            return looked
        return Process("left", doomed=process.doomed) if looked.seen else self._leader(state, looked)

    def _leader(self, state: State, process: Process) -> Process:
        if not state.acknowledged <= process.commits:
            raise Violation("a leader does not know an acknowledged commit")
        return process._replace(phase="leading", at=0, seen=())

    def _lead(self, state: State, number: int, process: Process, now) -> Iterator[tuple[str, State]]:  # type: ignore[no-untyped-def]
        slot = process.next
        if slot >= SLOTS - 1:
            return
        if process.unanswered is not None:
            yield "puts again", self._put_again(state, process, now)
            return
        if state.commits < self.rules.commits:
            yield from self._commit(state, process, now)
        if state.bases < self.rules.bases and process.commits:
            yield "puts a base", self._put_base(state, process, now)

    def _commit(self, state: State, process: Process, now) -> Iterator[tuple[str, State]]:  # type: ignore[no-untyped-def]
        slot, number = process.next, state.commits + 1
        if state.slots[slot] is not None:
            yield "is deposed", now(Process("left", doomed=process.doomed))
            return
        if not state.acknowledged <= process.commits:
            raise Violation("a second history: a commit does not build on an acknowledged one")
        slots, spent = _with(state.slots, slot, Commit(number)), {"commits": number}
        done = _applied(process, slot, Commit(number))._replace(next=slot + 1)
        yield "commits", now(done, slots=slots, acknowledged=state.acknowledged | {number}, **spent)
        yield "commits, unanswered", now(process._replace(unanswered=number), slots=slots, **spent)

    def _put_again(self, state: State, process: Process, now) -> State:  # type: ignore[no-untyped-def]
        """The put landed and its answer was lost: the same bytes once more."""
        assert process.unanswered is not None
        slot, entry = process.next, Commit(process.unanswered)
        found = state.slots[slot]
        if found not in (None, entry):
            return now(Process("left", doomed=process.doomed))  # type: ignore[no-any-return]
        done = _applied(process, slot, entry)._replace(next=slot + 1, unanswered=None)
        acknowledged = state.acknowledged | {entry.number}
        return now(done, slots=_with(state.slots, slot, entry), acknowledged=acknowledged)  # type: ignore[no-any-return]

    def _put_base(self, state: State, process: Process, now) -> State:  # type: ignore[no-untyped-def]
        slot = process.next
        if state.slots[slot] is not None:
            return now(Process("left", doomed=process.doomed))  # type: ignore[no-any-return]
        base = Base(process.commits, process.held)
        doomed = frozenset(each for each in range(slot) if self._may_go(state, each, base))
        done = process._replace(next=slot + 1, doomed=process.doomed | doomed)
        return now(done, slots=_with(state.slots, slot, base), bases=state.bases + 1)  # type: ignore[no-any-return]

    def _may_go(self, state: State, slot: int, base: Base) -> bool:
        entry = state.slots[slot]
        if entry is None or (isinstance(entry, Takeover) and self.rules.takeovers_stay):
            return False
        return slot != base.held or not self.rules.held_entries_stay


def _applied(process: Process, slot: int, entry: Entry) -> Process:
    match entry:
        case Commit(number, _):
            return process._replace(commits=process.commits | {number}, held=slot)
        case Base(commits, held, _):
            return process._replace(commits=commits, held=held)
        case _:
            return process


def _with(slots: tuple[Entry | None, ...], slot: int, entry: Entry | None) -> tuple[Entry | None, ...]:
    return (*slots[:slot], entry, *slots[slot + 1 :])


def explore(rules: Rules, processes: int = 3, states_max: int = 2_000_000) -> int:
    """Visit every state that can be reached; how many there are. A violation is raised with the steps that lead to it.

    Processes are alike, so states that differ only in who is who count once.
    """
    model, start = Model(rules), first(processes)
    came: dict[Any, tuple[Any, str] | None] = {_key(start): None}
    frontier = [start]
    while frontier:
        following = []
        for state in frontier:
            try:
                for name, after in model.steps(state):
                    if (key := _key(after)) not in came:
                        came[key] = (_key(state), name)
                        following.append(after)
            except Violation as violation:
                raise Violation(f"{violation}: {'; '.join(_story(came, _key(state)))}") from None
        assert len(came) < states_max, "too many states"
        frontier = following
    return len(came)


def _key(state: State) -> Any:
    return state._replace(processes=tuple(sorted(state.processes, key=hash)))


def _story(came: dict[Any, tuple[Any, str] | None], key: Any) -> list[str]:
    steps: list[str] = []
    while (before := came[key]) is not None:
        key, name = before
        steps.append(name)
    return steps[::-1]

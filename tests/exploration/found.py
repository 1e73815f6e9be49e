"""Cases in which an engine broke a promise, made small by `python -m tests.exploration --shrink SEED`."""

from __future__ import annotations

from tests.exploration.lives import LifePlan
from tests.exploration.programs import Node
from tests.exploration.trials import Case

FOUND: dict[str, Case] = {
    "a cancelled run whose end was not saved is cancelled": Case(
        seed="89",
        program=Node(kind="step of", name="so14", parts=(Node(kind="bug", name="b10"),), count=1),
        lives=(LifePlan(seed="89 whole", suspend_after=5, grace=0.5),),
        cancel_at=3.0,
    ),
    "a publication before a finalizer in a step with a timeout": Case(
        seed="105.5",
        program=Node(
            kind="limited step of",
            name="lso4",
            parts=(
                Node(
                    kind="race",
                    name="r3",
                    parts=(
                        Node(
                            kind="finally step",
                            name="fs2",
                            parts=(Node(kind="publish", name="p1"),),
                        ),
                    ),
                ),
            ),
            seconds=1,
        ),
        lives=(LifePlan(seed="105.5 last", grace=0.5),),
    ),
    "a message after the handled failure of a step with retries": Case(
        seed="129",
        program=Node(
            kind="try",
            name="t4",
            parts=(
                Node(
                    kind="step of",
                    name="so2",
                    parts=(Node(kind="failing step", name="fs1"),),
                    count=2,
                ),
                Node(kind="receive", name="r3", how="b"),
            ),
        ),
        lives=(LifePlan(seed="129 whole", suspend_after=5, grace=0.5),),
    ),
    "a sleep that ended before a new deadline": Case(
        seed="176",
        program=Node(
            kind="seq",
            name="s7",
            parts=(
                Node(kind="local", name="l3"),
                Node(
                    kind="timeout",
                    name="t6",
                    parts=(Node(kind="sleep", name="s5", seconds=7),),
                    seconds=4,
                ),
            ),
        ),
        lives=(LifePlan(seed="176 whole", suspend_after=1, grace=10),),
    ),
    "local code that ended before a deadline": Case(
        seed="199.1",
        program=Node(
            kind="timeout", name="t8", parts=(Node(kind="local", name="l7"),), seconds=0.5
        ),
        lives=(LifePlan(seed="199.1 last", suspend_after=1, grace=0.5),),
    ),
    "a fragile step that is stopped": Case(
        seed="269.2",
        program=Node(kind="fragile step", name="fs1"),
        lives=(
            LifePlan(seed="269.2 2", stops_at=1, grace=0.5, is_slow=True),
            LifePlan(seed="269.2 last", suspend_after=5, grace=10),
        ),
    ),
    "a fragile step that is too late": Case(
        seed="17",
        program=Node(
            kind="timeout", name="t13", parts=(Node(kind="fragile step", name="fs11"),), seconds=0.5
        ),
        lives=(LifePlan(seed="17 whole"),),
    ),
    "a saga that had succeeded when the run was cancelled": Case(
        seed="203.2",
        program=Node(
            kind="par_all",
            name="p18",
            parts=(
                Node(kind="saga", name="s4", parts=(Node(kind="book", name="b2"),), how="par"),
                Node(kind="receive", name="r16", how="a"),
            ),
        ),
        lives=(
            LifePlan(seed="203.2 6", dies_after=3, suspend_after=1),
            LifePlan(seed="203.2 last", suspend_after=1, grace=10),
        ),
        cancel_at=8.0,
    ),
    "a release in a step that lost a race, and a stop": Case(
        seed="591.1",
        program=Node(
            kind="race",
            name="r14",
            parts=(
                Node(kind="bracket", name="b5", parts=(Node(kind="step", name="so4"),)),
                Node(
                    kind="step of",
                    name="so13",
                    parts=(
                        Node(
                            kind="bracket",
                            name="b11",
                            parts=(Node(kind="retried step", name="rs10", count=2),),
                        ),
                    ),
                    count=1,
                ),
            ),
        ),
        lives=(
            LifePlan(seed="591.1 1", stops_at=1, grace=0.5),
            LifePlan(seed="591.1 3", stops_at=1, suspend_after=1),
            LifePlan(seed="591.1 last", suspend_after=1, grace=10, is_slow=True),
        ),
    ),
    "a release in a step that lost a race, and a crash": Case(
        seed="1594.15",
        program=Node(
            kind="race",
            name="r15",
            parts=(
                Node(
                    kind="step of",
                    name="so3",
                    parts=(
                        Node(kind="bracket", name="b2", parts=(Node(kind="local", name="fl1"),)),
                    ),
                    count=2,
                ),
                Node(kind="timed bracket", name="tb5", parts=(Node(kind="local", name="rs4"),)),
            ),
        ),
        lives=(
            LifePlan(seed="1594.15 0", stops_at=1),
            LifePlan(seed="1594.15 1", stops_at=2.5, suspend_after=1, grace=0.5, is_slow=True),
            LifePlan(seed="1594.15 last", suspend_after=5, grace=0.5),
        ),
    ),
    "a message after a race that cancelled a step with retries": Case(
        seed="2694.8",
        program=Node(
            kind="seq",
            name="s25",
            parts=(
                Node(
                    kind="race",
                    name="r21",
                    parts=(
                        Node(kind="local", name="ss7"),
                        Node(
                            kind="step of",
                            name="so17",
                            parts=(Node(kind="retried step", name="rs16", count=3),),
                            count=2,
                        ),
                    ),
                ),
                Node(kind="receive", name="r22", how="a"),
            ),
        ),
        lives=(LifePlan(seed="2694.8 last"),),
    ),
    "a message after a race that was tried again": Case(
        seed="2451.1",
        program=Node(
            kind="chain",
            name="c11",
            parts=(
                Node(
                    kind="race",
                    name="r9",
                    parts=(
                        Node(
                            kind="seq",
                            name="s4",
                            parts=(
                                Node(kind="local", name="l1"),
                                Node(kind="failing step", name="fs3"),
                            ),
                        ),
                        Node(kind="stubborn step", name="ss7"),
                    ),
                ),
                Node(kind="receive", name="r10", how="a"),
            ),
        ),
        lives=(LifePlan(seed="2451.1 last"),),
    ),
    "which of two failures came first": Case(
        seed="4234.2",
        program=Node(
            kind="par",
            name="p10",
            parts=(
                Node(
                    kind="par_all",
                    name="p3",
                    parts=(Node(kind="local", name="s1"), Node(kind="failing local", name="fl2")),
                ),
                Node(kind="bracket", name="b5", parts=(Node(kind="failing local", name="fl4"),)),
            ),
        ),
        lives=(LifePlan(seed="4234.2 last", suspend_after=5),),
    ),
    "a release after a race that was decided, and a stop": Case(
        seed="4558.6",
        program=Node(
            kind="first_success",
            name="f12",
            parts=(
                Node(kind="mixed bracket", name="mb8", parts=(Node(kind="local", name="ss7"),)),
                Node(kind="step", name="ss9"),
            ),
        ),
        lives=(
            LifePlan(seed="4558.6 first", dies_after=4, grace=10),
            LifePlan(seed="4558.6 0", stops_at=0.3, suspend_after=1, grace=0.5),
            LifePlan(seed="4558.6 last", grace=10),
        ),
    ),
    "an item that had not begun when another one failed": Case(
        seed="4602.7",
        program=Node(
            kind="traverse",
            name="t16",
            parts=(
                Node(kind="stubborn step", name="ss2"),
                Node(
                    kind="seq",
                    name="s7",
                    parts=(Node(kind="bracket", name="b6", parts=(Node(kind="bug", name="b5"),)),),
                ),
                Node(
                    kind="local bracket",
                    name="lb12",
                    parts=(Node(kind="stubborn step", name="ss8"),),
                ),
            ),
            count=2,
            how="list",
            is_patient=True,
        ),
        lives=(
            LifePlan(
                seed="4602.7 first",
                by="worker",
                dies_after=7,
                is_native=True,
                suspend_after=1,
                is_slow=True,
            ),
            LifePlan(seed="4602.7 last", by="worker", pause=5, is_native=True, is_slow=True),
        ),
    ),
    "two releases after a race that was decided, and a stop": Case(
        seed="4666.11",
        program=Node(
            kind="first_success",
            name="f18",
            parts=(
                Node(
                    kind="par_all",
                    name="p4",
                    parts=(
                        Node(
                            kind="mixed bracket", name="mb2", parts=(Node(kind="local", name="s1"),)
                        ),
                    ),
                ),
                Node(kind="mixed bracket", name="mb7", parts=(Node(kind="local", name="s6"),)),
                Node(kind="local", name="s17"),
            ),
        ),
        lives=(
            LifePlan(seed="4666.11 first", dies_after=6, suspend_after=1, grace=10),
            LifePlan(
                seed="4666.11 1",
                pause=5,
                stops_at=1,
                is_native=True,
                suspend_after=5,
                grace=0.5,
                is_slow=True,
            ),
            LifePlan(seed="4666.11 last", pause=5, is_native=True, suspend_after=1, is_slow=True),
        ),
    ),
    "an undo after a race that was decided, and a stop": Case(
        seed="125.3",
        program=Node(
            kind="first_success",
            name="f23",
            parts=(
                Node(
                    kind="saga",
                    name="s18",
                    parts=(Node(kind="book", name="b17"), Node(kind="book", name="b16")),
                    how="seq",
                ),
                Node(kind="step", name="s19"),
            ),
        ),
        lives=(
            LifePlan(seed="125.3 4", stops_at=1, is_slow=True),
            LifePlan(seed="125.3 6", stops_at=0.3, suspend_after=1, grace=0.5),
            LifePlan(seed="125.3 last", suspend_after=1, grace=0.5),
        ),
    ),
    "a release in a step of a cancelled run": Case(
        seed="124.5",
        program=Node(
            kind="step of",
            name="so6",
            parts=(
                Node(
                    kind="timed bracket",
                    name="tb2",
                    parts=(Node(kind="failing local", name="fl1"),),
                ),
            ),
            count=2,
        ),
        lives=(
            LifePlan(seed="124.5 first", dies_after=5, suspend_after=5, is_slow=True),
            LifePlan(seed="124.5 0", by="worker", pause=5, stops_at=2.5, grace=10, is_slow=True),
            LifePlan(seed="124.5 last", suspend_after=1, grace=10),
        ),
        cancel_at=8.0,
    ),
    "a handled failure before local code": Case(
        seed="634",
        program=Node("try", "t19", (Node("failing step", "fs17"), Node("local", "l18"))),
        lives=(LifePlan("634"),),
    ),
    "local code that ended early in a replay lets nothing begin early": Case(
        seed="1036.3",
        program=Node(
            kind="race",
            name="r15",
            parts=(
                Node(kind="mixed bracket", name="mb3", parts=(Node(kind="local", name="fs1"),)),
                Node(
                    kind="traverse",
                    name="t14",
                    parts=(
                        Node(kind="local", name="l4"),
                        Node(kind="par", name="p7", parts=(Node(kind="step", name="ss5"),)),
                        Node(kind="local", name="l11"),
                    ),
                    count=2,
                    how="async",
                    is_patient=True,
                ),
            ),
        ),
        lives=(
            LifePlan(seed="1036.3 first", dies_after=3, grace=0.5, is_slow=True),
            LifePlan(seed="1036.3 0", dies_at=0.7, suspend_after=1),
            LifePlan(seed="1036.3 last", grace=10),
        ),
        cancel_at=1.0,
    ),
    "a timeout that fires as its work ends leaves nothing to take": Case(
        seed="5405.5",
        program=Node(
            kind="seq",
            name="s25",
            parts=(
                Node(
                    kind="chain",
                    name="c14",
                    parts=(
                        Node(
                            kind="timeout",
                            name="t5",
                            parts=(
                                Node(
                                    kind="first_success",
                                    name="f4",
                                    parts=(
                                        Node(kind="local", name="l1"),
                                        Node(kind="value", name="v2", how="now"),
                                    ),
                                ),
                            ),
                            seconds=0.5,
                        ),
                        Node(
                            kind="timeout",
                            name="t8",
                            parts=(
                                Node(
                                    kind="finally",
                                    name="f7",
                                    parts=(Node(kind="value", name="v6", how="random"),),
                                ),
                            ),
                            seconds=1,
                        ),
                    ),
                ),
                Node(
                    kind="call",
                    name="c23",
                    parts=(Node(kind="inner receive", name="ir21", how="b"),),
                ),
            ),
        ),
        lives=(LifePlan(seed="5405.5 last", suspend_after=5, grace=0.5),),
        cancel_at=8.0,
    ),
    "a corrected bug had cut local code off before the process died": Case(
        seed="5476.7",
        program=Node(
            kind="traverse",
            name="t19",
            parts=(
                Node(kind="timed bracket", name="tb6", parts=(Node(kind="local", name="fs5"),)),
                Node(
                    kind="traverse",
                    name="t18",
                    parts=(Node(kind="bug", name="b15"), Node(kind="local", name="r17")),
                    count=2,
                    how="async",
                    is_patient=True,
                ),
            ),
            count=2,
            how="async",
        ),
        lives=(LifePlan(seed="5476.7 last", suspend_after=1),),
    ),
}

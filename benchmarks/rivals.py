"""Five limits on a call, by this engine and by two other packages, on the same Redis and in turns.

    pip install limits tokencap
    python benchmarks/rivals.py [--short]

Server and client are on different cores. Before a call each asks five limits whether there is room and takes what the
call may use; after it, each books what it did use. How many trips that takes is how the package works: ``limits`` has
one for each limit before a call, and nothing that puts the truth in the place of an estimate, so its row is the half
before; ``tokencap`` adds what was used to its counters in one script, and reads five limits one by one. Neither keeps
holds, so that what a crash leaves behind stays taken, and neither gives back what was estimated too high. A package
that is not installed is left out.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack

from figures import Figure, closed, options
from pairs import bare_evalsha, client_of, engine_on, pair
from rounds import Operation, alternate, ratio
from speed import BARE, USERS, beside, pin, servers

from llm_budget_hooks.testing import available_servers

FIVE = 5


def main() -> int:
    """Measure all that are here, in turns."""
    given = options(__doc__).parse_args()
    with ExitStack() as stack:
        pin(0)
        server = next(servers(stack, [*available_servers()][:1]))
        client = client_of(server.url)
        stack.callback(client.close)
        engine = stack.enter_context(engine_on(server.url))
        ways = {"llm_budget_hooks, reserve + settle": pair(engine, USERS), **dict(others(server.url))}
        operations = [(bare_evalsha(client), 6), *((each, 2) for each in ways.values())]
        bare, *timed = alternate(operations, rounds=100, repeats=2 if given.short else 5)
    found = [
        Figure("rivals", f"{name}: {mine.us:,.0f} µs", ratio(mine, bare), "x", beside(BARE, bare))
        for name, mine in zip(ways, timed, strict=True)
    ]
    return closed(found, "Five limits on one call", given.json)


def others(url: str) -> Iterator[tuple[str, Operation]]:
    """The packages that are installed."""
    if importlib.util.find_spec("limits"):
        yield "limits, 5 hits before the call", hits(url)
    else:
        print("limits is not installed: pip install limits", file=sys.stderr)
    if importlib.util.find_spec("tokencap"):
        yield "tokencap, check and increment", increments(url)
    else:
        print("tokencap is not installed: pip install tokencap", file=sys.stderr)


def users() -> Iterator[int]:
    chance = random.Random(1)
    return itertools.cycle([chance.randrange(USERS) for _ in range(10_000)])


def hits(url: str) -> Operation:
    """Five limits of the package ``limits``, each of a window of a day."""
    from limits import RateLimitItemPerDay
    from limits.storage import storage_from_string
    from limits.strategies import FixedWindowRateLimiter

    limiter, order = FixedWindowRateLimiter(storage_from_string(url)), users()
    items = [RateLimitItemPerDay(10**12, namespace=f"limit-{at}") for at in range(FIVE)]

    def take() -> None:
        user = f"user-{next(order)}"
        for item in items:
            assert limiter.hit(item, user, cost=1_500)

    return take


def increments(url: str) -> Operation:
    """Five dimensions of the package ``tokencap``."""
    from tokencap.backends.redis import RedisBackend
    from tokencap.core.types import BudgetKey

    backend, order = RedisBackend(url), users()
    keys = [
        [BudgetKey(dimension=f"limit-{at}", identifier=f"user-{user}") for at in range(FIVE)] for user in range(USERS)
    ]
    for each in itertools.chain(*keys):
        backend.set_limit(each, 10**12)

    def take() -> None:
        mine = keys[next(order)]
        assert backend.check_and_increment(mine, 1_000).allowed
        backend.force_increment(mine, 500)

    return take


if __name__ == "__main__":
    sys.exit(main())

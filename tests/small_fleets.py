"""Sorts of servers and machines at random, small enough to try all choices."""

from __future__ import annotations

import random

from autolayers.planner.compare.fleet.assign import Sort


def fleet(
    seed: int, kinds: int, models: int, gpus: int
) -> tuple[list[Sort], list[int], list[float]]:
    """Machines of which the faster ones serve more users, models of which the larger ones have
    fewer, some on two GPUs only, some that share one, one on two machines."""
    chance = random.Random(seed)
    room = [chance.randint(1, gpus) for _ in range(kinds)]
    weights = [chance.choice((1, 1, 2, 5)) for _ in range(models)]
    sorts = []
    for kind in range(kinds):
        speed = chance.uniform(4, 30)
        for model in range(models):
            users = int(speed * chance.uniform(0.2, 2))
            if users and chance.random() < 0.8:
                sorts.append(Sort(((kind, 1),), ((model, users),)))
            elif room[kind] > 1:
                sorts.append(Sort(((kind, 2),), ((model, users + 1),)))
        if models > 1 and chance.random() < 0.5:
            sorts.append(Sort(((kind, 1),), ((0, int(speed / 3) + 1), (1, int(speed / 4) + 1))))
    if kinds > 1:
        sorts.append(Sort(((0, 1), (1, 1)), ((models - 1, 4),)))
    sorts += [
        Sort(((0, 1),), ((model, 2),))
        for model in range(models)
        if all(model != each for sort in sorts for each, _ in sort.serves)
    ]
    return sorts, room, [weight / sum(weights) for weight in weights]


def taken(sorts: list[Sort], counts: tuple[int, ...], room: list[int]) -> list[int]:
    used = [0] * len(room)
    for sort, count in zip(sorts, counts, strict=True):
        for kind, gpus in sort.takes:
            used[kind] += gpus * count
    return used

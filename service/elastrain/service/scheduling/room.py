"""What is left of the nodes and of the quotas, while workers are handed out.

Two pools, `NOW` and `SOON`. NOW lacks all that is occupied, also by workers that were told to go. SOON lacks
what stays, and what is kept for jobs that cannot start yet. Whoever starts takes from both, so what somebody
still holds is never given away, and what is kept for one job is not taken by another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from elastrain.service.scheduling.asks import Ask, Node, Policy, Resources, Stage
from elastrain.service.scheduling.usage import EPSILON, Usage, beside, count, share_of

NOW, SOON = 0, 1
Shape = tuple[tuple[str, float], ...]  # of a group
BOTH = (NOW, SOON)
NOWHERE = -1  # the place of a group that no node has room for, for instance since its node was lost
Retinue = list[tuple[Resources, int]]  # a job's driver and servers, which stay while it runs: (what, where)


class Room:
    """Nodes are named by their index. Groups of a job are listed in the order in which they would stay."""

    def __init__(self, nodes: Sequence[Node], policy: Policy, asks: Sequence[Ask]) -> None:
        self.nodes = nodes
        self.driver = policy.driver
        self._some_new = any(node.new for node in nodes)
        # others may leave: what they use is not there now, and is when it is asked what could ever run
        self.whole = [dict(node.resources) for node in nodes]
        left = [{n: a - node.others.get(n, 0.0) for n, a in node.resources.items()} for node in nodes]
        self.left = (left, [dict(node) for node in left])
        self.total: defaultdict[str, float] = defaultdict(float)
        for node in nodes:
            for name, amount in node.resources.items():
                self.total[name] += amount
        self._policy = policy
        self._index = {node.id: at for at, node in enumerate(nodes)}
        self._used: tuple[Usage, Usage] = (Usage(), Usage())
        # how many such groups each node holds, kept up to date: (group, pools) -> by node
        self._counts: dict[tuple[Shape, tuple[int, ...]], list[int]] = {}
        # and how many it would hold if it were empty: group -> by node
        self._whole_counts: dict[Shape, list[int]] = {}
        self.groups: dict[str, list[int]] = {}  # job -> where its groups are that stay
        self._retinues: dict[str, Retinue] = {}
        active = [ask for ask in asks if ask.stage in (Stage.RUNNING, Stage.LEAVING)]
        for ask in active:
            self._hold(ask, known=True)
        # the rest is packed beside what is known to be somewhere, the largest groups first
        for ask in sorted(active, key=lambda ask: (-share_of(ask.group, self.total), ask.id)):
            self._hold(ask, known=False)

    def _hold(self, ask: Ask, known: bool) -> None:
        keep = (ask.held + ask.spares) // ask.per_group if ask.stage is Stage.RUNNING else 0
        all_groups = max(keep, -(-ask.holds // ask.per_group))
        where = self.groups.setdefault(ask.id, [])
        if known:
            places = [self._index.get(id, NOWHERE) for id in ask.places[:all_groups]]
            for at in (at for at in places if at != NOWHERE):
                self._move(ask.group, at, -1, BOTH if len(where) < keep else (NOW,))
                if len(where) < keep:
                    where.append(at)
                    self._count(ask, 1, BOTH)
                else:
                    self._count(ask, 1, (NOW,))
            return
        going = max(0, sum(id in self._index for id in ask.places[:all_groups]) - len(where))
        lacking = keep - len(where)
        where += self._put(ask.group, lacking, BOTH, full=True)
        self._count(ask, lacking, BOTH)
        rest = max(0, all_groups - keep - going)
        self._put(ask.group, rest, (NOW,), full=True)
        self._count(ask, rest, (NOW,))
        pools = BOTH if ask.stage is Stage.RUNNING else (NOW,)
        self._retinues[ask.id] = self._accompany(ask, pools, full=True) or []

    # -- asking

    def fits(self, ask: Ask, groups: int, pools: tuple[int, ...] = BOTH, driver: bool = True) -> int:
        """How many of these groups could be placed now, up to `groups`, beside the driver and the servers."""
        groups = min(groups, self.allowed(ask, groups, pools))
        if not driver:
            return self.could(ask.group, groups, pools)
        retinue = self._accompany(ask, pools)
        if retinue is None:
            return 0
        found = self.could(ask.group, groups, pools)
        self._dismiss(ask, retinue, pools)
        return found

    def could(self, group: Resources, groups: int, pools: tuple[int, ...] = BOTH) -> int:
        """As `fits`, by the nodes alone."""
        if not group:
            return groups
        return min(groups, sum(self._by_node(group, pools)))

    def empty(self, ask: Ask, groups: int) -> int:
        """How many of these groups could be placed if nothing else ran, up to `groups`."""
        if ask.servers:
            return beside(self.whole, [self.driver, *[ask.server] * ask.servers], ask.group, groups)
        counts = self._empty(ask.group) if ask.group else None
        if not self.driver:
            return groups if counts is None else min(groups, sum(counts))
        at = max(range(len(self.whole)), key=lambda at: self.whole[at].get("CPU", 0.0), default=NOWHERE)
        if at == NOWHERE or not count(self.whole[at], self.driver):
            return 0
        if counts is None:
            return groups
        rest = {name: amount - self.driver.get(name, 0.0) for name, amount in self.whole[at].items()}
        return min(groups, sum(counts) - counts[at] + count(rest, ask.group))

    def _empty(self, group: Resources) -> list[int]:
        """How many of these groups each node would hold if it were empty."""
        key = tuple(group.items())
        if key not in self._whole_counts:
            self._whole_counts[key] = [count(node, group) for node in self.whole]
        return self._whole_counts[key]

    def allowed(self, ask: Ask, groups: int, pools: tuple[int, ...] = BOTH) -> int:
        """How many of these groups the project's quota allows beside what it uses, up to `groups`."""
        quota = self._policy.project(ask.project).quota
        servers = 0 if ask.id in self._retinues else ask.servers
        for pool in pools:
            workers, gpus = self._used[pool].of(ask.project)
            if quota.workers is not None:
                groups = min(groups, int(max(0, quota.workers - workers - servers)) // ask.per_group)
            if quota.gpus is not None and ask.gpus:
                room = max(0.0, quota.gpus - gpus) + EPSILON
                groups = min(groups, int(room // (ask.gpus * ask.per_group)))
        return groups

    def used(self, project: str) -> tuple[int, float]:
        """(workers, GPUs) that a project's jobs hold or are promised."""
        return self._used[SOON].of(project)

    def share(self, project: str) -> float:
        """The project's part of the resource that it has most of, by its weight."""
        return (
            share_of(self._used[SOON].resources[project], self.total) / self._policy.project(project).weight
        )

    # -- handing out

    def take(self, ask: Ask, groups: int, pools: tuple[int, ...] = BOTH, driver: bool = True) -> bool:
        """Place all of these groups, the driver and the servers, or nothing."""
        if self.allowed(ask, groups, pools) < groups:
            return False
        retinue = self._accompany(ask, pools) if driver else []
        if retinue is None:
            return False
        found = self._put(ask.group, groups, pools)
        if len(found) < groups:
            self._back(ask.group, found, pools)
            if driver:
                self._dismiss(ask, retinue, pools)
            return False
        if driver:
            self._retinues[ask.id] = retinue
        self.groups.setdefault(ask.id, []).extend(found)
        self._count(ask, groups, pools)
        return True

    def drop(self, ask: Ask, groups: int, pools: tuple[int, ...] = BOTH, driver: bool = True) -> None:
        """Undo `take`."""
        where = self.groups[ask.id]
        self._back(ask.group, where[len(where) - groups :], pools)
        del where[len(where) - groups :]
        self._count(ask, -groups, pools)
        if driver:
            self._dismiss(ask, self._retinues.pop(ask.id), pools)

    def release(self, ask: Ask) -> int:
        """The last group of a running job will be free soon; returns where it is, for `restore`."""
        at = self.groups[ask.id].pop()
        self._back(ask.group, [at], (SOON,))
        self._count(ask, -1, (SOON,))
        return at

    def restore(self, ask: Ask, at: int) -> None:
        if at != NOWHERE:
            self._move(ask.group, at, -1, (SOON,))
        self.groups[ask.id].append(at)
        self._count(ask, 1, (SOON,))

    def release_driver(self, ask: Ask) -> None:
        """And its servers."""
        self._dismiss(ask, self._retinues[ask.id], (SOON,))

    def restore_driver(self, ask: Ask) -> None:
        for what, at in self._retinues[ask.id]:
            if at != NOWHERE:
                self._move(what, at, -1, (SOON,))
        self._serve(ask, ask.servers, (SOON,))

    def _accompany(self, ask: Ask, pools: tuple[int, ...], full: bool = False) -> Retinue | None:
        """Place the driver and the servers, or nothing."""
        retinue: Retinue = []
        for what, number in ((self.driver, 1), (ask.server, ask.servers)):
            where = self._put(what, number, pools, full)
            retinue += [(what, at) for at in where]
            if len(where) < number:
                self._send_back(retinue, pools)
                return None
        self._serve(ask, ask.servers, pools)
        return retinue

    def _dismiss(self, ask: Ask, retinue: Retinue, pools: tuple[int, ...]) -> None:
        self._send_back(retinue, pools)
        self._serve(ask, -ask.servers, pools)

    def _send_back(self, retinue: Retinue, pools: tuple[int, ...]) -> None:
        for what, at in retinue:
            self._back(what, [at], pools)

    def _serve(self, ask: Ask, servers: int, pools: tuple[int, ...]) -> None:
        for pool in pools if servers else ():
            self._used[pool].add(ask.project, ask.server, servers)

    def keep_for(self, ask: Ask, groups: int) -> None:
        """A job that must wait for others to end: wherever its groups could go, nobody else may be first."""
        for what, number in ((ask.group, groups), (ask.server, ask.servers)):
            for node, could in zip(self.left[SOON], self._empty(what), strict=True) if what else ():
                if most := min(number, could):
                    for name, amount in what.items():
                        node[name] = node.get(name, 0.0) - amount * most
        for key in [key for key in self._counts if SOON in key[1]]:  # nearly all nodes: counted when asked
            del self._counts[key]

    # -- on the nodes

    def _put(self, group: Resources, groups: int, pools: tuple[int, ...], full: bool = False) -> list[int]:
        """Place up to `groups`, each where most would fit, on nodes that are there if possible.

        full: those without a place are NOWHERE, and taken from all nodes in pieces: wherever they really
        are, the whole is not promised twice.
        """
        if not group:
            return [NOWHERE] * groups
        found: list[int] = []
        counts = self._by_node(group, pools)
        while len(found) < groups:
            at = self._best(counts)
            if at == NOWHERE:
                break
            self._move(group, at, -1, pools)
            found.append(at)
        if full:
            for _ in range(groups - len(found)):
                found.append(NOWHERE)
                self._charge(group, pools)
        return found

    def _best(self, counts: list[int]) -> int:
        """Where most would fit, on a node that is there if possible."""
        most = max(counts, default=0)
        if most > 0 and self._some_new:
            there = max((c for c, node in zip(counts, self.nodes, strict=True) if not node.new), default=0)
            if there > 0:
                return next(at for at, c in enumerate(counts) if c == there and not self.nodes[at].new)
        return counts.index(most) if most > 0 else NOWHERE

    def _charge(self, group: Resources, pools: tuple[int, ...]) -> None:
        for pool in pools:
            for name, amount in group.items():
                for node in self.left[pool]:
                    piece = min(amount, max(0.0, node.get(name, 0.0)))
                    if piece > 0:
                        node[name] -= piece
                        amount -= piece
        self._counts.clear()

    def _back(self, group: Resources, where: Sequence[int], pools: tuple[int, ...]) -> None:
        for at in where:
            if at != NOWHERE:
                self._move(group, at, 1, pools)

    def _move(self, group: Resources, at: int, sign: int, pools: tuple[int, ...]) -> None:
        for pool in pools:
            node = self.left[pool][at]
            for name, amount in group.items():
                node[name] = node.get(name, 0.0) + sign * amount
        for (shape, asked), counts in self._counts.items():
            if asked == pools or not set(asked).isdisjoint(pools):
                there = dict(shape)
                counts[at] = min([count(self.left[pool][at], there) for pool in asked])

    def _by_node(self, group: Resources, pools: tuple[int, ...]) -> list[int]:
        key = (tuple(group.items()), pools)
        if key not in self._counts:
            by_pool = [[count(node, group) for node in self.left[pool]] for pool in pools]
            self._counts[key] = by_pool[0] if len(pools) == 1 else list(map(min, *by_pool))
        return self._counts[key]

    def _count(self, ask: Ask, groups: int, pools: tuple[int, ...]) -> None:
        for pool in pools:
            self._used[pool].add(ask.project, ask.worker, groups * ask.per_group)

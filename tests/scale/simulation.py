"""An exchange of flags over the tree of agents: simulated, with the CPU time that a message takes real agents now.
`python -m tests.scale.simulation NODES` also checks the simulation against that many agents, with stand-ins for ranks,
and with a delay before each message between two agents. It prints all times in seconds, as JSON."""

from __future__ import annotations

import heapq
import json
import mmap
import os
import socket
import sys
import time
from array import array
from collections import deque
from typing import Any, NamedTuple, NoReturn

from clusterdp.batch.nodes.agent import WIDTH, Agent, Order
from clusterdp.batch.nodes.messages import HEAD, RANK, Kind, Link, message
from clusterdp.train.hang.node_watch import NodeWatch

PER_NODE, FLAGS = 8, array("q", range(10)).tobytes()
NODES, HOPS_S = 1024, (20e-6, 200e-6, 500e-6)
SLOW_S, ROUNDS = 0.02, 30  # the delay of the check, and its exchanges


class Costs(NamedTuple):
    read_s: float  # CPU seconds of an agent for a message that it gets
    sent_s: float  # for a message that it sends


def simulated(nodes: int, hop_s: float, costs: Costs, processors: int = 0) -> float:
    """Returns the seconds from the last rank's message to the last rank's result. Ranks send at the same time, and get
    their results before the agents below. hop_s: seconds from one agent to another. processors: of all agents together;
    0: each agent has its own."""
    children = [range(agent * WIDTH + 1, min(agent * WIDTH + WIDTH + 1, nodes)) for agent in range(nodes)]
    waits, free, end = [PER_NODE + len(each) for each in children], [0.0] * nodes, 0.0
    idle = [0.0] * (processors or nodes * PER_NODE)  # when each processor is free
    coming = [(0.0, agent, True) for agent in range(nodes) for _ in range(PER_NODE)]  # when, for whom, on its way up
    while coming:
        at, agent, up = heapq.heappop(coming)
        now = max(at, free[agent], heapq.heappop(idle)) + costs.read_s
        waits[agent] -= up
        if up and agent and not waits[agent]:
            now += costs.sent_s
            heapq.heappush(coming, (now + hop_s, (agent - 1) // WIDTH, True))
        elif not up or not waits[agent]:
            now += PER_NODE * costs.sent_s
            end = max(end, now)
            for child in children[agent]:
                now += costs.sent_s
                heapq.heappush(coming, (now + hop_s, child, False))
        free[agent] = now
        heapq.heappush(idle, now)
    return end


class Tree:
    """Real agents, each in a process, and the connections of the ranks. page: the delay of a hop in seconds, and CPU
    seconds that each agent has sent for."""

    def __init__(self, nodes: int):
        self.page = memoryview(mmap.mmap(-1, 8 * (nodes + 1))).cast("d")
        self.pids: list[int] = []
        self.ranks: list[socket.socket] = []
        servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(nodes)]
        self.number = 0
        for agent, server in enumerate(servers):
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(f"\0clusterdp-{os.getpid()}-{agent}")
            listening.listen(PER_NODE)
            above = (agent - 1) // WIDTH
            parent = (*servers[above].getsockname(), f"n{above}", 0) if agent else None
            order = Order(agent, nodes, PER_NODE, 0, f"n{agent}", parent, "00" * 32, 60.0, -1, -1, "")
            self.pids.append(os.fork() or self._serve(Agent(order, [listening, server], NodeWatch())))
            for rank in range(PER_NODE):
                self.ranks.append(socket.socket(socket.AF_UNIX))
                self.ranks[-1].connect(listening.getsockname())
                self.ranks[-1].sendall(message(Kind.HELLO, 0, RANK.pack(agent * PER_NODE + rank)))
        for end in self.ranks:
            assert end.recv(HEAD.size, socket.MSG_WAITALL)  # the agent's own HELLO

    def _serve(self, agent: Agent) -> NoReturn:
        """Runs the agent, whose messages to other agents wait for the delay."""
        later: deque[tuple[float, Link, bytes]] = deque()
        send, select = Link.send, agent.waiting.select

        def sent(link: Link, data: bytes) -> None:
            began = time.process_time()
            if self.page[0] and link.connection.family != socket.AF_UNIX:
                later.append((time.monotonic() + self.page[0], link, data))
            else:
                send(link, data)
            self.page[agent.order.number + 1] += time.process_time() - began

        def selected(timeout: float | None = None) -> Any:
            while later and later[0][0] <= time.monotonic():
                send(*later.popleft()[1:])
            return select(later[0][0] - time.monotonic() if later else timeout)

        Link.send, agent.waiting.select = sent, selected  # type: ignore[method-assign,assignment]
        try:
            agent.join()
            agent.run()
        finally:
            os._exit(1)

    def exchange(self) -> float:
        """Returns the seconds from the last rank's message to the last rank's result."""
        self.number += 1
        for rank in self.ranks:
            rank.sendall(message(Kind.REDUCE, self.number, FLAGS))
        began, whole = time.monotonic(), message(Kind.RESULT, self.number, FLAGS)
        for rank in self.ranks:
            assert rank.recv(len(whole), socket.MSG_WAITALL) == whole
        return time.monotonic() - began

    def cpu_s(self) -> float:
        """The CPU seconds of all agents. (Linux numbers the clocks of processes in this way.)"""
        return sum(time.clock_gettime(~pid << 3 | 2) for pid in self.pids)

    def costs(self) -> Costs:
        """Measures the CPU seconds of a message. An agent gets and sends a message for each rank and each neighbour."""
        before, sent_before = self.cpu_s(), sum(self.page.tolist()[1:])
        for _ in range(ROUNDS):
            self.exchange()
        sent_s = sum(self.page.tolist()[1:]) - sent_before
        messages = ROUNDS * (len(self.ranks) + 2 * (len(self.pids) - 1))
        return Costs((self.cpu_s() - before - sent_s) / messages, sent_s / messages)


def main() -> None:
    nodes = int(sys.argv[1])
    tree = Tree(nodes)
    tree.exchange()
    costs = tree.costs()
    tree.page[0] = SLOW_S
    real_s = min(tree.exchange() for _ in range(ROUNDS))
    for rank in tree.ranks:
        rank.close()  # the agents end
    check_s = simulated(nodes, SLOW_S, costs, processors=len(os.sched_getaffinity(0)))
    large = {hop_s: simulated(NODES, hop_s, costs) for hop_s in HOPS_S}
    print(json.dumps({"costs": costs, "real_s": real_s, "check_s": check_s, "large_s": large}))


if __name__ == "__main__":
    main()

"""BatchSizeTable: the batch sizes that were tried, and the best of them."""

from __future__ import annotations

from dataclasses import dataclass

GAIN = 1.05  # factor on the speed; a doubled batch with a smaller factor is not a gain
IN_A_ROW = 2  # number of doublings without a gain that end the search, because a single one may be noise
NEARLY = 0.95  # the smallest batch with this part of the best speed is the best choice
MOST_ON_CPU = 4096  # samples per rank at most: a job that runs out of host memory would harm the machine


@dataclass(frozen=True)
class BatchSizeRow:
    """A batch size that was tried, in samples per rank."""

    size: int  # requested
    batch: float  # average batch size over the steps
    full: int  # size of every batch except an epoch's last
    step_s: float
    memory_gb: float | None = None


class BatchSizeTable:
    def __init__(self, world_size: int, *, on_gpu: bool):
        self.world_size = world_size
        self.on_gpu = on_gpu
        self.rows: list[BatchSizeRow] = []
        self.ended = ""  # the reason why no more sizes are tried
        self._too_large: tuple[int, int] | None = None

    def speed(self, row: BatchSizeRow) -> float:
        """Returns samples per second of all ranks."""
        return self.world_size * row.batch / row.step_s

    def add(self, row: BatchSizeRow) -> None:
        if self.rows and row.full == self.rows[-1].full:
            self.ended = f"{row.size} gives the same batches as {self.rows[-1].size}. Pass it on to the loader."
        elif row.batch < 0.75 * row.size:
            self.ended = "a rank's share of the data is less than two such batches."
        self.rows.append(row)

    def out_of_memory(self, size: int, rank: int) -> None:
        self._too_large = (size, rank)

    def go_on(self, size: int) -> bool:
        """Returns whether to try this batch size, too."""
        if self.ended or self._too_large:
            return False
        if not self.on_gpu and size > MOST_ON_CPU:
            self.ended = f"on CPUs, {MOST_ON_CPU} is the largest that is tried."
        elif len(self.rows) > IN_A_ROW and all(
            self.speed(row) < GAIN * max(map(self.speed, self.rows[:place]))
            for place, row in list(enumerate(self.rows))[-IN_A_ROW:]
        ):
            self.ended = "twice the batch is no faster any more."
        return not self.ended

    def best(self) -> BatchSizeRow | None:
        """Returns the row of the smallest batch that is nearly as fast as the fastest."""
        enough = NEARLY * max(map(self.speed, self.rows), default=0.0)
        return next((row for row in self.rows if self.speed(row) >= enough), None)

    def lines(self) -> list[str]:
        """Returns the table, and then the advice."""
        memory = any(row.memory_gb is not None for row in self.rows)
        found = [f"{'batch size':>10}{'ms a step':>12}{'samples/s':>12}" + (f"{'GB':>9}" if memory else "")]
        for row in self.rows:
            gb = f"{row.memory_gb:>9.2f}" if row.memory_gb is not None else ""
            found.append(f"{row.size:>10}{1000 * row.step_s:>12.2f}{self.speed(row):>12.0f}{gb}")
        if self._too_large:
            size, rank = self._too_large
            found.append(f"{size:>10}   memory ran out on rank {rank}")
        return [*found, "", *self._advice()]

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _advice(self) -> list[str]:
        best = self.best()
        if best is None:
            return ["Not even the first fits into memory: begin with less (params.batch_size)."]
        said = f"batch_size: {best.size} of each rank"
        fastest = max(self.rows, key=self.speed)
        if best is not fastest:
            said += f", with {100 * self.speed(best) / self.speed(fastest):.0f} % of what {fastest.size} gives"
        why = f" No more was tried: {self.ended}" if self.ended else ""
        return [f"Try {said}; another batch takes another learning rate (BatchSize.scaled_lr).{why}"]

"""Which process holds which clients: equal shares, in order."""

from dataclasses import dataclass

from depositum.errors import ConfigError


@dataclass(frozen=True)
class Placement:
    """n clients in equal shares on the ranks 0 … size − 1, each rank's clients being consecutive.

    >>> placement = Placement(6, 3)
    >>> placement.clients(1), placement.rank_of(5)
    (range(2, 4), 2)
    """

    n: int
    size: int

    def __post_init__(self) -> None:
        if self.size > self.n:
            raise ConfigError(
                "problem.clients",
                f"{self.n} given, but there are {self.size} processes, and each holds at least one client; take "
                f"--nproc-per-node × --nnodes = {self.n}",
            )
        if self.n % self.size:
            fitting = [str(k) for k in range(1, self.n + 1) if self.n % k == 0]
            raise ConfigError(
                "problem.clients",
                f"{self.n} given, which {self.size} processes cannot share equally; take --nproc-per-node × --nnodes "
                f"= {', '.join(fitting)}, or a multiple of {self.size} clients",
            )

    @property
    def share(self) -> int:
        """Clients of one rank."""
        return self.n // self.size

    def clients(self, rank: int) -> range:
        """The clients that a rank holds."""
        return range(rank * self.share, (rank + 1) * self.share)

    def rank_of(self, client: int) -> int:
        """The rank that holds a client."""
        return client // self.share

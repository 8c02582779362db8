"""What does a chunk occupy on its way, and under which number? Links, and the parts of chips that pay for messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trnprof.emulator.fabric.fabric import Fabric
from trnprof.emulator.fabric.names import link_name

LINK: Final = "link"
DMA: Final = "dma"
HBM: Final = "hbm"
POST: Final = "post"


@dataclass(frozen=True)
class Servers:
    """The numbers of servers: links as the fabric numbers them, then DMA engines and HBM chip by chip, then CC-cores.

    A chip's DMA engines are one server, as its HBM is; each collective that is in flight has a CC-core of its own on each chip.

    Attributes:
        links: of the fabric.
        chips: of the fabric.
        collectives: in flight at once.
    """

    links: int
    chips: int
    collectives: int = 1

    @property
    def first_dma(self) -> int:
        """Of chip 0."""
        return self.links

    @property
    def first_hbm(self) -> int:
        """Of chip 0."""
        return self.links + self.chips

    def first_post(self, collective: int) -> int:
        """CC-core of chip 0 that works for a collective."""
        return self.links + (2 + collective) * self.chips

    def __len__(self) -> int:
        return self.first_post(self.collectives)

    def numbers(self) -> dict[str, range]:
        """The servers of each kind: LINK, DMA, HBM and POST, in order."""
        firsts = (0, self.first_dma, self.first_hbm, self.first_post(0), len(self))
        return {
            kind: range(first, past)
            for kind, first, past in zip((LINK, DMA, HBM, POST), firsts, firsts[1:], strict=False)
        }

    def kind(self, server: int) -> str:
        """LINK, DMA, HBM or POST."""
        return next(kind for kind, numbers in self.numbers().items() if server in numbers)

    def name(self, server: int, fabric: Fabric) -> str:
        """As people call it: "link 3>7", "HBM of chip 4"."""
        kind = self.kind(server)
        if kind == LINK:
            return f"link {link_name(fabric, server)}"
        what = {DMA: "DMA engines", HBM: "HBM", POST: "CC-core"}[kind]
        return f"{what} of chip {(server - self.links) % self.chips}"

"""How far a sweep is: one live line on a terminal, a line a trial elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from darkroom.door import say
from darkroom.sweeping.ledger import Claim, Ledger
from darkroom.sweeping.standing import best


@dataclass
class Progress:
    """Counts what the ledger counts."""

    ledger: Ledger
    live: bool = field(default_factory=sys.stderr.isatty)
    began: dict[int, float] = field(default_factory=dict)
    """trials that run, by number, with the time at which they began"""
    _bar: Any = None

    def begin(self, claim: Claim) -> None:
        self.began[claim.number] = time.monotonic()
        self._show()

    def end(self, claim: Claim, how: str) -> None:
        """`how` the trial ended: "0.9833", "pruned after epoch 3 at 0.4" or "failed: …"."""
        seconds = time.monotonic() - self.began.pop(claim.number)
        text = f"trial {claim.number}: {how} ({seconds:.1f} s)"
        if not self.live:
            say(f"{text}; {self.ledger.num_done()} of {self.ledger.sweep.trials} done, {self._best()}")
        elif how.startswith(("failed", "lost")):
            tqdm.write(text)
        self._show()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _show(self) -> None:
        if not self.live:
            return
        if self._bar is None:
            done = self.ledger.num_done()
            self._bar = tqdm(desc=self.ledger.sweep.study, total=self.ledger.sweep.trials, initial=done, unit="trial")
        self._bar.n = self.ledger.num_done()
        self._bar.set_postfix_str(f"{self._best()}, {len(self.began)} running")

    def _best(self) -> str:
        found = best(self.ledger.study, self.ledger.sweep.metric)
        return f"best {found.value:.4f} (trial {found.number})" if found is not None else "none complete yet"

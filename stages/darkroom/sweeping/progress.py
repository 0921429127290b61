"""How far a sweep is: one live line on a terminal, a line a trial elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from optuna.trial import FrozenTrial, TrialState
from tqdm import tqdm

from darkroom.door import say
from darkroom.params import Sweep
from darkroom.sweeping.ledger import Claim, Ledger
from darkroom.sweeping.standing import best, counts, reached, value_of
from darkroom.sweeping.study import STORAGE_ERRORS


@dataclass
class Progress:
    """Counts what the ledger counts."""

    ledger: Ledger
    live: bool = field(default_factory=sys.stderr.isatty)
    began: dict[int, float] = field(default_factory=dict)
    """trials that run here, by number, with the time at which they began"""
    num_running: int = 0
    _bar: Any = None

    def begin(self, claim: Claim) -> None:
        self.began[claim.number] = time.monotonic()
        self.num_running = len(self.began)
        self.show()

    def end(self, claim: Claim, how: str) -> None:
        """`how` the trial ended: "0.9833", "pruned after epoch 3 at 0.4" or "failed: …"."""
        seconds = time.monotonic() - self.began[claim.number]
        self.num_running = len(self.began) - 1
        self.tell(f"trial {claim.number}: {how} ({seconds:.1f} s)", notable=how.startswith(("failed", "lost")))
        del self.began[claim.number]

    def tell(self, text: str, *, notable: bool) -> None:
        """Says how a trial ended; beside the live line only where it is `notable`."""
        if not self.live:
            say(f"{text}; {self.ledger.num_done()} of {self.ledger.sweep.trials} done, {self._best()}")
        elif notable:
            tqdm.write(text)
        self.show()

    def remark(self, text: str) -> None:
        """Says something else, past the live line."""
        if self.live:
            tqdm.write(text)
        else:
            say(text)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self) -> None:
        if self.live:
            with suppress(*STORAGE_ERRORS):  # the next line shows it
                self._draw()

    def _draw(self) -> None:
        if self._bar is None:
            done = self.ledger.num_done()
            self._bar = tqdm(desc=self.ledger.sweep.study, total=self.ledger.sweep.trials, initial=done, unit="trial")
        self._bar.n = self.ledger.num_done()
        self._bar.set_postfix_str(f"{self._best()}, {self.num_running} running")

    def _best(self) -> str:
        found = best(self.ledger.study, self.ledger.sweep)
        return f"best {value_of(found):.4f} (trial {found.number})" if found is not None else "none complete yet"


@dataclass
class Follower:
    """Tells the same of trials that end elsewhere, from what the study holds."""

    progress: Progress
    told: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.told |= {trial.number for trial in self.progress.ledger.trials() if trial.state.is_finished()}

    def look(self) -> None:
        trials = self.progress.ledger.trials()
        self.progress.num_running = sum(trial.state == TrialState.RUNNING for trial in trials)
        for trial in trials:
            if trial.state.is_finished() and trial.number not in self.told:
                self.told.add(trial.number)
                if counts(trial) or "lost" in trial.user_attrs:
                    seconds = trial.duration.total_seconds() if trial.duration else 0.0
                    notable = trial.state == TrialState.FAIL
                    self.progress.tell(
                        f"trial {trial.number}: {_ending(self.progress.ledger.sweep, trial)} ({seconds:.1f} s)",
                        notable=notable,
                    )
        self.progress.show()


def _ending(sweep: Sweep, trial: FrozenTrial) -> str:
    """How a finished trial ended, in the words of `Coordinator`."""
    if trial.state == TrialState.COMPLETE:
        return f"{value_of(trial):.4f}"
    if trial.state == TrialState.PRUNED:
        return f"pruned after {reached(sweep, trial)}"
    if "lost" in trial.user_attrs:
        return f"lost: {trial.user_attrs['lost']}; it is run again"
    return f"failed: {trial.user_attrs.get('error', 'no reason is known')}"

"""`train.debug`: a closer look at a training, which changes nothing of it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule

from darkroom.door import say
from darkroom.errors import UserError
from darkroom.training import EpochRecord, Session, StepRecord

Look = Callable[[StepRecord | EpochRecord], None]
PROFILED = {"wait": 3, "warmup": 2, "active": 5, "repeat": 1}
"""steps: a trace of more is too large for a browser"""
ROWS = 30
"""of the profiler's table"""


@dataclass(frozen=True)
class Debugging:
    """The kinds asked for: anomaly, activations, profile."""

    kinds: tuple[str, ...]
    keep: Callable[[Path, str], None]
    """puts a file into a folder of the run's artifacts"""

    @contextmanager
    def watching(self, session: Session) -> Iterator[Look]:
        """Gives a function that takes every record. Raises UserError that names the operation which made NaN (anomaly)."""
        makers = {"activations": self._activations, "profile": self._profile}
        with ExitStack() as stack:
            looks = [stack.enter_context(makers[kind](session)) for kind in self.kinds if kind in makers]
            if "anomaly" in self.kinds:
                stack.enter_context(_anomaly())

            def look(record: StepRecord | EpochRecord) -> None:
                for each in looks:
                    each(record)

            yield look

    @contextmanager
    def _activations(self, session: Session) -> Iterator[Look]:
        table = Activations()
        layers = [(name, module) for name, module in session.network.named_modules() if not any(module.children())]
        handles = [module.register_forward_hook(table.hook(name)) for name, module in layers]
        try:
            yield table.look
        finally:
            for handle in handles:
                handle.remove()
            self._keep_text("activations.csv", table.text())

    @contextmanager
    def _profile(self, session: Session) -> Iterator[Look]:
        on_gpu = [ProfilerActivity.CUDA] if session.device.type == "cuda" else []
        with profile(
            activities=[ProfilerActivity.CPU, *on_gpu], schedule=schedule(**PROFILED), record_shapes=True
        ) as prof:

            def look(record: StepRecord | EpochRecord) -> None:
                if isinstance(record, StepRecord):
                    prof.step()

            yield look
        if not prof.events():
            say(f"train.debug: profile: fewer than {sum(PROFILED.values()) - 1} steps were taken, so there is no trace")
            return
        self._keep_text("operations.txt", prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=ROWS))
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder, "trace.json.gz")
            prof.export_chrome_trace(str(trace))
            self.keep(trace, "debug")
        say(
            "train.debug: profile: the run holds debug/operations.txt and debug/trace.json.gz (open it at https://ui.perfetto.dev)"
        )

    def _keep_text(self, name: str, text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            path.write_text(text)
            self.keep(path, "debug")


@dataclass
class Activations:
    """What each layer gives, in the first step of each epoch."""

    epoch: int = 0
    """that was looked at last"""
    rows: list[str] = field(default_factory=list)
    open: bool = True
    """whether the layers' outputs are looked at now"""

    def hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def note(module: nn.Module, _inputs: Any, output: Any) -> None:
            if self.open and module.training and isinstance(output, Tensor) and output.is_floating_point():
                values = output.detach().float()
                zeros = float((values == 0).float().mean())
                self.rows.append(f"{self.epoch + 1},{name},{float(values.mean())},{float(values.std())},{zeros}")
                if zeros == 1:
                    say(
                        f"train.debug: activations: every output of {name} is 0 in epoch {self.epoch + 1}: a dead layer"
                    )

        return note

    def look(self, record: StepRecord | EpochRecord) -> None:
        self.open = isinstance(record, EpochRecord)
        self.epoch = record.epoch if self.open else self.epoch

    def text(self) -> str:
        return "\n".join(["epoch,layer,mean,std,share_of_zeros", *self.rows]) + "\n"


@contextmanager
def _anomaly() -> Iterator[None]:
    """Torch's anomaly mode, with its page of warning and its traceback as one sentence."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with torch.autograd.set_detect_anomaly(True):
                yield
        except RuntimeError as error:
            if "returned nan values" not in str(error):
                raise
            made = [line.strip() for warning in caught for line in str(warning.message).splitlines() if "File " in line]
            where = f", made by the forward pass at {made[-1]}" if made else ""
            raise UserError(f"train.debug: anomaly: {error}{where}") from None

"""Several processes that train together: started, watched and ended through torch's elastic launcher."""

from __future__ import annotations

import logging
import os
import sys
import uuid
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from darkroom.door import Terminated, say
from darkroom.training import launched


def processes_wanted(devices: int | str) -> int:
    """How many processes this machine is to start for `train.devices`; 1 where torch's launcher has started this one."""
    if launched():
        return 1
    return max(torch.cuda.device_count(), 1) if devices == "auto" else int(devices)


def launch(script: Path, processes: int) -> None:
    """Runs `script` in so many processes and waits for them; they end when this one is told to, or is gone.

    Raises Terminated or KeyboardInterrupt after a signal, SystemExit(1) where a process failed, which has said why.
    """
    for name in ("torch.distributed.elastic", "torch.distributed.launcher", "torch.distributed.run"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what they say, the processes have said
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=processes, run_id=uuid.uuid4().hex, rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=0, monitor_interval=0.5,
    )  # fmt: skip
    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // processes, 1)))
    say(f"training in {processes} processes")
    try:
        elastic_launch(config, sys.executable)(str(script))
    except ChildFailedError:
        raise SystemExit(1) from None
    except SignalException as error:
        if error.sigval.name == "SIGINT":
            raise KeyboardInterrupt from None
        say("stopped by SIGTERM: all processes have ended")
        raise Terminated from None

"""Device, precision and threads: what `auto` stands for on this machine."""

from __future__ import annotations

import os
from typing import Literal

import torch
from torch import nn

from darkroom.errors import UserError
from darkroom.training.recipe import Recipe
from darkroom.training.world import local_processes

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CORES = torch.get_num_threads()
"""threads that torch starts with: one a physical core, or OMP_NUM_THREADS"""


def choose_device(wanted: str) -> torch.device:
    """The device named `wanted`; auto: cuda, else mps, else cpu. Raises UserError that names what exists."""
    exist = _existing()
    if wanted == "auto":
        return torch.device(exist[0])
    device = torch.device(wanted)
    if wanted in exist or (device.type == "cuda" and f"cuda:{device.index or 0}" in exist):
        return device
    built = "" if device.type != "cuda" or torch.version.cuda else f" (torch {torch.__version__} is built without CUDA)"
    raise UserError(f"train.device: {wanted!r} is not here{built}; there is {', '.join(exist)} (auto takes the first)")


def _existing() -> list[str]:
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return [*gpus, *mps, "cpu"]


def choose_precision(wanted: str, device: torch.device) -> str:
    """fp32, bf16 or fp16. auto: bf16 where the device computes in it natively, fp16 on older CUDA, else fp32."""
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"
    return "bf16" if device.type == "cpu" and _cpu_has_bf16() else "fp32"


def _cpu_has_bf16() -> bool:
    """Whether an x86 CPU multiplies bfloat16 itself (AMX, AVX512_BF16): emulated, it is slower than float32.

    Measured with AMX on small pictures: 1.0 to 2.6 times the images a second of float32, for each network of ours.
    """
    if not hasattr(torch.cpu, "get_capabilities"):  # torch before 2.11
        return False
    has = torch.cpu.get_capabilities()
    return bool(has.get("amx_bf16") or has.get("avx512_bf16"))


def sound_precision(wanted: str, device: torch.device, network: nn.Module, image_size: int) -> tuple[str, str]:
    """The precision, and a line to say where `auto` takes another than it would.

    On a CPU the weight gradient of a 3×3 convolution with a stride on maps of one pixel is garbage in bf16 (torch 2.14 with
    AMX: not finite in a third of the calls, finite and wrong in half). `network` is on `device` and takes square pictures.
    Raises UserError where bf16 is asked for by name.
    """
    precision = choose_precision(wanted, device)
    layer = _strided_on_one_pixel(network, image_size) if device.type == "cpu" and precision == "bf16" else ""
    if not layer:
        return precision, ""
    why = f"{layer} convolves maps of one pixel with a stride, whose gradient this torch gets wrong in bf16 on a CPU"
    if wanted == "bf16":
        raise UserError(f"train.precision: bf16: {why}: take fp32, or a larger data.image_size")
    return "fp32", f"train.precision: auto takes fp32: {why} (a larger data.image_size avoids it)"


def _strided_on_one_pixel(network: nn.Module, image_size: int) -> str:
    """The name of the first such layer; empty where there is none."""
    strided = {
        module: name
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d) and module.stride != (1, 1) and module.kernel_size != (1, 1)
    }
    found: list[str] = []
    hooks = [
        module.register_forward_pre_hook(
            lambda module, inputs: found.append(strided[module]) if inputs[0].shape[-2:] == (1, 1) else None
        )
        for module in strided
    ]
    first = next((module for module in network.modules() if isinstance(module, nn.Conv2d)), None)
    try:
        if first is not None and strided:
            with torch.inference_mode():
                network.eval()(torch.zeros(1, first.in_channels, image_size, image_size))
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else ""


def choose_channels_last(wanted: Literal["auto"] | bool, network: nn.Module) -> bool:
    """Whether pictures and weights lie as N×H×W×C in memory; auto: where there are convolutions."""
    if isinstance(wanted, bool):
        return wanted
    return any(isinstance(module, nn.Conv2d) for module in network.modules())


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The one context for all precisions; in fp32 it does nothing."""
    dtype = torch.bfloat16 if precision == "fp32" else DTYPES[precision]
    return torch.autocast(device.type, dtype=dtype, enabled=precision != "fp32")


def set_threads(wanted: Literal["auto"] | int) -> int:
    """Sets and returns the number of CPU threads.

    auto: one a physical core that this process may use, shared with the processes of this machine that train with it.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else CORES
    threads = max(min(CORES, allowed) // local_processes(), 1) if wanted == "auto" else wanted
    torch.set_num_threads(threads)
    return threads


def set_kernels(recipe: Recipe) -> None:
    """TF32, cuDNN's search and determinism, for the whole process; on a CPU none of them does anything."""
    precision = "tf32" if recipe.tf32 else "ieee"
    torch.backends.cuda.matmul.fp32_precision = precision
    torch.backends.cudnn.conv.fp32_precision = precision  # type: ignore[attr-defined]  # torch's stubs are behind
    torch.backends.cudnn.benchmark = recipe.cudnn_benchmark and not recipe.deterministic
    torch.backends.cudnn.deterministic = recipe.deterministic
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS refuses without
    torch.use_deterministic_algorithms(recipe.deterministic)

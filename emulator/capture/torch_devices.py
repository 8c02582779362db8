"""What becomes of a program's CUDA? Its devices are the emulated one, on which tensors lie where torch keeps those of the CPU.

Arguments that name an accelerator are changed as calls of torch pass by; what torch.cuda is asked has an answer for each device.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from trnprof.emulator.capture.imports import when_imported
from trnprof.emulator.capture.torch_source import is_internal

ACCELERATORS: Final = frozenset(("cuda", "xla", "neuron", "privateuseone"))
_CPU: Final = torch.device("cpu")
_MEMORY_BYTES: Final = 96 << 30
"""What a program is told that a device has; the emulated system is not known to it."""
_ATTENTION: Final = torch.nn.functional.scaled_dot_product_attention
_NOTHING: Final = (
    "set_device synchronize empty_cache manual_seed manual_seed_all reset_peak_memory_stats init ipc_collect "
    "set_rng_state set_rng_state_all reset_max_memory_allocated reset_accumulated_memory_stats "
    "set_per_process_memory_fraction set_stream _lazy_init"
).split()
_ZERO: Final = (
    "current_device memory_allocated max_memory_allocated memory_reserved max_memory_reserved utilization"
).split()


def is_accelerator(device: Any) -> bool:
    """Whether it names a device that the emulated one stands for."""
    if isinstance(device, torch.device):
        return device.type in ACCELERATORS
    return isinstance(device, str) and device.partition(":")[0] in ACCELERATORS


class DeviceMap(TorchFunctionMode):  # type: ignore[misc]  # torch is not followed
    """Takes calls for accelerators to the emulated device.

    Attributes:
        uses: how many calls named one.
    """

    def __init__(self, devices: int) -> None:
        super().__init__()
        self.uses = 0
        self._devices = devices

    def install(self) -> None:
        """From now on."""
        warnings.filterwarnings("ignore", "The passed-in `module` is on CPU")  # of the first FSDP
        warnings.filterwarnings("ignore", "DTensor random operators may not have complete support")
        self._patch_cuda()
        self._patch_accelerator()
        self._patch_modules()
        self._patch_precision()
        self._patch_engine()
        self.__enter__()

    def note(self) -> str:
        """A remark for people."""
        return f"{self.uses} call(s) for a CUDA or XLA device went to the emulated one"

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _ATTENTION and any(hasattr(value, "device_mesh") for value in args[:3]):
            return _flash_attention(*args, **kwargs)
        if func in _ON_TENSORS:
            self.uses += 1
            return _ON_TENSORS[func](args[0])
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], _CPU, *args[2:])
        for value in args[1:]:
            if value.__class__ is torch.device or value.__class__ is str:
                args = (args[0], *self._mapped(args[1:]))
                break
        if kwargs and kwargs.get("device") is not None:
            device = kwargs["device"]
            if is_accelerator(device) or type(device) is int:
                self.uses += 1
                kwargs = {**kwargs, "device": _CPU}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)

    def _mapped(self, values: tuple[Any, ...]) -> list[Any]:
        self.uses += sum(map(is_accelerator, values))
        return [_CPU if is_accelerator(value) else value for value in values]

    def _patch_cuda(self) -> None:
        cuda = torch.cuda
        for name in _NOTHING:
            setattr(cuda, name, _answer(None))
        for name in _ZERO:
            setattr(cuda, name, _answer(0))
        cuda.is_available = self._to_programs(cuda.is_available, True)
        cuda.device_count = self._to_programs(cuda.device_count, self._devices)
        cuda.is_initialized = self._to_programs(cuda.is_initialized, True)
        cuda.is_bf16_supported = _answer(True)
        cuda.get_device_name = _answer("emulated device")
        cuda.get_device_capability = _answer((9, 0))
        cuda.get_device_properties = _answer(
            SimpleNamespace(name="emulated device", major=9, minor=0, total_memory=_MEMORY_BYTES)
        )
        cuda.mem_get_info = _answer((_MEMORY_BYTES, _MEMORY_BYTES))
        cuda.memory_stats = _answer({})
        cuda.memory_summary = _answer("")
        cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
        cuda.get_rng_state_all = _answer([])
        cuda.nvtx._nvtx = SimpleNamespace(
            **dict.fromkeys("rangePushA rangePop rangeStartA rangeEnd markA".split(), _answer(0))
        )
        torch.Tensor.record_stream = _answer(None)
        torch.Generator = Generator
        cuda.Stream = Stream
        cuda.Event = Event
        cuda.current_stream = cuda.default_stream = _answer(Stream())
        cuda.stream = cuda.device = lambda *_: contextlib.nullcontext()

    def _patch_accelerator(self) -> None:
        found, cuda = torch.accelerator, torch.device("cuda")
        for name, answer in (
            ("is_available", True),
            ("current_accelerator", cuda),
            ("device_count", self._devices),
            ("current_device_index", 0),
            ("set_device_index", None),
            ("synchronize", None),
        ):
            setattr(found, name, self._to_programs(getattr(found, name), answer))

    def _patch_engine(self) -> None:
        """``backward()`` is a call that passes by, so within it none would: forwards that it runs again are the program's too."""
        run = torch.autograd._engine_run_backward

        @functools.wraps(run)
        def engine_run_backward(*args: Any, **kwargs: Any) -> Any:
            is_off = self not in _get_current_function_mode_stack()
            with self if is_off else contextlib.nullcontext():
                return run(*args, **kwargs)

        torch.autograd._engine_run_backward = engine_run_backward

    def _to_programs(self, asked: Callable[..., Any], answer: Any) -> Callable[..., Any]:
        """An answer for the program; torch's own code hears the truth."""

        @functools.wraps(asked)
        def answered(*args: Any, **kwargs: Any) -> Any:
            if is_internal(sys._getframe(1).f_code.co_filename):
                return asked(*args, **kwargs)
            self.uses += 1
            return answer

        return answered

    def _patch_modules(self) -> None:
        move = torch.nn.Module.to

        @functools.wraps(move)
        def to(module: Any, *args: Any, **kwargs: Any) -> Any:
            if args and type(args[0]) is int:
                args = (_CPU, *args[1:])
            if kwargs.get("device") is not None:
                kwargs["device"] = self._mapped((kwargs["device"],))[0]
            return move(module, *self._mapped(args), **kwargs)

        torch.nn.Module.to = to
        for name, cls in (
            ("torch.nn.parallel.distributed", "DistributedDataParallel"),
            ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"),
        ):
            when_imported(name, functools.partial(_drop_device_ids, cls))
        for name in ("_init_utils", "fully_sharded_data_parallel"):
            when_imported(f"torch.distributed.fsdp.{name}", _give_handle)

    def _patch_precision(self) -> None:
        autocast, scaler = torch.autocast.__init__, torch.amp.GradScaler.__init__

        @functools.wraps(autocast)
        def init_autocast(
            self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any
        ) -> None:
            if is_accelerator(device_type):
                device_type, dtype = "cpu", dtype or torch.float16
            autocast(self, device_type, dtype, *args, **kwargs)

        @functools.wraps(scaler)
        def init_scaler(self: Any, device: str = "cpu", *args: Any, **kwargs: Any) -> None:
            scaler(self, "cpu" if is_accelerator(device) else device, *args, **kwargs)

        torch.autocast.__init__, torch.amp.GradScaler.__init__ = init_autocast, init_scaler


class Generator(torch.Generator):  # type: ignore[misc]  # torch is not followed
    """A generator of random numbers for any device."""

    def __new__(cls, device: Any = None) -> Generator:
        """One of the CPU."""
        made: Generator = super().__new__(cls, "cpu")
        return made


class Stream:
    """A CUDA stream of the program: the order of its work is that of the calls."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = _CPU

    def record_event(self, event: Any = None) -> Event:
        """An event on it."""
        return event or Event()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in ("wait_stream", "wait_event", "synchronize"):
            return _answer(None)
        if name == "query":
            return _answer(True)
        raise AttributeError(name)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Event:
    """A CUDA event of the program; no time passes between two."""

    def __init__(self, *_: Any, **__: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in ("record", "wait", "synchronize"):
            return _answer(None)
        if name in ("query", "elapsed_time"):
            return _answer(True if name == "query" else 0.0)
        raise AttributeError(name)


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _flash_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention of sharded tensors by the operators of accelerators: those of the CPU cannot be sharded."""
    if enable_gqa:
        share = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(share, dim=1) for tensor in (key, value))
    if attn_mask is None:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale)[0]


class _Handle:
    """What the first FSDP asks of its device: the answers of torch.cuda, and the device on which tensors lie."""

    def current_device(self) -> str:
        """Where tensors lie."""
        return "cpu"

    def is_available(self) -> bool:
        """It is."""
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


def _give_handle(module: Any) -> None:
    """The first FSDP refuses a module on the CPU, and states that it is to send from there: give it a device before it looks."""

    def init_device_handle(state: Any, *_: Any) -> Any:
        state._device_handle = _Handle()
        return state

    module._init_device_handle = init_device_handle
    module._check_module_states_for_sync_module_states = _answer(None)


def _drop_device_ids(name: str, module: Any) -> None:
    """Wrappers of modules that are told devices by number need none."""
    cls = getattr(module, name)
    init = cls.__init__

    @functools.wraps(init)
    def init_without(self: Any, *args: Any, **kwargs: Any) -> None:
        for given in ("device_ids", "output_device", "device_id"):
            kwargs.pop(given, None)
        if name == "DistributedDataParallel":
            args = args[:1]
        init(self, *args, **kwargs)

    cls.__init__ = init_without


_ON_TENSORS: Final[dict[Any, Callable[[Any], Any]]] = {
    torch.Tensor.cuda: lambda tensor: tensor,
    torch.Tensor.pin_memory: lambda tensor: tensor,
}

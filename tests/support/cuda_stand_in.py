"""Stand-in for a CUDA device on machines without one: it computes on the CPU, and behaves like a device.

`stand_in` makes torch's Python interface offer a device `cuda:0`. Tensors on it hold a CPU tensor but do not show it:
NumPy cannot read them, an operation that mixes them with tensors of the CPU raises an error, and what is copied between
host and device is counted. So tests of a machine without a GPU find tensors on the wrong device, and copies in every
step that nobody intended.

What it cannot show: the kernels of CUDA and cuDNN themselves, with their rounding and the layouts that they require;
memory; streams, so races; and autocast's list of operations, which is the CPU's here. Operations that torch's C++ code
composes of others see a CPU tensor, so they may choose another composition than on a device.
"""

import contextlib
import functools
import threading
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn
from torch.utils import _device

DEVICE = torch.device("cuda", 0)
TO_DEVICE, TO_HOST = "to device", "to host"
aten = torch.ops.aten


class Transfer(NamedTuple):
    """Copy between host and device.

    Attributes:
        direction: `TO_DEVICE` or `TO_HOST`.
        size: bytes.
        operation: name of the operation.
    """

    direction: str
    size: int
    operation: str


@dataclass
class Report:
    """What happened on the device.

    Attributes:
        transfers: copies between host and device.
        waits: operations whose result has a shape that the host must wait for, such as `nonzero`.
        operations: number of calls of each operation on the device.
    """

    transfers: list[Transfer] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    operations: Counter = field(default_factory=Counter)

    def sizes(self, direction):
        """Return the bytes of each copy in a direction."""
        return [transfer.size for transfer in self.transfers if transfer.direction == direction]

    @property
    def to_device(self):
        """Bytes of each copy to the device."""
        return self.sizes(TO_DEVICE)

    @property
    def to_host(self):
        """Bytes of each copy to the host."""
        return self.sizes(TO_HOST)


class StandIn:
    """The device: its reports, its random numbers, and the graph that it captures."""

    kind, counts_copies = "stand-in", True

    def __init__(self):
        self.report = Report()
        self._reports = [self.report]
        self.random_state = torch.Generator().manual_seed(0).get_state()
        self._lock = threading.RLock()
        self._thread = threading.local()

    @property
    def capturing(self):
        """Operations of the graph that this thread captures; None if it captures none."""
        return getattr(self._thread, "capturing", None)

    @capturing.setter
    def capturing(self, operations):
        self._thread.capturing = operations

    @contextlib.contextmanager
    def measured(self):
        """Yield a report of what happens in the block."""
        report = Report()
        self._reports.append(report)
        try:
            yield report
        finally:
            self._reports.remove(report)

    def transferred(self, direction, size, operation):
        """Record a copy, which is impossible while a graph is captured."""
        if self.capturing is not None:
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {operation}")
        for report in self._reports:
            report.transfers.append(Transfer(direction, size, operation))

    def waited(self, operation):
        """Record that the host waits for the device, which is impossible while a graph is captured."""
        if self.capturing is not None:
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {operation}")
        for report in self._reports:
            report.waits.append(operation)

    def ran(self, operation):
        """Record an operation."""
        for report in self._reports:
            report.operations[operation] += 1

    @contextlib.contextmanager
    def own_random_numbers(self):
        """Make torch's random numbers those of the device inside the block."""
        with self._lock:
            of_host = torch.get_rng_state()
            torch.set_rng_state(self.random_state)
            try:
                yield
            finally:
                self.random_state = torch.get_rng_state()
                torch.set_rng_state(of_host)


_current: list[StandIn] = []


def _device_now():
    assert _current, "a tensor of the stand-in is used after its block"
    return _current[-1]


class DeviceTensor(torch.Tensor):
    """Tensor on the stand-in, which holds a tensor of the CPU.

    For torch's C++ code it is a tensor of the CPU without memory, because the autograd of a build without CUDA has no
    queue for CUDA devices.
    """

    @staticmethod
    def __new__(cls, inner, requires_grad=False):
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device="cpu",
            requires_grad=requires_grad,
        )
        tensor.inner = inner
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    device = property(lambda _: DEVICE)
    is_cuda = property(lambda _: True)
    is_cpu = property(lambda _: False)

    def get_device(self):
        return DEVICE.index

    def numpy(self, **_):
        raise TypeError(
            f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )

    def __array__(self, *_, **__):
        return self.numpy()

    def tolist(self):
        return _to_host(self, "tolist").tolist()

    def to(self, *args, **kwargs):
        return _to(self, *args, **kwargs)

    def cpu(self, **_):
        return _ToHost.apply(self, "cpu")

    def cuda(self, *_, **__):
        return self

    def new_tensor(self, data, **options):
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **options})

    def untyped_storage(self):
        return self.inner.untyped_storage()

    def data_ptr(self):
        return self.inner.data_ptr()

    def __reduce_ex__(self, protocol):
        return _to_host(self.detach(), "pickle").__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        copied = self.detach().clone()
        if isinstance(self, nn.Parameter):
            copied = nn.Parameter(copied)
        return memo.setdefault(id(self), copied.requires_grad_(self.requires_grad))

    def __repr__(self):
        return f"DeviceTensor({self.inner})"


def _size(tensor):
    return tensor.numel() * tensor.element_size()


def _to_host(tensor, operation):
    _device_now().transferred(TO_HOST, _size(tensor), operation)
    return tensor.inner.detach().clone()


def _on_device(tensor, operation):
    _device_now().transferred(TO_DEVICE, _size(tensor), operation)
    return DeviceTensor(tensor.detach().clone())


class _ToHost(torch.autograd.Function):
    @staticmethod
    def forward(_, tensor, operation):
        return _to_host(tensor, operation)

    @staticmethod
    def backward(_, gradient):
        return _on_device(gradient, "backward of a copy"), None


class _ToDevice(torch.autograd.Function):
    @staticmethod
    def forward(_, tensor, operation):
        return _on_device(tensor, operation)

    @staticmethod
    def backward(_, gradient):
        return _to_host(gradient, "backward of a copy"), None


def is_cuda(device):
    """Return whether torch's name or object of a device means CUDA."""
    return device is not None and not isinstance(device, int) and torch.device(device).type == "cuda"


_READING = {"_local_scalar_dense", "item", "is_nonzero", "equal", "allclose"}
"""Operations whose result is a number on the host."""
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
_RESHAPED = "an operation changed the shape of its argument in place, which the stand-in does not support"


def _leaves(given):
    """Yield the values in nested lists, tuples and dictionaries."""
    if isinstance(given, dict):
        given = given.values()
    elif not isinstance(given, (list, tuple)):
        yield given
        return
    for item in given:
        yield from _leaves(item)


def _mapped(given, kind, change):
    """Return nested lists, tuples and dictionaries with the values of a type changed."""
    if isinstance(given, dict):
        return {name: _mapped(item, kind, change) for name, item in given.items()}
    if isinstance(given, (list, tuple)):
        return type(given)([_mapped(item, kind, change) for item in given])
    return change(given) if isinstance(given, kind) else given


def _inner(tensor):
    return tensor.inner


def without_wrappers(given):
    """Return nested lists, tuples and dictionaries with plain tensors, for code that compares types.

    Tensors on a CUDA device have the type of those on the CPU; the stand-in's have not. Nothing is counted.
    """
    return _mapped(given, DeviceTensor, _inner)


def _run(func, args, kwargs):
    """Compute an operation with tensors of the device."""
    device, name = _device_now(), func.overloadpacket.__name__
    device.ran(name)
    if name == "copy_" and isinstance(args[0], DeviceTensor) != isinstance(args[1], DeviceTensor):
        return _copy_between(device, *args[:2])
    _check_devices(device, name, args, kwargs)
    wrappers = {id(leaf.inner): leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, DeviceTensor)}
    # a view of a tensor from outside inference mode is no tensor of inference mode either
    is_plain_view = func.is_view and not any(wrapper.is_inference() for wrapper in wrappers.values())
    args, kwargs = _mapped((args, kwargs), DeviceTensor, _inner)
    seeded = torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None
    with device.own_random_numbers() if seeded else contextlib.nullcontext():
        results = func(*args, **kwargs)
    if device.capturing is not None:
        device.capturing.append((func, args, kwargs, results))
    for inner, wrapper in ((wrapper.inner, wrapper) for wrapper in wrappers.values()):
        assert inner.shape == wrapper.shape, f"{name}: {_RESHAPED}"
    if name in _READING:
        device.transferred(TO_HOST, args[0].element_size(), name)
    elif _has_unknown_shape(func, name, args, kwargs):
        device.waited(name)
    mode = torch.inference_mode(mode=False) if is_plain_view else contextlib.nullcontext()
    with mode:
        return _mapped(
            results,
            torch.Tensor,
            lambda result: wrappers[id(result)] if id(result) in wrappers else DeviceTensor(result),
        )


def _copy_between(device, target, source):
    if isinstance(target, DeviceTensor):
        device.transferred(TO_DEVICE, _size(source), "copy_")
        target.inner.copy_(source)
    else:
        device.transferred(TO_HOST, _size(source), "copy_")
        target.copy_(source.inner)
    return target


def _check_devices(device, name, args, kwargs):
    """Raise the error of CUDA if tensors of the CPU and of the device are mixed; count indices that are copied."""
    indices = ()
    if name in _INDEXING and isinstance(args[0], DeviceTensor):  # indices may be on the CPU
        indices, args = args[1], (args[0], *args[2:])
    leaves = [*_leaves((args, kwargs))]
    wrong = [
        leaf
        for leaf in leaves
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, DeviceTensor) and leaf.ndim
    ]
    if wrong:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cpu and "
            f"{DEVICE}! (when checking arguments for {name}; on the cpu: {[list(t.shape) for t in wrong]})"
        )
    for leaf in leaves:
        if isinstance(leaf, _PLAIN_GENERATOR):
            _check_generator(leaf, "cuda", name)
    for index in indices:
        if isinstance(index, torch.Tensor) and not isinstance(index, DeviceTensor):
            device.transferred(TO_DEVICE, _size(index), f"index of {name}")


def _check_generator(generator, kind, name):
    if generator is None:
        return
    found = "cuda" if generator._cdata in _generators else "cpu"
    if found != kind:
        raise RuntimeError(f"Expected a '{kind}' device type for generator but found '{found}' ({name})")


def _has_unknown_shape(func, name, args, kwargs):
    if name in _INDEXING:
        indices = [index for index in args[1] if index is not None]
        return any(index.dtype in {torch.bool, torch.uint8} for index in indices)
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    return torch.Tag.dynamic_output_shape in func.tags


_FACTORIES = (
    "arange",
    "empty",
    "empty_like",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "randperm",
    "zeros",
    "zeros_like",
)
_CONVERSIONS = ("as_tensor", "tensor")


def _factory(original, name):
    @functools.wraps(original)
    def make(*args, **kwargs):
        given, generator = kwargs.get("device"), kwargs.get("generator")
        if not is_cuda(given):
            if given is not None and args and isinstance(args[0], DeviceTensor):
                return original(args[0].inner, *args[1:], **kwargs)
            if given is not None:
                _check_generator(generator, "cpu", name)
            return original(*args, **kwargs)
        kwargs["device"] = "cpu"
        _check_generator(generator, "cuda", name)
        requires_grad = kwargs.pop("requires_grad", False)
        device = _device_now()
        device.ran(name)
        args = _mapped(args, DeviceTensor, _inner)
        seeded = name.startswith("rand") and generator is None
        with device.own_random_numbers() if seeded else contextlib.nullcontext():
            made = original(*args, **kwargs)
        if device.capturing is not None:
            device.capturing.append((original, args, kwargs, made))
        return DeviceTensor(made).requires_grad_(requires_grad)

    return make


def _conversion(original, name):
    @functools.wraps(original)
    def convert(data, *args, **kwargs):
        given = kwargs.get("device")
        if isinstance(data, torch.Tensor) and (isinstance(data, DeviceTensor) or is_cuda(given)):
            data = data.clone() if name == "tensor" else data
            return data.to(given or data.device, kwargs.get("dtype") or data.dtype)
        if not is_cuda(given):
            return original(data, *args, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        host = original(data, *args, **(kwargs | {"device": "cpu"}))
        return _on_device(host, name).requires_grad_(requires_grad)

    return convert


def _to(tensor, *args, **kwargs):
    """`Tensor.to` for tensors of the CPU and of the device."""
    copy, other = kwargs.pop("copy", False), kwargs.pop("other", args[0] if args else None)
    if isinstance(other, torch.Tensor):
        args, kwargs = (), {"device": other.device, "dtype": other.dtype}
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    dtype = dtype or tensor.dtype
    here = isinstance(tensor, DeviceTensor)
    if device is None or is_cuda(device) == here:
        return _PLAIN_TO(tensor, dtype, copy=copy)
    if here:
        return _ToHost.apply(_PLAIN_TO(tensor, dtype), "to")  # converted first, as CUDA does
    return _ToDevice.apply(_PLAIN_TO(tensor, dtype), "to")


_PLAIN_TO = torch._C.TensorBase.to


def _plain_to(tensor, *args, **kwargs):
    if kwargs.get("device") is not None or (args and not isinstance(args[0], torch.dtype)):
        return _to(tensor, *args, **kwargs)
    return _PLAIN_TO(tensor, *args, **kwargs)


def _give_new_memory(module):
    """Copy the parameters of recurrent layers, as torch does for cuDNN at every move, even to the same device."""
    for part in module.modules():
        if isinstance(part, nn.RNNBase):
            for param in part.parameters():
                param.inner = param.inner.detach().clone()


def _module_to(original):
    @functools.wraps(original)
    def to(module, *args, **kwargs):
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        tensors = [*module.parameters(), *module.buffers()]
        if dtype is None and all(isinstance(tensor, DeviceTensor) == is_cuda(device) for tensor in tensors):
            if is_cuda(device):
                _give_new_memory(module)
            return module
        was = torch.__future__.get_swap_module_params_on_conversion()
        # parameters keep their identities, as when torch moves them to a CUDA device
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return original(module, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(was)

    return to


_PLAIN_GENERATOR = torch.Generator
_generators = weakref.WeakValueDictionary()
"""Generators of the device by the address of their state: torch wraps them in other objects."""


class _Generator(torch.Generator):
    """Generator that names its device."""

    def __new__(cls, device="cpu"):
        generator = super().__new__(cls, device="cpu")
        if is_cuda(device):
            _generators[generator._cdata] = generator
        return generator

    def __init__(self, device="cpu"):
        pass

    @property
    def device(self):
        return DEVICE if self._cdata in _generators else torch.device("cpu")


class _Stream:
    """Stream; the stand-in has one, in which every operation has ended."""

    def wait_stream(self, _):
        pass

    def synchronize(self):
        pass


class _Graph:
    """Captured graph: its replay repeats the captured operations with the same memory, and nothing else."""

    def __init__(self):
        self.operations = []

    def replay(self):
        """Repeat the operations; results that are no views are written where the capture had them."""
        for func, args, kwargs, results in self.operations:
            given = {leaf.untyped_storage().data_ptr() for leaf in _leaves((args, kwargs)) if _is(leaf)}
            new = func(*args, **kwargs)
            for old, changed in zip(filter(_is, _leaves(results)), filter(_is, _leaves(new)), strict=True):
                if old.untyped_storage().data_ptr() not in given:
                    old.copy_(changed)


def _is(leaf):
    return isinstance(leaf, torch.Tensor)


@contextlib.contextmanager
def _captured(graph, **_):
    device = _device_now()
    device.capturing = graph.operations
    try:
        yield
    finally:
        device.capturing = None


def _set_random_state(state, _=None):
    _device_now().random_state = state.clone()


def _seed(seed):
    _device_now().random_state = torch.Generator().manual_seed(seed).get_state()


@contextlib.contextmanager
def _nothing(*_, **__):
    yield


_ANSWERS = {
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "get_device_name": lambda *_: "stand-in",
    "get_device_capability": lambda *_: (8, 0),
    "is_bf16_supported": lambda *_: True,
    "set_device": lambda *_: None,
    "synchronize": lambda *_: None,
    "empty_cache": lambda: None,
    "manual_seed": _seed,
    "manual_seed_all": _seed,
    "get_rng_state": lambda *_: _device_now().random_state.clone(),
    "set_rng_state": _set_random_state,
    "device": _nothing,
    "stream": _nothing,
    "Stream": _Stream,
    "current_stream": lambda *_: _Stream(),
    "CUDAGraph": _Graph,
    "graph": _captured,
}
"""What `torch.cuda` offers inside the block."""


def _autocast(original):
    @functools.wraps(original)
    def autocast(device_type, dtype=None, **options):
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.bfloat16
        return original(device_type, dtype, **options)

    return autocast


def _grouped(original):
    @functools.wraps(original)
    def group(lists, with_indices=False):
        groups = original(lists, with_indices)
        assert len({isinstance(tensor, DeviceTensor) for tensor in lists[0]}) < 2, "tensors of two devices"
        if not isinstance(next(iter(lists[0]), None), DeviceTensor):
            return groups
        return {(DEVICE, dtype): group for (_, dtype), group in groups.items()}

    return group


_MISSING = object()

KINDS = ("stand-in", "cuda") if torch.cuda.is_available() else ("stand-in",)
"""CUDA devices to test: this stand-in, and the machine's own if it has one."""


class RealDevice:
    """The machine's own CUDA device, on which no copies are counted."""

    kind, counts_copies = "cuda", False

    @contextlib.contextmanager
    def measured(self):
        """Yield an empty report."""
        yield Report()


@contextlib.contextmanager
def cuda_device(kind):
    """Offer the CUDA device of a kind in the block; yield a `StandIn` or a `RealDevice`."""
    with stand_in() if kind == "stand-in" else contextlib.nullcontext(RealDevice()) as device:
        yield device


@contextlib.contextmanager
def stand_in():
    """Offer a CUDA device in the block, to all threads; yield the `StandIn`."""
    _device._device_constructors()  # cached: torch must not find the functions of the block
    with contextlib.ExitStack() as stack:

        def patch(owner, name, value):
            stack.callback(_restore, owner, name, vars(owner).get(name, _MISSING))
            setattr(owner, name, value)

        for name in _FACTORIES:
            patch(torch, name, _factory(getattr(torch, name), name))
        for name in _CONVERSIONS:
            patch(torch, name, _conversion(getattr(torch, name), name))
        for name, value in _ANSWERS.items():
            patch(torch.cuda, name, value)
        # which names the device that torch's C++ code sees
        name = "_group_tensors_by_device_and_dtype"
        patch(torch._C, name, _grouped(getattr(torch._C, name)))
        patch(torch, "Generator", _Generator)
        patch(torch, "autocast", _autocast(torch.autocast))
        patch(torch.Tensor, "to", _plain_to)
        patch(torch.Tensor, "cuda", lambda tensor, *_, **__: _to(tensor, DEVICE))
        patch(nn.Module, "to", _module_to(nn.Module.to))
        patch(torch.backends.cudnn, "is_acceptable", lambda _: False)
        stack.callback(setattr, torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
        device = StandIn()
        _current.append(device)
        stack.callback(_current.remove, device)
        yield device


def _restore(owner, name, value):
    if value is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, value)

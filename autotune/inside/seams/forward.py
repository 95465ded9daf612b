"""The seam at the outermost module call: precision, memory layout and compilation of the model.

A call is outermost if no other module call surrounds it. It is the place where a program hands a
batch to its model, so what is to act on the model as a whole acts there. A root is a module that
was called this way and has parameters.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from autotune.inside.data.nested import map_tensors
from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.listener import Listener, Root
from autotune.inside.seams.autocast import autocast

# torch's default for one program: torch._dynamo.config.recompile_limit, before torch 2.7
# cache_size_limit
RECOMPILES = 8
Call = Callable[..., Any]


_UNKNOWN = Root(-1)


def _within_a_frame(module: nn.Module) -> Call:
    """Return what ``Module.compile()`` compiles; of torch's own classes, in a frame of ours.

    torch 2.6 to 2.11 compile nothing of a model that is an ``nn.Linear`` or another class of torch,
    because it skips frames in torch's own files; ``torch.compile(model)`` adds a frame, too.
    """
    call: Call = module._call_impl  # noqa: SLF001 - as Module.compile() does
    if not type(module).__module__.startswith("torch."):
        return call

    @wraps(call)
    def framed(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return framed


class _Regions(dict[int, torch.autocast]):
    """The region of autocast of each thread, by its id.

    It is entered again and again, because to make one takes as long as a call.
    """

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self._options = device, dtype

    def __missing__(self, thread: int) -> torch.autocast:
        region = self[thread] = autocast(*self._options)
        return region


class _Nested(threading.local):
    """Whether this thread is within an outermost call of a model."""

    within = False


_nested = _Nested()


class ForwardSeam(Seam):
    """Acts around the program's outermost module calls.

    At first ``nn.Module.__call__`` is wrapped, to see which modules the program calls; a nested
    call then costs one comparison. After the third step ``narrow()`` leaves only the classes of the
    roots wrapped, so that nested modules, and what ``torch.compile`` traces of them, are PyTorch's
    own again. A call within a backward pass is a recomputation by checkpointing and never counts as
    outermost.

    ``Steering`` calls the methods that choose, on the main thread between two steps. The wrapped
    call runs on the thread on which the program calls a module.

    Attributes:
        most_parameters: The largest number of parameters of any root that was called so far.
        on_root: Called with each root before its first call.
    """

    def __init__(
        self,
        listener: Listener | None,
        optimizers: Callable[[], Iterable[Optimizer]],
        route: Callable[[nn.Module, tuple[Any, ...]], nn.Module] | None = None,
    ) -> None:
        self._listener = listener
        self._route = route
        self._optimizers = optimizers
        self._patches = Patches()
        self._roots: WeakKeyDictionary[nn.Module, Root | None] = WeakKeyDictionary()
        self._autocast: _Regions | None = None
        self._channels_last = False
        self._compile_options: tuple[str | None, bool | None] = (None, None)  # mode, dynamic
        self._compiled: WeakKeyDictionary[nn.Module, dict[Any, Any]] = WeakKeyDictionary()
        # The roots since ``narrow()`` that have not been trained; None before it
        self._late: WeakSet[nn.Module] | None = None
        self.most_parameters = 0
        self.on_root: Callable[[nn.Module], None] = lambda _: None

    @property
    def roots(self) -> dict[nn.Module, Root]:
        """The outermost modules with parameters that were called so far."""
        return {module: root for module, root in self._roots.items() if root is not None}

    def set_autocast(self, dtype: torch.dtype | None, device: str = "cpu") -> None:
        """Run the model under autocast to *dtype*, and convert its outputs to fp32 for the loss."""
        self._autocast = None if dtype is None else _Regions(device, dtype)

    def set_channels_last(self, *, enabled: bool) -> None:
        """Store 4-D weights, their optimizer state and 4-D inputs in NHWC order, or not.

        Acts at once on the roots that are known, and on others when they are first called.
        """
        if enabled != self._channels_last:
            self._channels_last = enabled
            for module in self.roots:
                self._lay_out(module)

    def compile_in(self, *, mode: str | None, dynamic: bool | None = None) -> None:
        """Choose the mode of ``torch.compile``; None leaves the model eager.

        ``narrow()`` compiles the roots. Afterwards a choice acts at once: the calls of all modes
        stay, and share the weights.

        Args:
            dynamic: Compile for any shape (True), or anew for each (False); None leaves that to
                torch.
        """
        self._compile_options = mode, dynamic
        if self._late is not None:
            self._compile(self.roots)

    def allow_recompiles(self) -> None:
        """Raise torch's limit of recompilations for the next config of this process.

        Each config may need different code. Once the limit is reached, torch would silently run the
        model without compiling it. Each config gets the number that torch allows a whole program.
        """
        if self._compile_options[0] and (config := sys.modules.get("torch._dynamo.config")):
            limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
            setattr(config, limit, getattr(config, limit) + RECOMPILES)

    @property
    def is_needed(self) -> bool:
        """Whether a chosen setting acts at module calls."""
        return self._autocast is not None or self._channels_last or bool(self._compile_options[0])

    def install(self, around: Callable[[Call], Call] = lambda call: call) -> None:
        """Wrap all module calls, or after ``narrow()`` only those of the roots' classes.

        Args:
            around: Returns what is called instead of a wrapped call, such as one that takes time.
        """
        self._patches.undo()
        for cls in {type(m) for m in self.roots} if self._late is not None else {nn.Module}:
            self._patches.replace(cls, "__call__", around(self._wrapped(cls.__call__)))

    def narrow(self) -> None:
        """Keep only the classes of the known roots wrapped, and compile the roots if so chosen.

        Called after the third step, when the roots are taken to be known. Later calls do nothing.
        """
        if self._late is not None:
            return
        self._late = WeakSet()
        self.install()
        if self._compile_options[0]:
            self._compile(self.roots)

    def _compile(self, roots: Iterable[nn.Module]) -> None:
        for module in roots:
            calls, chosen = self._compiled.setdefault(module, {}), self._compile_options
            mode, dynamic = chosen
            if chosen not in calls:
                call = _within_a_frame(module)
                calls[chosen] = mode and torch.compile(call, mode=mode, dynamic=dynamic)
            # Set past __setattr__: Fabric's wrappers would give it to what they wrap as well,
            # and a wrapped model that calls its wrapper never returns.
            vars(module)["_compiled_call_impl"] = calls[chosen]

    def _wrapped(self, original: Call) -> Call:
        seam, nested = self, _nested

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if nested.within or torch.compiler.is_compiling() or is_in_backward():
                return original(module, *args, **kwargs)
            if torch._C._get_tracing_state():  # noqa: SLF001 - graphs compare by our names, too
                return original(module, *args, **kwargs)
            nested.within = True
            try:
                output = seam._outermost(original, module, *args, **kwargs)
                if seam._compile_options[0] == "reduce-overhead":
                    # CUDA graphs write the next output into the same memory
                    output = map_tensors(torch.clone, output)
                return output
            finally:
                nested.within = False

        return call

    def _outermost(self, original: Call, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        root = self._root_of(module)
        if root is None:
            return original(module, *args, **kwargs)
        inputs = args or tuple(kwargs.values())
        if self._listener is not None:
            self._listener.forward_called(root, inputs)
        return self._under_settings(original, module, inputs, args, kwargs)

    def _under_settings(
        self,
        original: Call,
        module: nn.Module,
        inputs: tuple[Any, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if self._channels_last:
            args, kwargs = map_tensors(_to_channels_last, (args, kwargs))
        called = module if self._route is None else self._route(module, inputs)
        if called is not module:  # a wrapper, which calls the module within it
            original, module = type(called).__call__, called
        if self._autocast is None:
            return original(module, *args, **kwargs)
        with self._autocast[get_ident()]:
            output = original(module, *args, **kwargs)
        return map_tensors(_to_fp32, output)

    def _root_of(self, module: nn.Module) -> Root | None:
        known = self._roots.get(module, _UNKNOWN)
        if known is not _UNKNOWN:
            if self._late and module in self._late and torch.is_grad_enabled():
                self._late.discard(module)
                if self._compile_options[0]:
                    self._compile([module])
            return known
        parameters = list(module.parameters())
        if any(map(is_lazy, parameters)):
            return None  # a lazy module knows its parameters after its first call
        root = Root(sum(p.numel() for p in parameters)) if parameters else None
        self._roots[module] = root
        if root is not None:
            self.on_root(module)
            self.most_parameters = max(self.most_parameters, root.parameters)
            if self._channels_last:
                self._lay_out(module)
            if self._late is not None:
                self._late.add(module)
                return self._root_of(module)
        return root

    def _lay_out(self, module: nn.Module) -> None:
        layout = torch.channels_last if self._channels_last else torch.contiguous_format
        states = {p: s for o in self._optimizers() for p, s in o.state.items()}
        for parameter in module.parameters():
            if parameter.dim() != 4 or is_part_of_more(parameter):
                continue  # tensors that share its memory would keep the old memory
            parameter.data = parameter.data.to(memory_format=layout)
            if parameter.grad is not None:
                parameter.grad = parameter.grad.to(memory_format=layout)
            state = states.get(parameter, {})
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    state[key] = value.to(memory_format=layout)


def is_part_of_more(tensor: torch.Tensor) -> bool:
    """Return whether a tensor lies in a storage that is larger than the tensor itself."""
    try:
        with torch._C.DisableTorchFunction():  # noqa: SLF001 - else tensor subclasses run code
            storage = tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # sparse, meta or wrapper tensors
        return False
    return bool(storage.data_ptr()) and storage.nbytes() > tensor.nbytes


def is_in_backward() -> bool:
    """Return whether this thread is running part of a backward pass.

    Autograd runs parts of it on threads that it starts itself.
    """
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001


def is_transforming() -> bool:
    """Return whether this thread is inside a transform of torch.func, such as grad or vmap."""
    return torch._C._functorch.peek_interpreter_stack() is not None  # noqa: SLF001


def _to_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() != 4 or is_transforming():  # vmap has no such layout
        return tensor
    return tensor.to(memory_format=torch.channels_last)  # contiguous() leaves one channel as it is


def _to_fp32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in {torch.bfloat16, torch.float16} else tensor

"""What lets SGLang 0.5.23 start on a machine without a GPU. For tests only: Python runs it before the server.

It changes no arithmetic: the server scores with torch's own CPU operators.
"""

import importlib.abc
import importlib.machinery
import sys
import types

import torch

# torchvision's wheel is a CUDA build: its operators cannot be loaded, but it describes two of them as it is imported.
_operators = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


class _Kernels(types.ModuleType):
    """`sgl_kernel` and its parts: imported on every machine, called on GPUs and on CPUs with AMX."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*_arguments, **_options):
            raise RuntimeError(f"{self.__name__}.{name} was called; there is no such kernel on this CPU")

        return missing


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, _path, _target=None):
        # SGLang has its own stand-in for the scalar types where they cannot be imported.
        is_ours = fullname.partition(".")[0] == "sgl_kernel" and fullname != "sgl_kernel.scalar_type"
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if is_ours else None

    def create_module(self, spec):
        return _Kernels(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Finder())


def _without_pinning(make):
    """Pinned memory needs an accelerator, and SGLang asks for it in its LoRA layers (sgl-project/sglang#31894)."""

    def made(*arguments, pin_memory=False, **options):
        return make(*arguments, **options)

    return made


if not torch.accelerator.is_available():
    for _name in ("empty", "zeros", "ones", "full", "tensor", "arange", "empty_like", "zeros_like"):
        setattr(torch, _name, _without_pinning(getattr(torch, _name)))
    torch.Tensor.pin_memory = lambda self, *_arguments, **_options: self

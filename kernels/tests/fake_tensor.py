"""Tensors of any dtype, layout and device to offer a library that must refuse them: DLPack over host memory.

What a library may not touch before it has checked everything can be claimed to stand on a device that is not there.
Layout of the structs: dlpack.h, version 0.8.
"""

from __future__ import annotations

import ctypes

CPU, CUDA = 1, 2
DTYPES = {"bf16": (4, 16), "f16": (2, 16), "f32": (2, 32), "u8": (1, 8), "i32": (0, 32), "i8": (0, 8), "f64": (2, 64)}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p))]


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_ignore = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)


class Fake:
    """A tensor that exists as far as its description goes."""

    def __init__(self, dtype, shape, *, strides=None, device=(CUDA, 0), offset=0, memory=None):
        self.memory = memory or ctypes.create_string_buffer(1 << 16)
        start = -(-ctypes.addressof(self.memory) // 256) * 256
        if strides is None:
            strides = [1] * len(shape)
            for i in reversed(range(len(shape) - 1)):
                strides[i] = strides[i + 1] * shape[i + 1]
        integers = ctypes.c_int64 * len(shape)
        self._kept = integers(*shape), integers(*strides)
        code, bits = DTYPES[dtype]
        self._managed = _Managed(
            _Tensor(start + offset, *device, len(shape), code, bits, 1, self._kept[0], self._kept[1], 0), None, _ignore
        )
        self.device = device

    def __dlpack__(self, **_):
        return _capsule(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self):
        return self.device

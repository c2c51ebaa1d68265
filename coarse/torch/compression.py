"""Compression of summed tensors to half as many bytes, or none; each rank converts before and after."""

from typing import ClassVar

import torch


class NoCompression:
    """Compression that leaves tensors as they are."""

    wire_dtype: ClassVar[torch.dtype | None] = None

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """Return the tensor that travels, and the type that `decompress` needs."""
        if isinstance(tensor, torch.Tensor) and cls.narrows(tensor.dtype):  # what is no tensor is refused later
            return tensor.to(cls.wire_dtype), tensor.dtype
        return tensor, None

    @classmethod
    def decompress(cls, tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        """Return the tensor in the type that it had."""
        return tensor if dtype is None else tensor.to(dtype)

    @classmethod
    def narrows(cls, dtype: torch.dtype) -> bool:
        """Return whether tensors of a type travel in a narrower one."""
        return cls.wire_dtype is not None and dtype in (torch.float32, torch.float64)


class Float16Compression(NoCompression):
    """Compression of float32 and float64 to float16: 11 significant bits, magnitudes to 65,504.

    Larger magnitudes become infinite.
    """

    wire_dtype = torch.float16


class BFloat16Compression(NoCompression):
    """Compression of float32 and float64 to bfloat16: 8 significant bits, the range of float32."""

    wire_dtype = torch.bfloat16


class Compression:
    """Choices of `compression`; devices add halves in float32 and round each sum once."""

    none = NoCompression
    fp16 = Float16Compression
    bf16 = BFloat16Compression


def checked_compression(compression: object) -> type[NoCompression]:
    """Return the compression.

    Raises:
        TypeError: it is none of coarse's.
    """
    if isinstance(compression, type) and issubclass(compression, NoCompression):
        return compression
    raise TypeError(
        f"compression must be Compression.none, fp16 or bf16 of coarse.torch, got {compression!r}; leave it out to "
        "send tensors as they are"
    )

"""The paged KV pool: keys and values of all blocks in one tensor, block-major.

One block is one contiguous run of bytes over all layers, so that it can be stored elsewhere and restored in one copy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backends.worker.model.model_config import ModelConfig


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block of `block_size` tokens."""
    return config.num_layers * 2 * block_size * config.num_kv_heads * config.head_dim * dtype.itemsize


class KvPool:
    """Keys and values, `data` [n_blocks, n_layers, 2, block_size, kv_heads, head_dim].

    It starts at zero and stays finite: attention reads slots beyond a sequence's end and weighs them with zero.
    """

    def __init__(
        self, config: ModelConfig, *, n_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (n_blocks, config.num_layers, 2, block_size, config.num_kv_heads, config.head_dim)
        self.data = torch.zeros(shape, dtype=dtype, device=device)
        self.n_blocks = n_blocks
        self.block_size = block_size
        self.block_bytes = block_bytes(config, block_size, dtype)
        self.n_layers = config.num_layers
        self.kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        # Every token's keys in every layer one under the other, and every head's: a layer's begin at an offset.
        self._tokens = self.data.view(-1, config.num_kv_heads * config.head_dim)
        self._heads = self.data.view(-1, config.head_dim)

    def tokens(self, layer: int, part: int) -> Tensor:
        """Rows [any, kv_heads × head_dim]: of block b the token t is in row b × n_layers × 2 × block_size + t.

        `part` is 0 for keys, 1 for values. What is written to a row is in the pool.
        """
        return self._tokens[(layer * 2 + part) * self.block_size :]

    def heads(self, layer: int, part: int) -> Tensor:
        """Rows [any, head_dim]: those of `tokens`, each cut into its heads."""
        return self._heads[(layer * 2 + part) * self.block_size * self.kv_heads :]

    def block(self, index: int) -> Tensor:
        """A view of one block's bytes [block_bytes], uint8, contiguous: what is written to it is in the pool."""
        return self.data[index].view(-1).view(torch.uint8)

    def read_block(self, index: int) -> Tensor:
        """A copy of one block's bytes in the CPU's memory [block_bytes], uint8."""
        return self.block(index).to("cpu", copy=True)

    def write_block(self, index: int, content: Tensor) -> None:
        """Put back what `read_block` gave [block_bytes], uint8. Raises ValueError for another size."""
        if content.numel() != self.block_bytes or content.dtype != torch.uint8:
            raise ValueError(f"a block is {self.block_bytes} bytes; given: {content.numel()} of {content.dtype}")
        self.block(index).copy_(content)

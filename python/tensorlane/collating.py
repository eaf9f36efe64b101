"""Batches of torch's DataLoader: what comes by one read, or rows that came one by one."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from . import dtypes
from .mutable import Rows
from .tensor import Tensor


def collate(batch: Any) -> Any:
    """A batch for torch, as the `collate_fn` of a DataLoader: tensors of torch, in dicts or TensorDicts as the data set has them.

    What a set or a tensor of this package gave for the rows of a batch is the batch. Rows that came one by one are stacked.
    """
    if isinstance(batch, (Rows, Tensor)):
        return batch.torch()
    if not isinstance(batch, Sequence):
        return batch
    torch = dtypes.torch()
    rows = [row.torch() if isinstance(row, (Rows, Tensor)) else row for row in batch]
    if rows and isinstance(rows[0], Mapping) and not isinstance(rows[0], dict):
        # TensorDicts.
        return torch.stack(rows)
    return torch.utils.data.default_collate(rows)

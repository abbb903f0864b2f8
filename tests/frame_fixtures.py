"""Frames as a store should not give them back."""

from __future__ import annotations

import random

from cache.kv_codec import HEADER_BYTES


def mutated(frame: bytes, other: bytes, choose: random.Random) -> bytes:
    """One way in which a store could give back something else."""
    changed = bytearray(frame)
    at = choose.randrange(len(frame))
    match choose.randrange(8):
        case 0:
            for _ in range(choose.randint(1, 8)):
                changed[choose.randrange(len(changed))] = choose.randrange(256)
        case 1:
            changed[at : at + choose.randint(1, 64)] = choose.randbytes(choose.randint(0, 64))
        case 2:
            del changed[at:]
        case 3:
            changed[at:] = other[at:]
        case 4:
            changed[:at] = other[:at]
        case 5:
            changed[at : at + 8] = choose.choice([bytes(8), b"\xff" * 8, (1 << 63).to_bytes(8, "little")])
        case 6:
            changed[at:at] = changed[at : at + choose.randint(1, 300)]
        case _:
            changed = bytearray(choose.randbytes(choose.choice([0, 1, HEADER_BYTES, len(frame)])))
    return bytes(changed)

"""End of NIXL over UCX: `nixl_agent.py hold|read BYTES`, with UCX_TLS=tcp. Memory of both ends is registered; the reader reads."""

from __future__ import annotations

import base64
import os
import sys
import time
from importlib.metadata import version

from answering import serve
from payload import digest, forget, pattern, touch

import numpy as np

from nixl_cu12._api import nixl_agent, nixl_agent_config


class Agent:
    """Holds a tensor, or reads from one that another agent holds."""

    def __init__(self, role: str, nbytes: int):
        # Progress by a thread, no listener.
        self.agent = nixl_agent(role, nixl_agent_config(True, False, 0, backends=["UCX"]))
        self.memory = pattern(nbytes) if role == "hold" else np.ones(nbytes, np.uint8)
        self.agent.register_memory([(self.memory.ctypes.data, nbytes, 0, "")], "DRAM")
        self.part = self.memory
        self.remote = 0

    def place(self) -> tuple[str, int]:
        """Word for another agent: who this one is, and where its memory is."""
        return base64.b64encode(self.agent.get_agent_metadata()).decode(), self.memory.ctypes.data

    def meet(self, metadata: str, remote: int) -> None:
        """Makes another agent known."""
        self.agent.add_remote_agent(base64.b64decode(metadata))
        self.remote = remote

    def get(self, nbytes: int) -> float:
        """Seconds of a read, every page of which was read here."""
        self.part = self.memory[:nbytes]
        forget(self.part)
        began = time.perf_counter()
        local = self.agent.get_xfer_descs([(self.memory.ctypes.data, nbytes, 0)], "DRAM")
        remote = self.agent.get_xfer_descs([(self.remote, nbytes, 0)], "DRAM")
        handle = self.agent.initialize_xfer("READ", local, remote, "hold")
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
        touch(self.part)
        took = time.perf_counter() - began
        self.agent.release_xfer_handle(handle)
        if state != "DONE":
            raise RuntimeError(f"the transfer ended with {state}")
        return took

    def hash_got(self) -> int:
        return digest(self.part)

    def about(self) -> str:
        return f"nixl {version('nixl-cu12')}, UCX_TLS={os.environ.get('UCX_TLS', 'unset')}"


if __name__ == "__main__":
    serve(Agent(sys.argv[1], int(sys.argv[2])))

"""The methods that the plug-in for an engine (Dask, Ray) provides, to move bytes and to
hold slots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any


class ClusterEngine(ABC):
    """The methods that the plug-in for an engine provides. A `RemotePool` calls all
    except `machines` on its I/O thread, so they must not block.
    """

    @abstractmethod
    def machines(self) -> Mapping[str, int] | None:
        """Return the number of CPUs of each machine, by the machine's address, or None
        if there is no connection to the engine.

        This may block, and may raise any error.
        """

    @abstractmethod
    def put_buffer(self, address: str, data: memoryview) -> Any:
        """Pass a buffer to the engine, and return the engine's handle of it. The
        machine, and others later, get the buffer by this handle.

        Args:
            address: The machine's address.
            data: The bytes of the buffer.
        """

    @abstractmethod
    def request_slots(
        self,
        slots: Sequence[int],
        addresses: Sequence[str],
    ) -> None:
        """Submit a task for each slot, which waits in the engine's queue until a CPU is
        free, and occupies this CPU until the slot is released.

        When the task begins, `RemotePool.slot_begun` must be called, and if it fails
        `RemotePool.slot_ended`.

        Args:
            slots: The numbers of the slots. The first is the most urgent one.
            addresses: The addresses of the machines on which the slots may begin, or
                an empty sequence if any machine will do.
        """

    @abstractmethod
    def release_slot(
        self,
        slot: int,
        address: str,
    ) -> None:
        """End the task of a slot or an allocation, or withdraw it if it has not begun.

        On the machine, `RemotePoolHost.hold` returns a future that is done soon after
        this.

        Args:
            slot: The number of the slot.
            address: The address of the machine, or an empty string if the slot has not
                begun.
        """

    @abstractmethod
    def run_batch(
        self,
        address: str,
        packed: bytes,
        buffers: Mapping[int, Any],
    ) -> Future[Any]:
        """Call the method ``run`` of `pool_host` on a machine, and return a future that
        is done when the method has returned.

        Args:
            address: The machine's address.
            packed: The batch of tasks, as bytes.
            buffers: The engine's handles of the batch's large buffers, by key.
        """

    @abstractmethod
    def call(
        self,
        address: str,
        method: str,
        *args: Any,
    ) -> Future[Any]:
        """Call a method of `pool_host` on a machine, with `name` as the first argument.

        Args:
            address: The machine's address.
            method: The name of the method.
            args: The further arguments of the method.

        Returns:
            A future for the method's result, which is a list of buffers, or a false
            value (None or an empty list).
        """

    def connect(self, address: str) -> Future[Any]:
        """Call the method ``handshake`` of `pool_host` on a machine, before the first
        call of any other method there, and return a future for its answer.

        The default implementation uses `call`.

        Args:
            address: The machine's address.
        """
        return self.call(address, "handshake")

    def booked_resources(self, address: str = "") -> Collection[str]:
        """Return the names of the resources for which the engine itself tracks how much
        is in use on a machine: ``"gpus"``, ``"memory"``, both or none.

        The default implementation returns no names. Then `request_allocations` is not
        called, and each coordinator tracks only what its own tasks use.

        Args:
            address: The address of a machine that has answered the handshake, or an
                empty string for machines that the engine may add.
        """
        return ()

    def request_allocations(
        self,
        slots: Sequence[int],
        amounts: Mapping[str, int],
        addresses: Sequence[str],
    ) -> None:
        """Submit a task for each allocation, as `request_slots` does for slots. The
        task occupies GPUs and memory, but no CPU.

        When it begins, `RemotePool.slot_begun` must be called, with the names of the
        GPUs if the engine has chosen these.

        Args:
            slots: The numbers of the allocations.
            amounts: The resources of each allocation: the number of ``"gpus"``, and the
                bytes of ``"memory"``. Only resources in `booked_resources` are among
                them.
            addresses: The addresses of the machines on which the allocations may begin,
                or an empty sequence if the engine may choose any.
        """
        raise NotImplementedError

    def can_grow(self) -> bool:
        """Return whether the engine may get further machines, or larger ones.

        If it may, a task that no present machine can run waits some time for such a
        machine. The default implementation returns False.
        """
        return False

    def release_machines(self) -> None:  # noqa: B027 - an engine may hold nothing
        """Release the resources that the engine has for this pool.

        This is called once, at the end. The default implementation does nothing.
        """

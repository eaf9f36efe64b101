"""Helpers of Ray's tensor transport by themselves, with fakes of what they call; and a sidecar that is started again under them."""

from __future__ import annotations

import warnings
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tensorlane

pytest.importorskip("ray")
import tensorlane.ray as transport  # noqa: E402


class FakeCall:
    """A fake of a call of the client: raises or gives what it was made with, one after the other."""

    def __init__(self, *outcomes: object):
        self.outcomes, self.calls = list(outcomes), 0

    def __call__(self) -> object:
        self.calls += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class FakeStored:
    """A fake of a lease that was put, which is held or was lost."""

    def __init__(self, held: bool):
        self.held = held


class FakeRegistry:
    """A fake of Ray's registry of transports, which refuses a name that it has."""

    def __init__(self, **there: tuple[type, type]):
        self.transport_manager_info = {
            name.upper(): SimpleNamespace(transport_manager_class=manager, data_type=data_type) for name, (manager, data_type) in there.items()
        }
        self.registered: list[str] = []

    def register(self, name: str, devices: list[str], manager: type, data_type: type) -> None:
        if name.upper() in self.transport_manager_info:
            raise ValueError(f"Transport {name} already registered.")
        self.registered.append(name)


def lost() -> tensorlane.SessionLost:
    return tensorlane.SessionLost("the session was lost")


def test_a_call_whose_session_had_ended_is_made_once_more():
    call = FakeCall(lost(), "done")
    assert transport._again(call) == "done" and call.calls == 2
    call = FakeCall("done", "not asked for")
    assert transport._again(call) == "done" and call.calls == 1


def test_a_call_whose_session_ends_twice_raises_and_is_not_made_a_third_time():
    call = FakeCall(lost(), lost(), "not asked for")
    with pytest.raises(tensorlane.SessionLost):
        transport._again(call)
    assert call.calls == 2


@pytest.mark.parametrize("error", [tensorlane.Unavailable, tensorlane.NotFound, tensorlane.Timeout, tensorlane.Withdrawn, KeyboardInterrupt])
def test_a_call_that_fails_otherwise_is_not_made_again(error):
    for outcomes, calls in (([error("x")], 1), ([lost(), error("x")], 2)):
        call = FakeCall(*outcomes, "not asked for")
        with pytest.raises(error):
            transport._again(call)
        assert call.calls == calls


def outcome(*held: bool) -> Future:
    made: Future = Future()
    made.set_result((transport.TransportMetadata([]), [FakeStored(one) for one in held]))
    return made


def test_what_was_stored_is_gone_when_any_lease_of_it_is_lost():
    assert not transport._is_gone(outcome(True, True))
    assert transport._is_gone(outcome(True, False)) and transport._is_gone(outcome(False))
    assert not transport._is_gone(outcome()), "an object without tensors has nothing to lose"


def test_what_is_still_being_stored_or_could_not_be_is_not_gone():
    failed: Future = Future()
    failed.set_exception(tensorlane.Exhausted("full"))
    assert not transport._is_gone(Future()) and not transport._is_gone(failed)


def registry(monkeypatch, **there: tuple[type, type]) -> FakeRegistry:
    fake = FakeRegistry(**there)
    monkeypatch.setattr(transport, "rdt", fake)
    monkeypatch.setattr(transport, "register_tensor_transport", fake.register)
    return fake


def test_register_registers_each_form_once_and_says_nothing(monkeypatch):
    fake = registry(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transport.register()
        assert fake.registered == ["tensorlane", "tensorlane_numpy"]
        transport.register_two_sided()
    assert fake.registered[2:] == ["tensorlane", "tensorlane_two_sided", "tensorlane_numpy", "tensorlane_two_sided_numpy"]


def test_register_is_silent_where_the_same_is_registered_already(monkeypatch):
    fake = registry(monkeypatch, tensorlane=(transport.Transport, torch.Tensor), tensorlane_numpy=(transport.NumpyTransport, np.ndarray))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transport.register()
    assert fake.registered == []


def test_register_warns_at_its_caller_of_a_name_that_was_registered_otherwise_by_hand(monkeypatch):
    """As Ray's page has it: `tensorlane` for arrays of numpy."""
    fake = registry(monkeypatch, tensorlane=(transport.Transport, np.ndarray))
    with pytest.warns(RuntimeWarning) as warned:
        transport.register()
    assert fake.registered == ["tensorlane_numpy"]
    (warning,) = warned
    for words in ("`tensorlane` is registered in this process for ndarray by Transport", "register() means Tensor", "by hand in no process"):
        assert words in str(warning.message)
    assert warning.filename == __file__


def test_register_passes_other_errors_of_ray_on(monkeypatch):
    registry(monkeypatch)

    def refuse(*_: object) -> None:
        raise ValueError("Device tpu is not supported")

    monkeypatch.setattr(transport, "register_tensor_transport", refuse)
    with pytest.raises(ValueError, match="tpu"):
        transport.register()


def test_an_object_is_stored_anew_and_received_once_its_sidecar_was_started_again(unkept, monkeypatch):
    monkeypatch.setattr(transport, "_client", tensorlane.connect(unkept.directory))
    manager = transport.Transport()
    before = manager.extract_tensor_transport_metadata("object", [torch.ones(3)])
    assert manager.extract_tensor_transport_metadata("object", [torch.ones(3)]) == before
    unkept.kill()
    unkept.start()
    # The session's end is told to the first call, which is made again.
    with pytest.raises(tensorlane.Unavailable) as gone:
        manager.recv_multiple_tensors("object", before, manager.get_communicator_metadata(None, None))
    assert gone.value.reason == "OWNER_LOST"
    after = manager.extract_tensor_transport_metadata("object", [torch.ones(3)])
    assert after.references != before.references
    (got,) = manager.recv_multiple_tensors("object", after, manager.get_communicator_metadata(None, None))
    assert got.tolist() == [1, 1, 1]
    manager.garbage_collect("object", after, [])
    manager.end()

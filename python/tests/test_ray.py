"""Ray's tensor transport, with a real Ray. Numbers such as S0.11 are those of a checklist of Ray's page for custom transports:

| numbers | what the page says | test |
|---|---|---|
| 1, 4, 17 | registered at run time; its example prints 6 | the_documented_example_prints_six_* |
| 2 | all abstract methods | every_abstract_method_is_there_and_a_missing_one_is_a_type_error |
| 3 | metadata of its own | metadata_extend_those_of_ray_and_survive_pickling |
| 5, 6, 14 | extracted once, known to the owner, carried by the reference | an_object_is_stored_once_right_after_its_task_* |
| 7, 15 | the owner makes communicator metadata for each transfer, who gets by itself its own | the_owner_makes_communicator_metadata_* |
| 8, 9 | two-sided: both sides run, with the same communicator metadata | both_sides_of_a_transfer_run_* |
| 10 | one-sided: nothing is sent | an_object_is_stored_once_*; test_ray_managers.py: a_send_is_refused_* |
| 11 | what is received is what was sent | received_tensors_are_those_that_were_sent |
| 12 | collected with the last reference, also by the metric | an_object_is_freed_when_its_last_reference_is_gone |
| 13, 15, 16 | `ray.put` and `ray.get` | what_the_driver_puts_is_got_by_actors_and_by_itself_* |
| 18, 19 | torch.Tensor and numpy.ndarray; no decorator to receive | the_documented_example_prints_six_with_register |
| 20 | limit: restarted actors | a_restarted_actor_has_the_transport |
| 21 | limit: registered after an actor was created | a_transport_that_is_registered_after_* |
| 22 | limit: async actors | a_hundred_tasks_of_an_async_actor_are_right |
| 23 | limit: other processes submit | an_actor_that_another_process_created_is_submitted_to |

Between two nodes: test_ray_two_nodes.py. Without Ray: test_ray_managers.py.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import re
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch

import tensorlane
from conftest import PATIENCE, python, said, until

os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

ray = pytest.importorskip("ray")
import tensorlane.ray as transport  # noqa: E402

EXAMPLE = """
import numpy, ray, tensorlane.ray
from ray.experimental import register_tensor_transport

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

register_tensor_transport(
    "tensorlane",  # Transport name
    ["cpu"],  # Supported device types
    tensorlane.ray.Transport,  # TensorTransportManager class
    numpy.ndarray,  # Data type for this transport
)

@ray.remote
class MyActor:
    @ray.method(tensor_transport="tensorlane")
    def echo(self, data):
        return data

    def sum(self, data):
        return data.sum().item()

actors = [MyActor.remote() for _ in range(2)]
ref = actors[0].echo.remote(numpy.array([1, 2, 3]))
result = actors[1].sum.remote(ref)
print(ray.get(result))
"""

# An address of the loopback network that no other process of these tests has.
ADMIN = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.91:9420"

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.complex64, torch.float8_e4m3fn]


@pytest.fixture(scope="module")
def lane():
    """A sidecar, and a Ray whose processes have the transport by the hook."""
    with tensorlane.local(export=True, settings={"TENSORLANE_ADMIN_LISTEN": ADMIN}) as client:
        hook = {"worker_process_setup_hook": "tensorlane.ray.register_two_sided"}
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env=hook)
        transport.register(two_sided=True)
        yield client
        ray.shutdown()
        transport._client = None


@pytest.fixture(scope="module")
def actor_class(lane):
    @ray.remote(num_cpus=0.25, max_restarts=1)
    class Actor:
        def __init__(self):
            self.called, self.transfers = [], []

        @ray.method(tensor_transport="tensorlane_two_sided")
        def hold(self, *shape):
            return {"weights": torch.ones(shape), "step": 3}

        @ray.method(tensor_transport="tensorlane_two_sided_numpy")
        def hold_array(self, count):
            return np.arange(count)

        @ray.method(tensor_transport="tensorlane")
        def make(self, *shape):
            return {"weights": torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape), "step": 3}

        @ray.method(tensor_transport="tensorlane")
        def give(self, given):
            return given

        @ray.method(tensor_transport="tensorlane_numpy")
        def make_array(self, count):
            return np.arange(count)

        def look(self, given):
            return {key: (str(x.dtype), tuple(x.shape), x.view(torch.uint8).numpy().tobytes()) for key, x in given.items()}

        def total(self, given):
            given = given["weights"] if isinstance(given, dict) else given
            return given.sum().item()

        def write(self, given):
            given["weights"].add_(1)
            return given["weights"].sum().item()

        def record(self, backend="TENSORLANE"):
            from ray.experimental.rdt.util import get_tensor_transport_manager

            manager, called, transfers = get_tensor_transport_manager(backend), self.called, self.transfers

            def recorded(name, method):
                def call(*arguments, **options):
                    called.append(name)
                    transfers.extend(one.transfer for one in arguments if hasattr(one, "transfer"))
                    return method(*arguments, **options)

                return call

            for name in ("extract_tensor_transport_metadata", "recv_multiple_tensors", "send_multiple_tensors", "garbage_collect"):
                setattr(manager, name, recorded(name, getattr(manager, name)))

        def calls(self):
            return self.called

        def transfers_seen(self):
            return self.transfers

        def sum_from(self, other, count):
            return ray.get(other.make.remote(count))["weights"].sum().item()

        def sum_of(self, reference):
            return transport.client().get(reference).torch().sum().item()

        def references_of(self, refs):
            return [reference.shape for reference in transport.references(refs[0])]

        @ray.method(tensor_transport="tensorlane")
        def fail(self, seconds):
            time.sleep(seconds)
            raise ValueError("on purpose")

        def pid(self):
            return os.getpid()

    return Actor


@pytest.fixture(scope="module")
def actors(actor_class):
    """Two actors, for tests that leave them as they are."""
    made = [actor_class.remote() for _ in range(2)]
    ray.get([actor.pid.remote() for actor in made])
    return made


@pytest.fixture
def own(actor_class):
    """Two actors of a test's own, which it may end."""
    made = [actor_class.remote() for _ in range(2)]
    ray.get([actor.pid.remote() for actor in made])
    yield made
    for actor in made:
        ray.kill(actor)


def empty(lane) -> None:
    until("everything is freed", lambda: lane.status().tensors == 0)


@pytest.fixture(autouse=True)
def nothing_before(request):
    """Nothing is left of earlier tests, for those that count."""
    if "lane" in request.fixturenames:
        gc.collect()
        empty(request.getfixturevalue("lane"))


def test_the_documented_example_prints_six_with_the_name_changed(tmp_path):
    """S0.1, S0.4, S0.17, S0.18: registered at run time, as Ray's page does it."""
    with tensorlane.local() as client:
        script = tmp_path / "example.py"
        script.write_text(EXAMPLE)
        run = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
        assert said(python(run, TENSORLANE_SOCKETS=client.directory)) == "6\n"


def test_the_program_of_the_page_prints_what_it_shows(lane, capsys):
    """But for its first call: this Ray is there already, with that hook."""
    text = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "import ray" in code)
    (shown,) = re.findall(r"^print\(.*\) +# (.*)$", code, re.MULTILINE)
    (begins,) = re.findall(r"^ray.init\(.*\)\n", code, re.MULTILINE)
    assert '{"worker_process_setup_hook": "tensorlane.ray.register"}' in begins
    names = {"__name__": "page"}
    exec(code.replace(begins, ""), names)
    assert capsys.readouterr().out == f"{shown}\n"
    names.clear()
    empty(lane)


@pytest.mark.parametrize(("name", "make"), [("tensorlane", torch.tensor), ("tensorlane_numpy", np.array)])
def test_the_documented_example_prints_six_with_register(lane, name, make):
    """S0.17, S0.18, S0.19: with torch.Tensor and with numpy.ndarray; the consumer needs no decorator."""

    @ray.remote(num_cpus=0.25)
    class MyActor:
        @ray.method(tensor_transport=name)
        def echo(self, data):
            return data

        def sum(self, data):
            return data.sum().item()

    actors = [MyActor.remote() for _ in range(2)]
    ref = actors[0].echo.remote(make([1, 2, 3]))
    result = actors[1].sum.remote(ref)
    assert ray.get(result) == 6
    del ref
    empty(lane)


def test_every_abstract_method_is_there_and_a_missing_one_is_a_type_error():
    """S0.2"""
    assert not transport.Transport.__abstractmethods__
    assert transport.Transport.is_one_sided() and transport.Transport.can_abort_transport()
    with pytest.raises(TypeError):
        type("Half", (ray.experimental.TensorTransportManager,), {"is_one_sided": staticmethod(lambda: True)})()


def test_metadata_extend_those_of_ray_and_survive_pickling(lane):
    """S0.3"""
    meta = transport.Transport().extract_tensor_transport_metadata("pickled", [torch.zeros(2, 3)])
    again = pickle.loads(pickle.dumps(meta))
    assert again == meta and isinstance(meta, ray.experimental.TensorTransportMetadata)
    assert len(pickle.dumps(meta)) < 600
    comm = transport.Transport().get_communicator_metadata(None, None, "TENSORLANE")
    assert pickle.loads(pickle.dumps(comm)) == comm and isinstance(comm, ray.experimental.CommunicatorMetadata)


OUTSIDE = """
import sys, numpy, tensorlane
with tensorlane.connect() as client:
    for text in sys.argv[1:]:
        print(client.get(text).numpy().sum())
    stored = client.put(numpy.arange(10, dtype="f4"))
    print(stored.reference, flush=True)
    sys.stdin.readline()
"""


def test_a_process_outside_ray_gets_what_an_actor_returned_and_actors_get_what_it_put(lane, own):
    """The same references inside and outside."""
    maker, taker = own
    made, arrays = maker.make.remote(1000), maker.make_array.remote(7)
    given = maker.give.remote({"b": torch.ones(2), "a": [torch.zeros(3), torch.full((4,), 2.0)]})
    (reference,), (array,) = transport.references(made), transport.references(arrays, timeout=60)
    assert (reference.shape, reference.dtype, array.shape) == ((1000,), "f32", (7,))
    assert [one.shape for one in transport.references(given)] == [(2,), (3,), (4,)]
    outside = python(OUTSIDE, str(reference), str(array), TENSORLANE_SOCKETS=lane.directory)
    assert [outside.stdout.readline().strip() for _ in range(2)] == ["499500.0", "21"]
    put = tensorlane.Reference(outside.stdout.readline().strip())
    assert ray.get(taker.sum_of.remote(put)) == 45.0
    assert ray.get(taker.sum_of.remote(reference)) == 499500.0
    assert ray.get(taker.references_of.remote([ray.put(torch.ones(5), _tensor_transport="tensorlane")])) == [(5,)]
    said(outside, "done\n")
    del made, arrays, given
    empty(lane)
    with pytest.raises(tensorlane.NotFound):
        lane.get(reference)


def test_references_of_what_has_none_say_why(lane, own):
    maker, _ = own
    with pytest.raises(tensorlane.Unsupported, match="no tensors that this process knows of.*\n.*ray.method"):
        transport.references(ray.put(1))
    with pytest.raises(tensorlane.Unsupported, match="goes by TENSORLANE_TWO_SIDED"):
        transport.references(maker.hold.remote(3))
    with pytest.raises(tensorlane.Timeout, match="has not ended within 0.1 s"):
        transport.references(maker.fail.remote(5.0), timeout=0.1)
    with pytest.raises(ray.exceptions.RayTaskError, match="on purpose"):
        transport.references(maker.fail.remote(0.0))
    assert transport.references(maker.give.remote(7)) == []


def test_tensors_of_the_host_and_of_gpus_are_registered(lane):
    """Arrays of numpy lie on the host alone."""
    from ray.experimental.rdt.util import device_match_transport

    for name in ("TENSORLANE", "TENSORLANE_TWO_SIDED"):
        assert device_match_transport("cpu", name) and device_match_transport("cuda", name)
    assert device_match_transport("cpu", "TENSORLANE_NUMPY") and not device_match_transport("cuda", "TENSORLANE_NUMPY")


def test_registering_again_changes_nothing(lane):
    for _ in range(3):
        transport.register()


def test_an_object_is_stored_once_right_after_its_task_and_received_by_whoever_takes_it(lane, own):
    """S0.5, S0.6, S0.10, S0.11, S0.14: send is never called."""
    ray.get([actor.record.remote() for actor in own])
    ref = own[0].make.remote(100, 5)
    ray.wait([ref], fetch_local=False)
    until("it is stored", lambda: lane.status().tensors == 1)
    for _ in range(2):
        assert ray.get(own[1].total.remote(ref)) == sum(range(500))
    source, taker = ray.get([actor.calls.remote() for actor in own])
    assert source == ["extract_tensor_transport_metadata"]
    assert set(taker) == {"recv_multiple_tensors"}
    del ref
    until("it is collected", lambda: "garbage_collect" in ray.get(own[0].calls.remote()))
    empty(lane)


def test_the_owner_makes_communicator_metadata_for_each_transfer_before_it_begins(lane, own, monkeypatch):
    """S0.7, S0.15: for an actor that takes the object, and for a `ray.get` in the process that asks."""
    from ray.experimental.rdt.util import get_tensor_transport_manager

    manager, called = get_tensor_transport_manager("TENSORLANE"), []

    def recorded(name, method):
        def call(*arguments, **options):
            called.append((name, *arguments[:2]) if name == "communicator" else (name,))
            return method(*arguments, **options)

        return call

    for name, short in (("get_communicator_metadata", "communicator"), ("fetch_multiple_tensors", "fetch")):
        monkeypatch.setattr(manager, name, recorded(short, getattr(manager, name)), raising=True)
    ref = own[0].make.remote(10)
    ray.wait([ref], fetch_local=False)
    assert called == [], "nobody takes it yet"
    assert ray.get(own[1].total.remote(ref)) == 45
    assert called == [("communicator", own[0], own[1])]
    assert ray.get(ref)["weights"].sum().item() == 45
    assert called[1:] == [("communicator", None, None), ("fetch",)]
    del ref
    empty(lane)


def test_received_tensors_are_those_that_were_sent(lane, actors):
    """S0.11: type, shape and bytes, of every kind and of no elements."""
    given = {str(dtype): (torch.arange(24) % 2).to(dtype).reshape(2, 3, 4) for dtype in DTYPES}
    given |= {"none": torch.empty(3, 0), "strided": torch.arange(200_000.0).reshape(400, 500).T.contiguous().T}
    ref = ray.put(given, _tensor_transport="tensorlane")
    looked = ray.get(actors[1].look.remote(ref))
    dense = {key: x.contiguous() for key, x in given.items()}
    assert looked == {key: (str(x.dtype), tuple(x.shape), x.view(torch.uint8).numpy().tobytes()) for key, x in dense.items()}
    del ref
    empty(lane)


def test_an_actor_may_write_what_it_received_and_nobody_else_sees_it(lane, actors):
    ref = actors[0].make.remote(100_000)
    before = ray.get(actors[1].total.remote(ref))
    assert ray.get(actors[1].write.remote(ref)) != before
    assert ray.get(ref)["weights"].sum().item() == before


def test_an_object_is_freed_when_its_last_reference_is_gone(lane, actors):
    """S0.12: by the sidecar's count, and by its metric."""

    def live() -> int:
        with urllib.request.urlopen(f"http://{ADMIN}/metrics", timeout=PATIENCE) as told:
            (count,) = re.findall(r'^tensorlane_ledger_live_tensors\{kind="own"\} (\d+)$', told.read().decode(), re.MULTILINE)
        return int(count)

    refs = [actors[0].make.remote(10) for _ in range(5)]
    ray.get([actors[1].total.remote(ref) for ref in refs])
    until("five are counted", lambda: lane.status().tensors == live() == 5)
    refs.pop()
    until("one is freed", lambda: lane.status().tensors == live() == 4)
    refs.clear()
    empty(lane)
    until("the metric falls", lambda: live() == 0)


def test_what_the_driver_puts_is_got_by_actors_and_by_itself_and_then_freed(lane, actors):
    """S0.13, S0.14, S0.15, S0.16"""
    ref = ray.put(torch.arange(1000), _tensor_transport="tensorlane")
    until("it is put", lambda: lane.status().tensors == 1)
    assert ray.get(actors[0].total.remote(ref)) == ray.get(ref).sum().item() == 499_500
    del ref
    empty(lane)


def test_a_driver_gets_into_a_target_of_its_own(lane, actors):
    from ray.experimental import set_target_for_ref

    ref, target = actors[0].give.remote(torch.arange(5.0)), torch.zeros(5)
    set_target_for_ref(ref, [target])
    ray.get(ref)
    assert target.tolist() == [0, 1, 2, 3, 4]


def test_a_restarted_actor_has_the_transport(lane, own):
    """S0.20: beyond what Ray documents, by the hook."""
    first = ray.get(own[0].pid.remote())
    ray.kill(own[0], no_restart=False)
    until("it is another process", lambda: _or_none(lambda: ray.get(own[0].pid.remote()) != first))
    assert ray.get(own[1].total.remote(own[0].make.remote(4))) == 6


def test_a_hundred_tasks_of_an_async_actor_are_right(lane, actors):
    """S0.22"""

    @ray.remote(num_cpus=0.25)
    class Async:
        @ray.method(tensor_transport="tensorlane")
        async def make(self, number):
            return torch.full((10,), float(number))

    maker = Async.remote()
    refs = [maker.make.remote(number) for number in range(100)]
    assert ray.get([actors[number % 2].total.remote(ref) for number, ref in enumerate(refs)]) == [10.0 * n for n in range(100)]
    del refs
    empty(lane)


def test_an_actor_that_another_process_created_is_submitted_to(lane, actors):
    """S0.23: beyond what Ray documents, by the hook."""
    assert ray.get(actors[1].sum_from.remote(actors[0], 5)) == 10


LATE = """
import ray, torch

ray.init(address=sys.argv[1], log_to_driver=False, runtime_env=json.loads(sys.argv[2]))

@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Actor:
    def make(self):
        return torch.arange(4)

    def total(self, given):
        return given.sum().item()

actors = [Actor.remote() for _ in range(2)]
ray.get([actor.total.remote(torch.ones(1)) for actor in actors])
import tensorlane.ray
tensorlane.ray.register()
made = actors[0].make.options(tensor_transport="tensorlane").remote()
try:
    print(ray.get(actors[1].total.remote(made), timeout=120))
except ValueError as error:
    print(str(error).splitlines()[-1])
"""


def test_a_transport_that_is_registered_after_an_actor_was_created_works_with_the_hook_and_is_a_clear_error_without(lane):
    """S0.21: beyond what Ray documents, by the hook."""
    address = ray.get_runtime_context().gcs_address
    given = [{"worker_process_setup_hook": "tensorlane.ray.register"}, {}]
    with_hook, without = [_said_by_driver("import json, sys\n" + LATE, address, json.dumps(one)) for one in given]
    assert with_hook == "6\n"
    assert without == "ValueError: Unsupported tensor transport protocol: TENSORLANE\n"


def _said_by_driver(script: str, *arguments: str) -> str:
    driver = python(script, *arguments)
    try:
        return said(driver, patience=300)
    finally:
        driver.kill()
        driver.wait()


def test_both_sides_of_a_transfer_run_and_have_its_communicator_metadata(lane, own):
    """S0.8, S0.9: the source keeps what it made, puts it when it is sent, and has it no more when it was received."""
    ray.get([actor.record.remote("TENSORLANE_TWO_SIDED") for actor in own])
    ref = own[0].hold.remote(50, 2)
    ray.wait([ref], fetch_local=False)
    assert lane.status().tensors == 0, "nothing is put before it is sent"
    for _ in range(2):
        assert ray.get(own[1].total.remote(ref)) == 100
    source, taker = ray.get([actor.calls.remote() for actor in own])
    assert source == ["extract_tensor_transport_metadata"] + ["send_multiple_tensors"] * 2
    assert taker == ["recv_multiple_tensors"] * 2
    sent, received = ray.get([actor.transfers_seen.remote() for actor in own])
    assert sent == received and len(set(sent)) == 2
    empty(lane)
    del ref
    until("it is collected", lambda: "garbage_collect" in ray.get(own[0].calls.remote()))


def test_arrays_of_numpy_cross_by_two_sides_and_both_forms_live_together(lane, actors):
    refs = [actors[0].hold_array.remote(10), actors[0].make_array.remote(10), actors[0].hold.remote(45), actors[1].hold_array.remote(10)]
    assert ray.get([actors[1].total.remote(ref) for ref in refs[:3]]) == [45] * 3
    assert ray.get(actors[0].total.remote(refs[3])) == 45
    del refs
    empty(lane)


def test_what_is_to_be_sent_by_a_dead_actor_is_an_error_for_its_receiver(lane, own):
    ref = own[0].hold.remote(10)
    ray.wait([ref], fetch_local=False)
    ray.kill(own[0])
    with pytest.raises(Exception) as caught:
        ray.get(own[1].total.remote(ref), timeout=120)
    assert not isinstance(caught.value, ray.exceptions.GetTimeoutError)
    assert ray.get(own[1].pid.remote()), "who takes it lives on"
    empty(lane)


def test_a_receiver_of_much_that_a_dead_actor_was_to_send_takes_something_else_soon(lane, actors, own):
    """Ray receives one after the other, and aborts what has not begun: each of the three may not wait for its deadline."""
    refs = [own[0].hold.remote(10) for _ in range(3)]
    ray.wait(refs, num_returns=3, fetch_local=False)
    ray.kill(own[0])
    taken = [own[1].total.remote(ref) for ref in refs]
    for one in taken:
        with pytest.raises(Exception) as caught:
            ray.get(one, timeout=50)
        assert not isinstance(caught.value, ray.exceptions.GetTimeoutError)
    assert ray.get(own[1].total.remote(actors[0].hold.remote(7)), timeout=120) == 7


def test_what_a_dead_actor_made_is_freed_and_who_takes_it_is_told(lane, own):
    ref = own[0].make.remote(10)
    ray.wait([ref], fetch_local=False)
    ray.kill(own[0])
    empty(lane)
    with pytest.raises(Exception) as caught:
        ray.get(own[1].total.remote(ref), timeout=120)
    assert not isinstance(caught.value, ray.exceptions.GetTimeoutError)
    assert ray.get(own[1].pid.remote()), "who takes it lives on"


def _or_none(work):
    try:
        return work()
    except ray.exceptions.RayError:
        return None


def test_an_actor_that_is_given_tensors_and_cannot_receive_is_told_of_once(lane, actors, caplog):
    @ray.remote(num_cpus=0.25)
    class Plain:
        pass

    plain = Plain.remote()
    for manager in (transport.Transport(), transport.TwoSidedTransport()):
        caplog.clear()
        for receiver in (plain, plain, actors[0], None):
            manager.get_communicator_metadata(actors[1], receiver, "TENSORLANE")
        assert [record.message.count("enable_tensor_transport=True") for record in caplog.records] == [1]
    ray.kill(plain)

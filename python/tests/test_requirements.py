"""Requirements of routes: what is required is so or nothing moves; and tickets that a reference makes."""

from __future__ import annotations

import asyncio
import pickle
import uuid

import numpy as np
import pytest

import tensorlane
import tensorlane.aio
from conftest import python, said, until

ARRAY = np.arange(1 << 18, dtype=np.float32).reshape(512, 512)


@pytest.fixture
def far(clients):
    """A tensor of the other peer, which shares no memory with this one."""
    owner, reader = clients
    with owner.put(ARRAY) as stored:
        yield reader, stored.reference


def refused(call) -> tensorlane.RequirementNotMet:
    with pytest.raises(tensorlane.RequirementNotMet) as caught:
        call()
    return caught.value


def test_what_has_to_cross_a_wire_is_refused_to_those_who_require_zero_copy_and_says_why(far):
    reader, reference = far
    until("copies of earlier tests are gone", lambda: reader.status().copies == 0, patience=60)
    error = refused(lambda: reader.get(reference, require="zero_copy"))
    assert error.reason == "REQUIREMENT_NOT_MET" and error.details["tcp"] == "not_zero_copy", error.details
    assert "require" in error.remedy
    assert reader.status().copies == 0
    assert (reader.get(reference, require="encrypted").numpy() == ARRAY).all()


def test_every_form_of_a_get_requires(far):
    reader, reference = far
    for call in (
        lambda: reader.get(reference[3:10], require="zero_copy"),
        lambda: reader.get([reference, {"a": reference}], require=["zero_copy"]),
        lambda: reader.get_many([reference], require={"same_node", "zero_copy"}),
        lambda: reader.get(reference, out=np.empty_like(ARRAY), require="zero_copy"),
    ):
        refused(call)


def test_a_set_of_another_peer_is_refused_whole(clients):
    owner, reader = clients
    published = owner.publish({"a": ARRAY}, "required")
    refused(lambda: reader.get_set(published, require="zero_copy"))
    refused(lambda: reader.load_into({"a": np.empty_like(ARRAY)}, published, require="zero_copy"))
    assert reader.get_set(published, require="encrypted")["a"].shape == ARRAY.shape
    owner.unname("required", "required@1")


def test_what_lies_in_the_pod_meets_every_requirement_but_rows_are_packed(client):
    with client.put(ARRAY) as stored:
        every = ["zero_copy", "same_node", "encrypted"]
        assert client.get(stored, require=every).route == "local"
        assert client.get(stored.reference[2:4], require=iter(every)).shape == (2, 512)
        assert "packed" in str(refused(lambda: client.get(stored.reference[[1, 4]], require="zero_copy")))
        assert client.get(stored, require=[]).shape == client.get(stored, require=None).shape


def test_awaited_gets_require_too(two_nodes, clients):
    async def got(reference):
        async with await tensorlane.aio.connect(two_nodes[1].directory) as reader:
            await reader.get(reference, require="zero_copy")

    with clients[0].put(ARRAY) as stored:
        refused(lambda: asyncio.run(got(stored.reference)))


@pytest.mark.parametrize(
    ("given", "told"),
    [("fast", "require is 'fast'"), (["zero_copy", "zerocopy"], "'zerocopy'"), (7, "no list of texts"), ([7], r"require\[0\] is 7")],
    ids=str,
)
def test_a_word_that_is_no_requirement_is_refused_with_those_there_are(client, given, told):
    with client.put(np.arange(3)) as stored, pytest.raises((tensorlane.Invalid, tensorlane.Unsupported), match=told) as caught:
        client.get(stored, require=given)
    assert "zero_copy" in caught.value.remedy or "str" in caught.value.remedy


def test_a_ticket_of_a_reference_keeps_its_tensor_when_its_lease_is_gone(client):
    stored = client.put(ARRAY)
    ticket = stored.reference.ticket(uses=2, ttl=30)
    stored.release()
    client.flush()
    for _ in range(2):
        assert (client.redeem(ticket).numpy() == ARRAY).all()
    with pytest.raises(tensorlane.Error) as spent:
        client.redeem(ticket)
    assert spent.value.reason == "TICKET_SPENT" and "another" in spent.value.remedy


def test_a_redeem_that_is_repeated_with_its_retry_id_uses_the_ticket_once(client):
    with client.put(ARRAY) as stored:
        ticket, retry = stored.reference.ticket(), uuid.uuid4().bytes
        # For as long as the lease of the first one stands, as that of an answer that was lost does.
        got = [client.redeem(ticket, retry_id=retry) for _ in range(3)]
        assert all((one.numpy() == ARRAY).all() for one in got)
        with pytest.raises(tensorlane.Error, match="TICKET_SPENT"):
            client.redeem(ticket, retry_id=uuid.uuid4().bytes)
        for wrong in (b"short", "text", bytes(17)):
            with pytest.raises(tensorlane.Invalid, match="16 bytes"):
                client.redeem(ticket, retry_id=wrong)


def test_a_reference_finds_the_client_beside_its_owner_among_those_of_the_process(clients):
    owner, reader = clients
    with owner.put(ARRAY) as stored, owner.put(ARRAY, "lent") as lent:
        tickets = [one.ticket() for one in (pickle.loads(pickle.dumps(stored.reference)), owner.names("lent")["lent"])]
        del lent
        for ticket in tickets:
            assert (reader.redeem(ticket).numpy() == ARRAY).all()
    owner.unname("lent")


HANDED = """
import pickle, sys, tensorlane
reference = pickle.loads(bytes.fromhex(sys.argv[1]))
try:
    print(reference.ticket(uses=1, ttl=60))
except tensorlane.Error as error:
    print(error.reason, "|", error.remedy)
"""


def test_a_reference_that_was_unpickled_elsewhere_makes_its_ticket_by_the_sidecar_that_is_found_there(two_nodes, clients, tmp_path):
    owner, reader = clients
    with owner.put(ARRAY) as stored:
        text = pickle.dumps(stored.reference).hex()
        beside = said(python(HANDED, text, TENSORLANE_SOCKETS=owner.directory)).strip()
        assert (reader.redeem(beside).numpy() == ARRAY).all()
        for place, reason in ((reader.directory, "NOT_OWNED"), (str(tmp_path), "None")):
            told = said(python(HANDED, text, TENSORLANE_SOCKETS=place))
            assert told.startswith(f"{reason} | ") and "beside peer node-0" in told and "tensorlane.connect(DIRECTORY)" in told


def test_a_reference_of_a_sidecar_that_is_gone_makes_no_ticket(sidecar, monkeypatch):
    monkeypatch.setenv("TENSORLANE_SOCKETS", sidecar.directory)
    # The client that is made here goes with the test.
    monkeypatch.setattr("tensorlane.client._defaults", {})
    with tensorlane.local(arena="64Mi") as other:
        stored = other.put(np.arange(3))
        reference = stored.reference
        assert reference.ticket().startswith("tl1:")
    with pytest.raises(tensorlane.Error, match="hint: a ticket is made beside peer local"):
        reference.ticket()


def test_lists_of_texts_refuse_a_lone_one_with_what_to_give(client):
    leaves = {"x": ("int64", ())}
    for call, told in (
        (lambda: client.create_set("lone", 1, leaves, writers="rollout-*"), r"writers is the one text 'rollout-\*'"),
        (lambda: client.create_set("lone", 1, leaves, writers=["a", 7]), r"writers\[1\] is 7"),
        (lambda: client.create_set("lone", 1, leaves, writers=None), "writers is None, and no list of texts"),
        (lambda: client.get_many("abc"), "targets is the one text 'abc'"),
    ):
        with pytest.raises(tensorlane.Unsupported, match=told) as caught:
            call()
        assert "give" in caught.value.remedy
    assert client.mutable_sets("lone") == []
    rows = client.create_set("lone", 2, leaves, writers=("a", "b-*"))
    try:
        with pytest.raises(tensorlane.Unsupported, match="keys is the one text 'x'"):
            rows.read(keys="x")
        assert rows.read(keys=("x",))["x"].shape == (2,)
    finally:
        rows.drop()


def test_words_about_tensors_of_a_pipe_are_a_list(client):
    with client.listen("about/lone") as listener, client.connect_pipe("about/lone") as pipe, listener.accept(timeout=60):
        with pytest.raises(tensorlane.Unsupported, match="about is a bytes"):
            pipe.write([np.arange(2), np.arange(2)], about=b"ab", timeout=0)

//! Sidecar and its sessions: every verb of the session socket, as it should go.

use std::time::Duration;

use tensorlane_client::{AcquireOptions, Client, Item, PutOptions, RetryId, Target};
use tensorlane_proto::negotiate::Require;
use tensorlane_proto::{DType, Descriptor, Layout, Metadata, Range, Reason, Selection, Shape, Strides};
use tensorlane_tests::tensors::{dense, is_intact, pattern, put_pattern, seeded, u8s};
use tensorlane_tests::{Sidecar, SidecarOptions, failure, reason, until};

fn all() -> AcquireOptions {
    AcquireOptions::new()
}

fn select(selection: Selection) -> AcquireOptions {
    AcquireOptions::new().selection(selection)
}

#[test]
fn a_small_tensor_is_put_and_mapped_by_another_session() {
    let sidecar = Sidecar::start();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    let stored = put_pattern(&writer, 1, 4096, &PutOptions::new()).unwrap();
    let tensor = reader.acquire(stored.reference(), &all()).unwrap();
    assert!(is_intact(&tensor));
    assert_eq!((tensor.copied(), tensor.moved().to_string()), (false, "local".to_owned()));
    drop((tensor, stored));
    sidecar.assert_all_free();
}

#[test]
fn a_large_tensor_is_written_in_place_and_mapped_by_another_session() {
    let sidecar = Sidecar::start();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    let stored = put_pattern(&writer, 2, 40 << 20, &PutOptions::named("big")).unwrap();
    let tensor = reader.acquire("big", &all()).unwrap();
    assert!(is_intact(&tensor));
    drop((tensor, stored));
    reader.unname(&["big"]).unwrap();
    sidecar.assert_all_free();
}

#[test]
fn a_thousand_tensors_go_in_one_batch_and_come_in_another() {
    let sidecar = Sidecar::start();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    let tensors: Vec<(Descriptor, Vec<u8>)> =
        (0..1000).map(|i| (seeded(i, i * 61), pattern(i, i as usize * 61))).collect();
    let items: Vec<Item<'_>> = tensors
        .iter()
        .enumerate()
        .map(|(i, (descriptor, bytes))| Item {
            descriptor,
            bytes,
            options: PutOptions::named(format!("batch/{i:04}")),
        })
        .collect();
    let stored: Vec<_> = writer.put_many(&items).into_iter().map(Result::unwrap).collect();

    let references: Vec<Target> = stored.iter().map(|stored| Target::from(stored.reference())).collect();
    let names: Vec<Target> = (0..1000).map(|i| Target::name(format!("batch/{i:04}"))).collect();
    for targets in [references, names] {
        let acquired = reader.acquire_many(&targets, &all());
        for (tensor, (descriptor, bytes)) in acquired.into_iter().zip(&tensors) {
            let tensor = tensor.unwrap();
            assert_eq!(tensor.descriptor(), descriptor);
            assert_eq!(&tensor.to_vec(), bytes);
        }
    }
    drop(stored);
    let names: Vec<String> = (0..1000).map(|i| format!("batch/{i:04}")).collect();
    assert!(writer.unname(&names).unwrap().into_iter().all(|done| done.is_ok()));
    sidecar.assert_all_free();
}

#[test]
fn one_bad_item_of_a_batch_fails_alone() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 100, &PutOptions::named("taken")).unwrap();
    let (descriptor, bytes) = (u8s(8), [7; 8]);
    let names = ["first", "taken", "third"];
    let items =
        names.map(|name| Item { descriptor: &descriptor, bytes: &bytes, options: PutOptions::named(name) });
    let mut results = client.put_many(&items).into_iter();
    let first = results.next().unwrap().unwrap();
    assert_eq!(reason(results.next().unwrap()), Reason::NameTaken);
    let third = results.next().unwrap().unwrap();
    let targets = ["first", "nothing", "third"].map(Target::name);
    let acquired = client.acquire_many(&targets, &all());
    assert_eq!(acquired.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    drop((stored, first, third, acquired));
    client.unname(&names).unwrap();
    sidecar.assert_all_free();
}

#[test]
fn tensors_without_elements_and_scalars_are_tensors() {
    let sidecar = Sidecar::start();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    for shape in [&[0][..], &[3, 0, 5], &[]] {
        let descriptor = dense(DType::F64, shape);
        let bytes = pattern(9, descriptor.layout.bytes() as usize);
        let stored = writer.put(&descriptor, &bytes, &PutOptions::new()).unwrap();
        let tensor = reader.acquire(stored.reference(), &all()).unwrap();
        assert_eq!((tensor.to_vec(), tensor.descriptor()), (bytes.clone(), &descriptor));
        let mut reservation = writer.reserve(&descriptor).unwrap();
        assert_eq!(reservation.write().is_none(), bytes.is_empty());
        reservation.copy_from(0, &bytes).unwrap();
        let sealed = reservation.seal(&PutOptions::new()).unwrap();
        assert_eq!(reader.get(sealed.reference(), &all()).unwrap().bytes, bytes);
    }
    sidecar.assert_all_free();
}

#[test]
fn every_element_type_and_every_word_of_the_metadata_arrive() {
    let sidecar = Sidecar::start();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    for dtype in DType::ALL {
        let metadata = Metadata::new([("layer", "wte"), ("größe", "4×8"), ("empty", "")]).unwrap();
        let descriptor = Descriptor { metadata, ..dense(*dtype, &[4, 8]) };
        let bytes = pattern(3, descriptor.layout.bytes() as usize);
        let stored = writer.put(&descriptor, &bytes, &PutOptions::new()).unwrap();
        let fetched = reader.get(stored.reference(), &all()).unwrap();
        assert_eq!((fetched.descriptor, fetched.bytes), (descriptor, bytes), "{dtype:?}");
    }
    sidecar.assert_all_free();
}

#[test]
fn a_strided_tensor_keeps_its_strides_and_is_packed_when_it_is_copied_out() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let shape = Shape::new(&[2, 3]).unwrap();
    let layout = Layout::new(DType::U8, shape, Some(Strides::new(&[1, 2])), None).unwrap();
    let stored = client.put(&Descriptor::host(layout.clone()), b"adbecf", &PutOptions::new()).unwrap();
    let tensor = client.acquire(stored.reference(), &all()).unwrap();
    assert_eq!(tensor.descriptor().layout, layout);
    assert_eq!(tensor.to_vec(), b"abcdef");
    assert_eq!(client.get(stored.reference(), &all()).unwrap().descriptor.layout, layout.packed());
    drop((tensor, stored));
    sidecar.assert_all_free();
}

/// 6 rows of 4 columns, u16; the element at (r, c) is 10 r + c.
fn table(client: &Client) -> tensorlane_client::Stored {
    let elements = (0..6u16).flat_map(|r| (0..4u16).map(move |c| 10 * r + c));
    let bytes: Vec<u8> = elements.flat_map(u16::to_le_bytes).collect();
    client.put(&dense(DType::U16, &[6, 4]), &bytes, &PutOptions::named("table")).unwrap()
}

fn u16s(bytes: &[u8]) -> Vec<u16> {
    bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect()
}

#[test]
fn ranges_and_steps_are_a_view_of_the_same_bytes() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = table(&client);
    let whole = client.acquire("table", &all()).unwrap();
    let sealed = client.status().unwrap().arena.unwrap().sealed;
    let ranges = vec![Range::new(1, 6).step_by(2), Range::new(1, 3)];
    for require in [Require::default(), Require { zero_copy: true, ..Require::default() }] {
        let options = select(Selection::Ranges(ranges.clone())).require(require);
        let part = client.acquire("table", &options).unwrap();
        assert_eq!(u16s(&part.to_vec()), [11, 12, 31, 32, 51, 52]);
        assert_eq!(*part.descriptor().layout.shape(), Shape::new(&[3, 2]).unwrap());
        assert!(!part.copied());
        let (all, part) = (whole.view().unwrap(), part.view().unwrap());
        assert_eq!(part.as_ptr() as usize - all.as_ptr() as usize, 5 * 2, "the same bytes, not a copy");
        let status = client.status().unwrap();
        assert_eq!((status.tensors, status.arena.unwrap().sealed), (1, sealed));
    }
    drop((whole, stored));
    client.unname(&["table"]).unwrap();
    sidecar.assert_all_free();
}

#[test]
fn a_list_of_rows_is_packed_and_says_so_and_is_refused_where_nothing_may_be_copied() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = table(&client);
    let rows = Selection::rows(vec![5, 0, 5]);
    let part = client.acquire("table", &select(rows.clone())).unwrap();
    assert_eq!(u16s(&part.to_vec()), [50, 51, 52, 53, 0, 1, 2, 3, 50, 51, 52, 53]);
    assert!(part.copied());
    let zero_copy = Require { zero_copy: true, ..Require::default() };
    let refused = client.acquire("table", &select(rows).require(zero_copy));
    assert_eq!(reason(refused), Reason::RequirementNotMet);
    drop(part);
    client.flush().unwrap();
    let status = client.status().unwrap();
    assert_eq!((status.tensors, status.leases), (1, 1), "the packed rows are gone");
    drop(stored);
    client.unname(&["table"]).unwrap();
    sidecar.assert_all_free();
}

#[test]
fn an_empty_selection_is_a_tensor_without_elements() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = table(&client);
    for selection in [Selection::rows(vec![]), Selection::Ranges(vec![Range::new(2, 2)])] {
        let part = client.acquire("table", &select(selection)).unwrap();
        assert_eq!(
            (part.to_vec(), part.descriptor().layout.shape()),
            (vec![], &Shape::new(&[0, 4]).unwrap())
        );
    }
    drop(stored);
    client.unname(&["table"]).unwrap();
    sidecar.assert_all_free();
}

#[test]
fn a_taken_name_changes_hands_only_by_compare_and_swap() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let first = put_pattern(&client, 1, 64, &PutOptions::named("weights")).unwrap();
    assert_eq!(reason(put_pattern(&client, 2, 64, &PutOptions::named("weights"))), Reason::NameTaken);
    let second = PutOptions { replaces: Some(first.reference().clone()), ..PutOptions::named("weights") };
    let second = put_pattern(&client, 2, 64, &second).unwrap();
    assert_eq!(client.describe("weights").unwrap().reference, *second.reference());
    // The name does not stand for the first any more.
    let stale = client.name(first.reference(), "weights", Some(first.reference()));
    assert_eq!(reason(stale), Reason::NameChanged);
    client.name(first.reference(), "weights", Some(second.reference())).unwrap();
    client.name(first.reference(), "weights/again", None).unwrap();
    assert_eq!(client.describe(first.reference()).unwrap().names, ["weights", "weights/again"]);
    drop((first, second));
    client.flush().unwrap();
    assert_eq!(client.status().unwrap().tensors, 1, "names alone keep it");
    let gone = client.unname(&["weights", "nothing", "weights/again"]).unwrap();
    assert_eq!(gone.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(client.status().unwrap().tensors, 0, "nothing keeps it");
    sidecar.assert_all_free();
}

#[test]
fn a_name_keeps_a_tensor_when_its_session_ends_and_nothing_else_does() {
    let sidecar = Sidecar::start();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    let named = put_pattern(&writer, 1, 64, &PutOptions::named("kept")).unwrap();
    let leased = put_pattern(&writer, 2, 64, &PutOptions::new()).unwrap();
    let reference = leased.reference().clone();
    drop((named, leased, writer));
    until("the unnamed one is gone", || reader.status().unwrap().tensors == 1);
    assert_eq!(reason(reader.acquire(&reference, &all())), Reason::NotFound);
    assert!(is_intact(&reader.acquire("kept", &all()).unwrap()));
    let no_lease = PutOptions { no_lease: true, ..PutOptions::new() };
    assert_eq!(reason(put_pattern(&reader, 3, 64, &no_lease)), Reason::WouldVanish);
    reader.unname(&["kept"]).unwrap();
    sidecar.assert_all_free();
}

#[test]
fn a_name_that_appears_later_is_waited_for() {
    let sidecar = Sidecar::start();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    assert_eq!(reason(reader.acquire("later", &all())), Reason::NotFound);
    let looker = reader.clone();
    let looked = std::thread::spawn(move || looker.lookup(&["later"], None, Duration::from_secs(20)));
    let acquirer = reader.clone();
    let options = all().wait(Duration::from_secs(20));
    let acquired = std::thread::spawn(move || acquirer.acquire("later", &options));
    let stored = put_pattern(&writer, 5, 100_000, &PutOptions::named("later")).unwrap();
    let found = looked.join().unwrap().unwrap().pop().unwrap().unwrap();
    assert_eq!(found.reference, *stored.reference());
    assert!(is_intact(&acquired.join().unwrap().unwrap()));
    // One that never appears is given up.
    let mut missing = reader.lookup(&["never"], None, Duration::from_millis(20)).unwrap();
    assert_eq!(reason(missing.pop().unwrap()), Reason::NotFound);
    drop(stored);
    reader.unname(&["later"]).unwrap();
    sidecar.assert_all_free();
}

#[test]
fn a_ticket_survives_its_session_and_is_used_as_often_as_it_says() {
    let sidecar = Sidecar::start();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    let options = PutOptions {
        ticket: Some(Duration::from_secs(60)),
        ticket_uses: 2,
        no_lease: true,
        ..PutOptions::new()
    };
    let ticket = put_pattern(&writer, 1, 64, &options).unwrap().ticket().unwrap().to_owned();
    drop(writer);
    let retry = Some(RetryId([7; 16]));
    let first = reader.redeem(&ticket, retry).unwrap();
    let again = reader.redeem(&ticket, retry).unwrap();
    let second = reader.redeem(&ticket, None).unwrap();
    assert!([&first, &again, &second].into_iter().all(is_intact));
    assert_eq!(reason(reader.redeem(&ticket, None)), Reason::TicketSpent);
    assert_eq!(reader.status().unwrap().tickets, 0);
    drop((first, again, second));
    sidecar.assert_all_free();
}

#[test]
fn a_ticket_that_nobody_redeems_ends_and_its_tensor_with_it() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 64, &PutOptions::new()).unwrap();
    let ticket = client.ticket(stored.reference(), Some(Duration::from_millis(30)), 5).unwrap();
    drop(stored);
    client.flush().unwrap();
    until("the ticket has ended", || client.status().unwrap().tensors == 0);
    assert_eq!(reason(client.redeem(&ticket, None)), Reason::TicketSpent);
    sidecar.assert_all_free();
}

#[test]
fn names_are_listed_in_order_and_by_pages() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 64, &PutOptions::named("other")).unwrap();
    let names: Vec<String> = (0..2500).map(|i| format!("page/{i:05}")).collect();
    names.iter().for_each(|name| client.name(stored.reference(), name, None).unwrap());
    let listed: Vec<String> = client.list("page/").map(|listed| listed.unwrap().name).collect();
    assert_eq!(listed, names);
    assert_eq!(client.list("page/0249").count(), 10);
    assert_eq!(client.describe("other").unwrap().names.len(), 16, "a description is not a list");
    assert_eq!(client.list("").count(), 2501);
    assert_eq!(client.list("nothing").count(), 0);
    client.unname(&names).unwrap();
    client.unname(&["other"]).unwrap();
    drop(stored);
    sidecar.assert_all_free();
}

#[test]
fn batches_and_pages_of_tensors_with_very_much_metadata_are_split_and_not_refused() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let metadata = Metadata::new((0..4).map(|i| (format!("{i}"), "x".repeat(4095)))).unwrap();
    let descriptor = Descriptor { metadata, ..u8s(8) };
    let item = |i: usize| Item {
        descriptor: &descriptor,
        bytes: &[1; 8],
        options: PutOptions::named(format!("{i:04}")),
    };
    let stored: Vec<_> = client.put_many(&(0..2000).map(item).collect::<Vec<_>>());
    let targets: Vec<_> = stored.iter().map(|s| Target::from(s.as_ref().unwrap().reference())).collect();
    let acquired = client.acquire_many(&targets, &all());
    assert!(acquired.iter().all(|tensor| tensor.as_ref().unwrap().descriptor() == &descriptor));
    let names: Vec<String> = client.list("").map(|listed| listed.unwrap().name).collect();
    assert_eq!(names.len(), 2000);
    assert_eq!(client.status().unwrap().leases, 2000 + 2000);
    drop((stored, acquired));
    client.unname(&names).unwrap();
    sidecar.assert_all_free();
}

#[test]
fn a_description_tells_what_is_known() {
    let sidecar = Sidecar::start();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    let options = PutOptions { checksum: true, ..PutOptions::named("known") };
    let stored = put_pattern(&writer, 1, 64, &options).unwrap();
    let tensor = reader.acquire("known", &all()).unwrap();
    let known = reader.describe(stored.reference()).unwrap();
    assert_eq!((&known.reference, &known.descriptor), (stored.reference(), &seeded(1, 64)));
    assert_eq!((known.sealed, known.here, known.leases, known.tickets), (true, true, 2, 0));
    assert_eq!(known.names, ["known"]);
    assert!(known.crc32c.is_some() && known.crc32c == tensor.crc32c());
    assert_eq!(reason(reader.describe(Target::Id(stored.reference().id() + 1))), Reason::NotFound);
    drop((stored, tensor));
    reader.unname(&["known"]).unwrap();
    sidecar.assert_all_free();
}

#[test]
fn the_status_counts_what_there_is_and_the_peers_begin_with_oneself() {
    let sidecar = Sidecar::with(SidecarOptions::default().set("peer", "alone"));
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 2 << 20, &PutOptions::named("counted")).unwrap();
    let status = client.status().unwrap();
    assert_eq!((status.tensors, status.leases, status.names, status.sessions), (1, 1, 1, 1));
    let arena = status.arena.unwrap();
    assert_eq!((arena.total, arena.sealed), (256 << 20, 2 << 20));
    assert!(arena.held > 0, "the rest of the session's segment is the session's to use: {arena:?}");
    assert_eq!(status.incarnation, client.incarnation().unwrap().to_string());
    let peers = client.peers().unwrap();
    assert_eq!((peers.len(), peers[0].name.as_str(), peers[0].state.as_str()), (1, "alone", "self"));
    drop(stored);
    client.unname(&["counted"]).unwrap();
    sidecar.assert_all_free();
}

#[test]
fn a_reservation_is_nobodys_to_see_until_it_is_sealed() {
    let sidecar = Sidecar::start();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    let mut reservation = writer.reserve(&seeded(3, 1 << 20)).unwrap();
    let id = reservation.id();
    reservation.copy_from(0, &pattern(3, 1 << 20)).unwrap();
    assert_eq!(reason(reader.acquire(Target::Id(id), &all())), Reason::NotFound);
    assert_eq!(reason(reader.describe(Target::Id(id))), Reason::NotFound);
    let stored = reservation.seal(&PutOptions::named("sealed")).unwrap();
    assert_eq!(stored.reference().id(), id);
    assert!(is_intact(&reader.acquire("sealed", &all()).unwrap()));
    drop(stored);
    reader.unname(&["sealed"]).unwrap();
    sidecar.assert_all_free();
}

#[test]
fn an_aborted_or_dropped_reservation_leaves_nothing() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let reservation = client.reserve(&u8s(1 << 20)).unwrap();
    let id = reservation.id();
    reservation.abort();
    drop(client.reserve(&u8s(1 << 20)).unwrap());
    client.flush().unwrap();
    assert_eq!(client.status().unwrap().tensors, 0);
    assert_eq!(reason(client.acquire(Target::Id(id), &all())), Reason::NotFound);
    sidecar.assert_all_free();
}

#[test]
fn a_repeated_put_is_stored_once() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    for bytes in [100, 100_000] {
        let options = PutOptions { retry_id: Some(RetryId([bytes as u8; 16])), ..PutOptions::new() };
        let first = put_pattern(&client, 1, bytes, &options).unwrap();
        let again = put_pattern(&client, 1, bytes, &options).unwrap();
        assert_eq!(first.reference(), again.reference());
        assert_eq!(client.status().unwrap().tensors, 1);
        assert!(is_intact(&client.acquire(again.reference(), &all()).unwrap()));
        // One lease was given, and two guards say so: the session's end settles it, as a flush of one does here.
        drop((first, again));
        client.flush().unwrap();
        assert_eq!(client.status().unwrap().tensors, 0);
    }
    sidecar.assert_all_free();
}

#[test]
fn a_lease_is_counted_and_the_last_one_frees() {
    let sidecar = Sidecar::start();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    let stored = put_pattern(&writer, 1, 4096, &PutOptions::new()).unwrap();
    let reference = stored.reference().clone();
    let first = reader.acquire(&reference, &all()).unwrap();
    let second = reader.acquire(&reference, &all()).unwrap();
    drop(stored);
    drop(first);
    // Each session's releases travel on its own socket: wait for both.
    until("one lease is left", || writer.describe(&reference).unwrap().leases == 1);
    assert!(is_intact(&second));
    drop(second);
    until("the last lease is gone", || writer.describe(&reference).is_err());
    assert_eq!(reason(writer.describe(&reference)), Reason::NotFound);
    sidecar.assert_all_free();
}

#[test]
fn a_session_writes_again_into_the_segments_that_it_has() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    for seed in 0..200 {
        let stored = put_pattern(&client, seed, 1 << 20, &PutOptions::new()).unwrap();
        assert!(is_intact(&client.acquire(stored.reference(), &all()).unwrap()));
    }
    // 200 MiB went through it.
    let arena = client.status().unwrap().arena.unwrap();
    assert!(arena.held <= 32 << 20, "{arena:?}");
    sidecar.assert_all_free();
}

#[test]
fn threads_share_a_client() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..100 {
                    let (seed, bytes) = (thread * 1000 + round, 1 + (round * 977) % 90_000);
                    let stored = put_pattern(client, seed, bytes, &PutOptions::new()).unwrap();
                    assert!(is_intact(&client.acquire(stored.reference(), &all()).unwrap()));
                }
            });
        }
    });
    sidecar.assert_all_free();
}

#[test]
fn bytes_can_be_copied_out_into_memory_of_ones_own() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 4, 1000, &PutOptions::new()).unwrap();
    let mut bytes = vec![0; 1000];
    let (descriptor, _) = client.get_into(stored.reference(), &all(), &mut bytes).unwrap();
    assert_eq!((descriptor, bytes), (seeded(4, 1000), pattern(4, 1000)));
    assert!(client.get_into(stored.reference(), &all(), &mut [0; 999]).is_err());
    drop(stored);
    sidecar.assert_all_free();
}

#[test]
fn limits_of_a_sidecar_are_refusals_with_a_name() {
    let options = SidecarOptions::default()
        .set("limits.tensors", 2)
        .set("limits.names", 1)
        .set("limits.leasesPerSession", 3)
        .set("limits.sessions", 2);
    let sidecar = Sidecar::with(options);
    let client = sidecar.client();
    let first = put_pattern(&client, 1, 64, &PutOptions::named("one")).unwrap();
    let second = put_pattern(&client, 2, 64, &PutOptions::new()).unwrap();
    assert_eq!(reason(put_pattern(&client, 3, 64, &PutOptions::new())), Reason::LimitExceeded);
    assert_eq!(reason(client.reserve(&u8s(64))), Reason::LimitExceeded);
    assert_eq!(reason(client.name(second.reference(), "two", None)), Reason::LimitExceeded);
    let third = client.acquire("one", &all()).unwrap();
    assert_eq!(reason(client.acquire("one", &all())), Reason::LimitExceeded);
    let other = sidecar.client();
    let refused = failure(Client::connect(sidecar.sockets()));
    assert_eq!(refused.reason, Reason::SessionLimit, "{refused}");
    client.unname(&["one"]).unwrap();
    drop((first, second, third, other, client));
    // And those before have ended.
    until("there is room for a session", || {
        let status = Client::connect(sidecar.sockets()).and_then(|client| client.status());
        status.is_ok_and(|status| status.sessions == 1)
    });
    sidecar.assert_all_free();
}

//! Contexts of pipes: calls that return at once and callbacks that come once, in order, one at a time, whatever happens.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tensorlane_client::channel::Timeout;
use tensorlane_client::pipe::{
    Allocation, CallbackListener, CallbackPipe, ConnectOptions, Context, Delivered, Descriptor, Incoming,
    ListenOptions, Message, OwnedAllocation, OwnedPlace, ReadDone, Tensor, UNREAD_MAX, WriteDone,
};
use tensorlane_client::{Client, Error, PutOptions, Result};
use tensorlane_proto::Reason;
use tensorlane_tests::pipes::{LONG, next, text};
use tensorlane_tests::tensors::{pattern, u8s};
use tensorlane_tests::{Sidecar, SidecarOptions, until};

const MINUTE: Duration = Duration::from_secs(60);

/// A callback that tells its outcome, and where that is told.
fn tell<T: Send + 'static>() -> (impl FnOnce(T) + Send + 'static, Receiver<T>) {
    let (tell, told) = mpsc::channel();
    (move |outcome| drop(tell.send(outcome)), told)
}

fn hear<T>(told: &Receiver<T>) -> T {
    told.recv_timeout(MINUTE).expect("a callback is called")
}

fn waits() -> ConnectOptions {
    ConnectOptions::new().wait(MINUTE)
}

fn contexts(sidecar: &Sidecar) -> (Context, Context) {
    let context = |client: Client| Context::new(&client).unwrap();
    (context(sidecar.client()), context(sidecar.client()))
}

fn accept(listener: &CallbackListener) -> Receiver<Result<CallbackPipe>> {
    let (accepted, told) = tell();
    listener.accept(accepted).unwrap();
    told
}

/// A pipe from one context to another.
fn pipe(from: &Context, to: &Context) -> (CallbackPipe, CallbackPipe) {
    // A name of its own: the listener before may not have ended when the other session connects.
    static PIPES: AtomicUsize = AtomicUsize::new(0);
    let name = format!("inbox-{}", PIPES.fetch_add(1, Ordering::Relaxed));
    let listener = to.listen(&name, &ListenOptions::new()).unwrap();
    let accepted = accept(&listener);
    let near = from.connect(&name, &waits()).unwrap();
    (near, hear(&accepted).unwrap())
}

fn write(pipe: &CallbackPipe, message: Message) -> Receiver<WriteDone> {
    let (done, told) = tell();
    pipe.write(message, done).unwrap();
    told
}

fn ask(pipe: &CallbackPipe) -> Receiver<Result<Incoming>> {
    let (done, told) = tell();
    pipe.read_descriptor(done).unwrap();
    told
}

fn read(pipe: &CallbackPipe, descriptor: Descriptor, places: Vec<OwnedPlace>) -> Receiver<ReadDone> {
    let (done, told) = tell();
    pipe.read(descriptor, OwnedAllocation::new(places), done).unwrap();
    told
}

/// The message that came.
fn message(incoming: Result<Incoming>) -> Descriptor {
    match incoming.unwrap() {
        Incoming::Message(descriptor) => descriptor,
        Incoming::End => panic!("a message is there"),
    }
}

fn reason<T>(outcome: Result<T>) -> Option<Reason> {
    outcome.err().expect("it fails").reason()
}

/// Reads every message until the pipe ends.
fn read_all(pipe: &CallbackPipe) {
    let again = pipe.clone();
    let done = move |incoming: Result<Incoming>| {
        let Ok(Incoming::Message(descriptor)) = incoming else { return };
        again.read(descriptor, OwnedAllocation::map(), |done| drop(done.outcome.unwrap())).unwrap();
        read_all(&again);
    };
    pipe.read_descriptor(done).unwrap();
}

/// Gate that callbacks wait at.
fn gate() -> (mpsc::Sender<()>, impl FnOnce() + Send + 'static) {
    let (open, opened) = mpsc::channel();
    // Open, too, when the test has failed.
    (open, move || _ = opened.recv_timeout(MINUTE))
}

#[test]
fn a_message_is_read_inside_the_callback_of_its_descriptor_where_that_says() {
    let sidecar = Sidecar::start();
    let (from, to) = contexts(&sidecar);
    let (near, far) = pipe(&from, &to);
    assert_eq!(far.remote().unwrap().route, "local");
    until("the other end knows that it is connected", || near.remote().is_some());
    assert_eq!(near.remote().unwrap().route, "local");
    let (tell, told) = mpsc::channel();
    let reader = far.clone();
    let described = move |incoming: Result<Incoming>| {
        let descriptor = message(incoming);
        let bytes = |tensor: (&tensorlane_proto::Descriptor, &[u8])| tensor.0.layout.packed_bytes() as usize;
        let first = descriptor.tensors().next().map_or(0, bytes);
        let places = vec![OwnedPlace::Bytes(vec![0; first]), OwnedPlace::Map, OwnedPlace::Skip];
        let done = move |done: ReadDone| tell.send(done).unwrap();
        reader.read(descriptor, OwnedAllocation::new(places), done).unwrap();
    };
    far.read_descriptor(described).unwrap();
    let (a, b, c) = (pattern(1, 1 << 20), pattern(2, 200_000), pattern(3, 10));
    let ping = text("ping")
        .payload("small")
        .tensor(u8s(1 << 20), a.clone())
        .tensor(u8s(200_000), b.clone())
        .tensor(u8s(10), c);
    let written = write(&near, ping);
    let done = hear(&told);
    let received = done.outcome.unwrap();
    assert_eq!((&received.metadata[..], received.payloads[0].to_vec()), (&b"ping"[..], b"small".to_vec()));
    let [Tensor::Copied, Tensor::Mapped(mapped), Tensor::Skipped] = &received.tensors[..] else {
        panic!("as the places say: {received:?}")
    };
    assert_eq!(mapped.to_vec(), b);
    let [OwnedPlace::Bytes(bytes), OwnedPlace::Map, OwnedPlace::Skip] = &done.allocation.into_places()[..]
    else {
        panic!("the places come back")
    };
    assert_eq!(*bytes, a);
    assert_eq!(hear(&written).unwrap().parts(), (1, 3), "the message comes back");
    drop((received, near, far, from, to));
    sidecar.assert_all_free();
}

#[test]
fn two_pings_are_echoed_from_the_memory_that_they_were_read_into() {
    let sidecar = Sidecar::start();
    let (from, to) = contexts(&sidecar);
    let (near, far) = pipe(&from, &to);
    for _ in 0..2 {
        let echo = far.clone();
        let described = move |incoming: Result<Incoming>| {
            let descriptor = message(incoming);
            let read = move |done: ReadDone, echo: &CallbackPipe| {
                let metadata = done.outcome.unwrap().metadata;
                let Some(OwnedPlace::Bytes(bytes)) = done.allocation.into_places().pop() else {
                    panic!("the bytes come back")
                };
                let pong = Message::new().metadata(metadata).tensor(u8s(bytes.len() as u64), bytes);
                echo.write(pong, |done| drop(done.unwrap())).unwrap();
            };
            let places = OwnedAllocation::new(vec![OwnedPlace::Bytes(vec![0; 1000])]);
            let answer = echo.clone();
            echo.read(descriptor, places, move |done| read(done, &answer)).unwrap();
        };
        far.read_descriptor(described).unwrap();
    }
    let ping = |seed| text(&format!("{seed}")).tensor(u8s(1000), pattern(seed, 1000));
    let written = [1, 2].map(|seed| write(&near, ping(seed)));
    let answers = [1, 2].map(|_| ask(&near));
    for (seed, answer) in [1, 2].into_iter().zip(answers) {
        let descriptor = message(hear(&answer));
        assert_eq!(descriptor.metadata(), format!("{seed}").as_bytes());
        let done = hear(&read(&near, descriptor, vec![OwnedPlace::Bytes(vec![0; 1000])]));
        done.outcome.unwrap();
        let [OwnedPlace::Bytes(bytes)] = &done.allocation.into_places()[..] else { panic!("they come back") };
        assert_eq!(*bytes, pattern(seed, 1000));
    }
    written.iter().for_each(|written| drop(hear(written).unwrap()));
    from.join(LONG).unwrap();
    to.join(LONG).unwrap();
    assert_eq!((from.panics(), to.panics()), (0, 0));
}

#[test]
fn callbacks_of_a_context_run_on_its_thread_and_never_beside_each_other() {
    const PIPES: usize = 4;
    const MESSAGES: usize = 50;
    let sidecar = Sidecar::start();
    let context = Context::new(&sidecar.client()).unwrap();
    let threads = Arc::new(Mutex::new(Vec::<(ThreadId, Option<String>)>::new()));
    let (inside, overlaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let look = || {
        let (threads, inside, overlaps) = (Arc::clone(&threads), Arc::clone(&inside), Arc::clone(&overlaps));
        move || {
            overlaps.fetch_add(usize::from(inside.swap(true, Ordering::SeqCst)), Ordering::SeqCst);
            let thread = thread::current();
            threads.lock().unwrap().push((thread.id(), thread.name().map(str::to_owned)));
            (0..20).for_each(|_| thread::yield_now());
            inside.store(false, Ordering::SeqCst);
        }
    };
    // Both ends of each are of this context.
    let pipes: Vec<_> = (0..PIPES).map(|_| pipe(&context, &context)).collect();
    for (near, far) in &pipes {
        read_all(far);
        for number in 0..MESSAGES {
            let look = look();
            near.write(text(&format!("{number}")), move |done| {
                look();
                done.unwrap();
            })
            .unwrap();
        }
    }
    until("all of them were called", || threads.lock().unwrap().len() == PIPES * MESSAGES);
    let threads = threads.lock().unwrap();
    assert!(threads.iter().all(|thread| *thread == threads[0]), "{threads:?}");
    assert_eq!(threads[0].1.as_deref(), Some("tl-pipes"));
    assert_ne!(threads[0].0, thread::current().id());
    assert_eq!((overlaps.load(Ordering::SeqCst), context.panics()), (0, 0));
}

#[test]
fn callbacks_of_two_contexts_may_run_at_the_same_time() {
    let sidecar = Sidecar::start();
    let (one, other) = contexts(&sidecar);
    // Each waits for the other inside its callback.
    let ((to_other, from_one), (to_one, from_other)) = (mpsc::channel(), mpsc::channel());
    let meets = |context: &Context, say: mpsc::Sender<()>, hear: Receiver<()>| {
        let (met, told) = tell();
        let nobody = context.connect("nobody", &ConnectOptions::new()).unwrap();
        let done = move |_| {
            say.send(()).unwrap();
            met(hear.recv_timeout(MINUTE).is_ok());
        };
        nobody.read_descriptor(done).unwrap();
        (nobody, told)
    };
    let (_one, one_met) = meets(&one, to_other, from_other);
    let (_other, other_met) = meets(&other, to_one, from_one);
    assert!(hear(&one_met) && hear(&other_met));
}

#[test]
fn no_call_waits_for_anything() {
    let sidecar = Sidecar::with(SidecarOptions::default().set("arena.size", "64Mi"));
    let client = sidecar.client();
    let kept = client.put(&u8s(40 << 20), &pattern(1, 40 << 20), &PutOptions::new()).unwrap();
    let (from, to) = contexts(&sidecar);
    // The thread of callbacks is busy, nobody listens, and there is no room for a message.
    let (open, wait) = gate();
    let nobody = from.connect("nobody", &ConnectOptions::new()).unwrap();
    nobody.write(Message::new(), move |_| wait()).unwrap();
    let near = from.connect("inbox", &waits()).unwrap();
    let written: Vec<_> = (0..2 * UNREAD_MAX).map(|_| write(&near, text("small"))).collect();
    let large = write(&near, text("large").payload(vec![7; 30 << 20]));
    let answered = ask(&near);
    near.finish().unwrap();
    assert!(near.remote().is_none());
    let listener = to.listen("inbox", &ListenOptions::new()).unwrap();
    let accepted = accept(&listener);
    let not_yet = |told: &Receiver<WriteDone>| told.try_recv().is_err();
    assert!(written.iter().all(not_yet) && not_yet(&large), "all calls have returned before any callback");
    open.send(()).unwrap();
    let far = hear(&accepted).unwrap();
    read_all(&far);
    written.iter().for_each(|written| drop(hear(written).unwrap()));
    drop(kept);
    hear(&large).unwrap();
    far.finish().unwrap();
    assert!(matches!(hear(&answered), Ok(Incoming::End)));
}

#[test]
fn callbacks_are_deferred_also_those_of_calls_inside_a_callback() {
    let sidecar = Sidecar::start();
    let (from, to) = contexts(&sidecar);
    let (near, far) = pipe(&from, &to);
    far.close();
    // What would come at once comes behind the call all the same, or the lock would be waited for by its holder.
    let lock = Arc::new(Mutex::new(()));
    let held = lock.lock().unwrap();
    let (tell, told) = mpsc::channel();
    let (first, inner) = (tell.clone(), near.clone());
    let inside = Arc::clone(&lock);
    let done = move |_| {
        drop(inside.lock().unwrap());
        let returned = Arc::new(AtomicBool::new(false));
        let has_returned = Arc::clone(&returned);
        let done = move |_| first.send(has_returned.load(Ordering::SeqCst)).unwrap();
        inner.read_descriptor(done).unwrap();
        inner.close();
        returned.store(true, Ordering::SeqCst);
    };
    near.write(text("nobody"), done).unwrap();
    drop(held);
    assert!(hear(&told), "a callback never runs inside the call that scheduled it");
}

#[test]
fn callbacks_come_in_the_order_of_their_calls_though_operations_end_in_another() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let listener = client.listen("inbox").unwrap();
    let context = Context::new(&sidecar.client()).unwrap();
    let near = context.connect("inbox", &waits()).unwrap();
    let (tell, told) = mpsc::channel();
    for number in 0..10 {
        let tell = tell.clone();
        let size = 1 << (2 * number);
        let message = text(&format!("{number}")).tensor(u8s(size), pattern(number, size as usize));
        near.write(message, move |done| tell.send((number, done.is_ok())).unwrap()).unwrap();
    }
    let far = listener.accept(LONG).unwrap();
    // All of them are on their way before any was read.
    let mut descriptors: Vec<_> = (0..10).map(|_| next(&far)).collect();
    while let Some(last) = descriptors.pop() {
        far.read(last, Allocation::map()).unwrap();
    }
    let order: Vec<_> = (0..10).map(|_| hear(&told)).collect();
    assert_eq!(order, (0..10).map(|number| (number, true)).collect::<Vec<_>>());
    // Those of reads too: descriptors that were asked for together come in the order of messages.
    let asked: Vec<_> = (0..10).map(|_| ask(&near)).collect();
    let back: Vec<_> = (0..10).map(|n| far.begin(text(&format!("back {n}")), LONG).unwrap()).collect();
    for (number, asked) in asked.iter().enumerate() {
        let descriptor = message(hear(asked));
        assert_eq!(descriptor.metadata(), format!("back {number}").as_bytes());
        hear(&read(&near, descriptor, vec![])).outcome.unwrap();
    }
    back.into_iter().for_each(|writing| drop(writing.wait().unwrap()));
}

#[test]
fn the_next_descriptor_waits_until_the_one_before_was_read_or_dropped() {
    let sidecar = Sidecar::start();
    let (from, to) = contexts(&sidecar);
    let (near, far) = pipe(&from, &to);
    let written = [1, 2, 3].map(|seed| write(&near, text("m").tensor(u8s(100), pattern(seed, 100))));
    let asked = [(); 4].map(|()| ask(&far));
    let first = message(hear(&asked[0]));
    // A read that fails gives the memory and the descriptor back; the message stays the next one.
    let done = hear(&read(&far, first, vec![OwnedPlace::Bytes(vec![7; 99])]));
    let failed = done.outcome.unwrap_err();
    assert_eq!(failed.error.reason(), Some(Reason::LayoutMismatch));
    let places = done.allocation.into_places();
    assert!(matches!(&places[..], [OwnedPlace::Bytes(bytes)] if *bytes == [7; 99]), "{places:?}");
    assert!(asked[1].try_recv().is_err(), "its descriptor is still in our hands");
    let done = hear(&read(&far, failed.descriptor, vec![OwnedPlace::Map]));
    drop(done.outcome.unwrap());
    let second = message(hear(&asked[1]));
    assert_eq!(second.sequence(), 2);
    drop(second);
    let again = message(hear(&asked[2]));
    assert_eq!(again.sequence(), 2, "what is dropped unread comes again");
    drop(hear(&read(&far, again, vec![OwnedPlace::Skip])).outcome.unwrap());
    let third = message(hear(&asked[3]));
    drop(hear(&read(&far, third, vec![OwnedPlace::Map])).outcome.unwrap());
    written.iter().for_each(|written| drop(hear(written).unwrap()));
}

#[test]
fn a_connect_to_nobody_fails_in_the_callbacks_of_its_operations() {
    let sidecar = Sidecar::start();
    let context = Context::new(&sidecar.client()).unwrap();
    let nobody = context.connect("nobody", &ConnectOptions::new()).unwrap();
    let (written, asked) = (write(&nobody, text("back").payload("7")), ask(&nobody));
    let failed = hear(&written).unwrap_err();
    assert_eq!((failed.delivered, failed.error.reason()), (Delivered::No, Some(Reason::NotFound)));
    assert_eq!(failed.message.parts(), (1, 0), "the message comes back");
    // With an error there is no descriptor.
    assert_eq!(reason(hear(&asked)), Some(Reason::NotFound));
    assert_eq!(reason(hear(&ask(&nobody))), Some(Reason::NotFound), "also later");
    assert!(nobody.remote().is_none());
    let one = context.listen("inbox", &ListenOptions::new()).unwrap();
    let _connected = sidecar.client().connect_pipe(one.name(), &waits()).unwrap();
    let taken = context.listen(one.name(), &ListenOptions::new()).unwrap();
    assert_eq!(reason(hear(&accept(&taken))), Some(Reason::NameTaken));
}

#[test]
fn accepts_wait_for_connects_and_connects_for_accepts_in_their_order() {
    let sidecar = Sidecar::start();
    let (from, to) = contexts(&sidecar);
    let listener = to.listen("inbox", &ListenOptions::new()).unwrap();
    let (tell, told) = mpsc::channel();
    let accept = |number: usize| {
        let tell = tell.clone();
        listener.accept(move |pipe| tell.send((number, pipe.unwrap())).unwrap()).unwrap();
    };
    // Ten accepts before ten connects.
    (0..10).for_each(accept);
    let connect = |_| from.connect("inbox", &waits()).unwrap();
    let near: Vec<_> = (0..10).map(connect).collect();
    let far: Vec<_> = (0..10).map(|_| hear(&told)).collect();
    assert!(far.iter().map(|(number, _)| *number).eq(0..10));
    let talk = |near: &[CallbackPipe], far: &[(usize, CallbackPipe)]| {
        let written: Vec<_> = near.iter().map(|pipe| write(pipe, text("hello"))).collect();
        far.iter().for_each(|(_, pipe)| read_all(pipe));
        written.iter().for_each(|written| drop(hear(written).unwrap()));
    };
    talk(&near, &far);
    // Ten connects before ten accepts.
    let near: Vec<_> = (0..10).map(connect).collect();
    until("all of them are connected", || near.iter().all(|pipe| pipe.remote().is_some()));
    (10..20).for_each(accept);
    let far: Vec<_> = (0..10).map(|_| hear(&told)).collect();
    assert!(far.iter().map(|(number, _)| *number).eq(10..20));
    talk(&near, &far);
}

#[test]
fn a_close_ends_every_accept_and_every_connect_that_waits() {
    let sidecar = Sidecar::start();
    let (from, to) = contexts(&sidecar);
    let listener = to.listen("inbox", &ListenOptions::new()).unwrap();
    let accepts: Vec<_> = (0..10).map(|_| accept(&listener)).collect();
    listener.close();
    accepts.iter().for_each(|accepted| assert_eq!(reason(hear(accepted)), Some(Reason::PipeClosed)));
    assert_eq!(listener.name(), "inbox");
    assert_eq!(reason(hear(&accept(&listener))), Some(Reason::PipeClosed), "also later");
    let waiting = from.connect("later", &waits()).unwrap();
    let written = write(&waiting, text("back"));
    waiting.close();
    let failed = hear(&written).unwrap_err();
    assert_eq!((failed.delivered, failed.error.reason()), (Delivered::No, Some(Reason::PipeClosed)));
    from.close();
    for late in [from.connect("inbox", &waits()).unwrap(), waiting] {
        assert_eq!(hear(&write(&late, text("late"))).unwrap_err().error.reason(), Some(Reason::PipeClosed));
        assert_eq!(reason(hear(&ask(&late))), Some(Reason::PipeClosed));
    }
    let late = from.listen("late", &ListenOptions::new()).unwrap();
    assert_eq!(reason(hear(&accept(&late))), Some(Reason::PipeClosed));
    from.join(LONG).unwrap();
}

#[test]
fn the_last_handle_of_a_pipe_may_be_dropped_inside_its_own_callback() {
    let sidecar = Sidecar::start();
    let (from, to) = contexts(&sidecar);
    let (near, far) = pipe(&from, &to);
    let (pending, behind) = (ask(&near), write(&far, text("unread")));
    let (done, told) = tell();
    let handle = near.clone();
    near.write(text("last"), move |written: WriteDone| {
        drop(handle);
        done(written.is_ok());
    })
    .unwrap();
    drop(near);
    // It lives by what its callbacks hold.
    let descriptor = message(hear(&ask(&far)));
    drop(hear(&read(&far, descriptor, vec![])).outcome.unwrap());
    assert!(hear(&told));
    // What was pending has either come before the end or ended with it.
    drop(hear(&pending));
    let failed = hear(&behind).unwrap_err();
    assert_eq!(failed.error.reason(), Some(Reason::PipeClosed));
    assert_eq!(reason(hear(&ask(&far))), Some(Reason::PipeClosed));
    from.join(LONG).unwrap();
}

#[test]
fn a_pipe_and_a_context_may_be_closed_inside_each_kind_of_callback() {
    let sidecar = Sidecar::start();
    for whole in [false, true] {
        for kind in ["write", "descriptor", "read", "accept"] {
            let (from, to) = contexts(&sidecar);
            let (near, far) = pipe(&from, &to);
            let others = [ask(&near), ask(&near)];
            let writes = [write(&near, text("one")), write(&near, text("two"))];
            let back = [write(&far, text("back")), write(&far, text("back"))];
            let listener = from.listen("other", &ListenOptions::new()).unwrap();
            let (closed, told) = tell();
            let (context, handle) = (Mutex::new(Some(from)), near.clone());
            let close = move || {
                // Dropped, which closes it and waits for nothing.
                if whole {
                    drop(context.lock().unwrap().take());
                } else {
                    handle.close();
                }
                closed(());
            };
            match kind {
                "write" => {
                    near.write(text("third"), move |_| close()).unwrap();
                    read_all(&far);
                }
                "descriptor" => {
                    let first = message(hear(&others[0]));
                    drop(hear(&read(&near, first, vec![])).outcome.unwrap());
                    drop(message(hear(&others[1])));
                    near.read_descriptor(move |_| close()).unwrap();
                }
                "read" => {
                    let first = message(hear(&others[0]));
                    near.read(first, OwnedAllocation::map(), move |_| close()).unwrap();
                }
                _ => {
                    listener.accept(move |_| close()).unwrap();
                    listener.close();
                }
            }
            hear(&told);
            writes.iter().for_each(|written| drop(hear(written)));
            near.close();
            assert_eq!(reason(hear(&ask(&near))), Some(Reason::PipeClosed), "{kind}");
            to.close();
            back.iter().for_each(|written| drop(hear(written)));
            to.join(LONG).unwrap();
        }
    }
}

#[test]
fn a_callback_that_panics_is_counted_and_the_others_are_called() {
    let sidecar = Sidecar::start();
    let (from, to) = contexts(&sidecar);
    let (near, far) = pipe(&from, &to);
    for _ in 0..3 {
        near.write(text("panics"), |_| panic!("a panic of this test, inside a callback")).unwrap();
    }
    let behind = write(&near, text("behind"));
    read_all(&far);
    hear(&behind).unwrap();
    assert_eq!(from.panics(), 3);
    hear(&write(&near, text("later"))).unwrap();
    from.join(LONG).unwrap();
}

#[test]
fn a_context_that_is_closed_with_a_thousand_operations_under_way_calls_every_callback_once() {
    const EACH: usize = 100;
    let sidecar = Sidecar::start();
    let (from, to) = contexts(&sidecar);
    let mut kept = Vec::new();
    let (tell, told) = mpsc::channel();
    let count = |what: &'static str| {
        let tell = tell.clone();
        move |reason: Option<Reason>| _ = tell.send((what, reason))
    };
    for _ in 0..5 {
        let (near, far) = pipe(&from, &to);
        for _ in 0..EACH {
            let (write, descriptor) = (count("write"), count("descriptor"));
            let message = text("under way").tensor(u8s(1000), pattern(1, 1000));
            near.write(message, move |done| write(done.unwrap_err().error.reason())).unwrap();
            near.read_descriptor(move |done| descriptor(done.unwrap_err().reason())).unwrap();
        }
        kept.push((near, far));
    }
    let error = from.join(Timeout::Now).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::DeadlineExceeded));
    assert!(error.to_string().contains("1000 operations"), "{error}");
    from.close();
    from.join(LONG).unwrap();
    let mut outcomes: Vec<_> = told.try_iter().collect();
    outcomes.sort_unstable_by_key(|(what, _)| *what);
    let closed = Some(Reason::PipeClosed);
    let expected = [vec![("descriptor", closed); 5 * EACH], vec![("write", closed); 5 * EACH]].concat();
    assert_eq!(outcomes, expected);
    // The other ends hear so, and nothing is left.
    for (_, far) in &kept {
        let is_closed = |error: Error| error.reason() == Some(Reason::PipeClosed);
        until("the other end is closed", || hear(&ask(far)).err().is_some_and(is_closed));
    }
    drop((kept, from, to));
    sidecar.assert_all_free();
}

#[test]
fn a_context_that_is_dropped_calls_every_callback_all_the_same() {
    let sidecar = Sidecar::start();
    let (from, to) = contexts(&sidecar);
    let (near, far) = pipe(&from, &to);
    let (asked, written) = (ask(&near), write(&near, text("unread")));
    drop(from);
    assert_eq!(reason(hear(&asked)), Some(Reason::PipeClosed));
    assert_eq!(hear(&written).unwrap_err().error.reason(), Some(Reason::PipeClosed));
    let late = hear(&write(&near, text("late"))).unwrap_err();
    assert!(late.error.to_string().contains("context"), "{}", late.error);
    drop((near, far, to));
    sidecar.assert_all_free();
}

#[test]
fn a_context_cannot_be_joined_inside_its_own_callback() {
    let sidecar = Sidecar::start();
    let context = Arc::new(Context::new(&sidecar.client()).unwrap());
    let nobody = context.connect("nobody", &ConnectOptions::new()).unwrap();
    let (done, told) = tell();
    let own = Arc::clone(&context);
    nobody.read_descriptor(move |_| done(own.join(LONG))).unwrap();
    assert!(matches!(hear(&told), Err(Error::InvalidArgument(_))));
    context.join(LONG).unwrap();
}

#[test]
fn many_writes_wait_for_room_and_an_orderly_end_comes_behind_them() {
    const WRITES: usize = 5 * UNREAD_MAX;
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let listener = client.listen("inbox").unwrap();
    let context = Context::new(&sidecar.client()).unwrap();
    let near = context.connect("inbox", &waits()).unwrap();
    let written: Vec<_> = (0..WRITES).map(|number| write(&near, text(&format!("{number}")))).collect();
    near.finish().unwrap();
    near.finish().unwrap();
    let late = write(&near, text("late"));
    let far = listener.accept(LONG).unwrap();
    for number in 0..WRITES {
        let descriptor = next(&far);
        assert_eq!(descriptor.metadata(), format!("{number}").as_bytes());
        far.read(descriptor, Allocation::map()).unwrap();
    }
    assert!(tensorlane_tests::pipes::is_end(&far));
    written.iter().for_each(|written| drop(hear(written).unwrap()));
    assert_eq!(hear(&late).unwrap_err().error.reason(), Some(Reason::PipeClosed));
}

#[test]
fn an_orderly_end_is_not_lost_by_a_close_behind_it() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let context = Context::new(&sidecar.client()).unwrap();
    for number in 0..20 {
        let name = format!("inbox-{number}");
        let listener = client.listen(&name).unwrap();
        let near = context.connect(&name, &waits()).unwrap();
        // The last handle goes with the callback of the last write, or behind a join.
        let joined = number % 2 == 0;
        if joined {
            drop(write(&near, text("last")));
        } else {
            let last = near.clone();
            near.write(text("last"), move |_| last.finish().unwrap()).unwrap();
        }
        let kept = joined.then_some(near);
        let far = listener.accept(LONG).unwrap();
        far.read(next(&far), Allocation::map()).unwrap();
        if let Some(near) = kept {
            near.finish().unwrap();
            context.join(LONG).unwrap();
        }
        assert!(tensorlane_tests::pipes::is_end(&far), "pipe {number}");
    }
}

#[test]
fn a_close_that_cuts_writes_off_is_no_orderly_end() {
    let sidecar = Sidecar::start();
    let listener = sidecar.client().listen("inbox").unwrap();
    let context = Context::new(&sidecar.client()).unwrap();
    let near = context.connect("inbox", &waits()).unwrap();
    // Some of them wait here, and the finish behind them.
    let written: Vec<_> = (0..2 * UNREAD_MAX).map(|_| write(&near, text("unread"))).collect();
    near.finish().unwrap();
    let far = listener.accept(LONG).unwrap();
    let first = next(&far);
    near.close();
    for written in &written {
        assert_eq!(hear(written).unwrap_err().error.reason(), Some(Reason::PipeClosed));
    }
    context.join(LONG).unwrap();
    drop(first);
    // The sidecar hears of the close after the calls have: until then the far end reads on.
    let ended = (1..2 * UNREAD_MAX).find_map(|_| far.read_descriptor(LONG).err()).unwrap();
    assert_eq!(ended.reason(), Some(Reason::PipeClosed));
}

#[test]
fn a_sidecar_that_is_killed_gives_every_message_back() {
    let mut sidecar = Sidecar::start();
    let (from, to) = contexts(&sidecar);
    let (near, far) = pipe(&from, &to);
    let written: Vec<_> = (0..2 * UNREAD_MAX).map(|_| write(&near, text("back").payload("7"))).collect();
    let (asked, listener) = (ask(&far), to.listen("other", &ListenOptions::new()).unwrap());
    let first = message(hear(&asked));
    let (waiting, accepted) = (ask(&near), accept(&listener));
    sidecar.kill();
    for written in &written {
        let failed = hear(written).unwrap_err();
        assert_eq!(failed.message.parts(), (1, 0));
    }
    hear(&waiting).unwrap_err();
    hear(&accepted).unwrap_err();
    let done = hear(&read(&far, first, vec![]));
    // Metadata is here; that it was read cannot be said any more.
    done.outcome.unwrap_err();
    from.join(LONG).unwrap();
    to.join(LONG).unwrap();
}

//! Limits of contexts and forks against the twin.

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tensorlane_proto::Reason;
use tensorlane_proto::frame::PIPES_SINCE;

use super::*;
use crate::error::Error;
use crate::fake_sidecar::FakeSidecar;
use crate::pipe::Message;

const MINUTE: Duration = Duration::from_secs(60);

fn start() -> (FakeSidecar, Client) {
    let twin = FakeSidecar::start();
    twin.state.lock().version = PIPES_SINCE;
    let client = Client::connect(twin.directory()).unwrap();
    (twin, client)
}

fn tell<T: Send + 'static>() -> (impl FnOnce(T) + Send + 'static, Receiver<T>) {
    let (tell, told) = mpsc::channel();
    (move |outcome| tell.send(outcome).unwrap(), told)
}

fn refused(pipe: &CallbackPipe) -> Option<Reason> {
    let (done, told) = tell();
    pipe.write(Message::new(), done).unwrap();
    told.recv_timeout(MINUTE).unwrap().err().and_then(|failed| failed.error.reason())
}

#[test]
fn every_call_in_a_child_of_the_process_is_refused_and_calls_nothing() {
    let (_twin, client) = start();
    let context = Context::of(&client, Origin::parent()).unwrap();
    let (pipe, listener) = (
        CallbackPipe::connect(&context.core, "inbox", &ConnectOptions::new()),
        CallbackListener::open(&context.core, "inbox", &ListenOptions::new()),
    );
    let (calls, called) = mpsc::channel::<()>();
    let call = || {
        let calls = calls.clone();
        move || calls.send(()).unwrap()
    };
    let (write, descriptor, accept) = (call(), call(), call());
    let outcomes = [
        context.connect("inbox", &ConnectOptions::new()).map(drop),
        context.listen("other", &ListenOptions::new()).map(drop),
        context.join(Timeout::Now),
        pipe.write(Message::new(), move |_| write()).map_err(|failed| failed.error),
        pipe.read_descriptor(move |_| descriptor()),
        pipe.finish(),
        listener.accept(move |_| accept()),
    ];
    for outcome in outcomes {
        assert!(matches!(outcome, Err(Error::Forked)));
    }
    pipe.close();
    context.close();
    assert!(pipe.remote().is_none());
    drop((pipe, listener, context, calls));
    assert!(called.recv().is_err(), "no callback was called");
}

#[test]
fn the_interrupt_of_a_client_is_asked_on_no_thread_of_a_context() {
    let twin = FakeSidecar::start();
    twin.state.lock().version = PIPES_SINCE;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let threads = Arc::clone(&asked);
    let interrupt = move || {
        threads.lock().push(thread::current().id());
        false
    };
    let client = Client::options(twin.directory()).interrupt(interrupt).connect().unwrap();
    let context = Context::new(&client).unwrap();
    let pipe = context.connect("inbox", &ConnectOptions::new()).unwrap();
    let listener = context.listen("other", &ListenOptions::new()).unwrap();
    crate::fake_sidecar::until("it is connected", || pipe.remote().is_some());
    let ((read, was_read), (accepted, was_accepted)) = (tell(), tell());
    pipe.read_descriptor(read).unwrap();
    listener.accept(accepted).unwrap();
    refused(&pipe);
    context.close();
    context.join(Timeout::After(MINUTE)).unwrap();
    drop((was_read.recv_timeout(MINUTE).unwrap(), was_accepted.recv_timeout(MINUTE).unwrap()));
    let here = thread::current().id();
    assert!(asked.lock().iter().all(|thread| *thread == here));
}

#[test]
fn an_operation_beyond_the_limit_is_refused_by_its_call_and_the_others_end_in_their_order() {
    let (twin, client) = start();
    twin.state.lock().holding = true;
    let context = Context::new(&client).unwrap();
    let pipe = context.connect("inbox", &ConnectOptions::new()).unwrap();
    let (tell, told) = mpsc::channel();
    let schedule = |number| {
        let tell = tell.clone();
        let done = move |incoming: Result<_>| tell.send((number, incoming.unwrap_err().reason())).unwrap();
        pipe.read_descriptor(done).unwrap();
    };
    (0..OPERATIONS_MAX).for_each(schedule);
    let next = || told.recv_timeout(MINUTE).unwrap();
    // However often: nothing of these is kept.
    for _ in 0..3 {
        let refused = pipe.write(Message::new().payload("back"), |_| ()).unwrap_err();
        assert_eq!((refused.error.reason(), refused.message.parts()), (Some(Reason::LimitExceeded), (1, 0)));
        assert_eq!(pipe.read_descriptor(|_| ()).unwrap_err().reason(), Some(Reason::LimitExceeded));
    }
    pipe.close();
    for number in 0..OPERATIONS_MAX {
        assert_eq!(next(), (number, Some(Reason::PipeClosed)));
    }
    context.join(Timeout::After(MINUTE)).unwrap();
    schedule(0);
    assert_eq!(next(), (0, Some(Reason::PipeClosed)), "there is room again");
}

#[test]
fn a_context_has_a_limit_of_ends_and_room_again_when_one_is_gone() {
    let (_twin, client) = start();
    let context = Context::new(&client).unwrap();
    let listen = |number: usize| context.listen(&format!("inbox-{number}"), &ListenOptions::new()).unwrap();
    let mut listeners: Vec<_> = (0..ENDS_MAX).map(listen).collect();
    let connect = || context.connect("inbox", &ConnectOptions::new()).unwrap();
    assert_eq!(refused(&connect()), Some(Reason::LimitExceeded));
    let (accepted, told) = tell();
    listeners[0].accept(accepted).unwrap();
    let refused_accept = told.recv_timeout(MINUTE).unwrap().unwrap_err();
    assert_eq!(refused_accept.reason(), Some(Reason::LimitExceeded));
    // Gone when its worker has let go of it, too.
    drop(listeners.pop());
    crate::fake_sidecar::until("there is room", || refused(&connect()) != Some(Reason::LimitExceeded));
}

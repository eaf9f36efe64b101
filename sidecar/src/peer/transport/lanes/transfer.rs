//! The bytes of one pull on their way over lanes: a landing with several writers, and who gets it back. It belongs to the
//! call and outlives lanes and connections; it knows neither.
//!
//! ```text
//!            reserve              begin            landed, given back
//!   (pieces) --------> (reserved) -----> (a part) ------------------> whole:   the landing goes to whoever brought the last piece
//!                                                                     stopped: to whoever stopped it, when the last part is back
//! ```
//! What is reserved was asked for, and holds nobody up: only while a part is out is somebody in the landing.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tensorlane_memory::{Landing, Part, Spread};
use tensorlane_proto::PeerName;

use super::claims::{Claims, Verdict};
use super::pieces::{GRANULE, Pieces};
use crate::hashes::Hash;
use crate::peer::api::PeerKey;
use crate::peer::calls::Finish;
use crate::peer::partial::PartialTensor;
use crate::peer::paths::{Senders, Travelled};
use crate::peer::relay::RelaySession;

/// Takes the landing of a transfer that was stopped.
type Tell = Box<dyn FnOnce(Landing) + Send>;
/// The part of the time it has left that a pull waits for a way that does nothing: one of so many.
const PART_OF_TIME: u32 = 4;
/// Sums of the owner that may wait for their bytes: more than all lanes have under way.
const SUMS_MAX: usize = 256;

/// A landing that lanes bring nothing to any more.
pub(in crate::peer) struct Reclaimed {
    pub(in crate::peer) landing: Landing,
    /// Number of bytes in it without a gap.
    pub(in crate::peer) prefix: u64,
    /// Bytes behind that gap.
    pub(in crate::peer) ahead: Vec<Range<u64>>,
}

/// The lane that bytes came on.
#[derive(Debug, Clone, Copy)]
pub(super) struct OnLane {
    /// Number of the lane among those of its connection.
    pub(super) number: u8,
    /// True if it is without encryption.
    pub(super) is_plain: bool,
}

/// A pull that comes over lanes.
pub(in crate::peer) struct Transfer {
    /// The call.
    pub(in crate::peer) call: u64,
    begun: Instant,
    /// Time from which nobody wants it any more.
    pub(super) deadline: Instant,
    state: Mutex<State>,
    /// None once the landing was given back. Locked after the state; read without it, for a copy takes its time.
    spread: RwLock<Option<Spread>>,
    /// Readers that are served from it meanwhile.
    growth: Option<Arc<PartialTensor>>,
}

struct State {
    pieces: Pieces,
    /// Parts that lanes have.
    out: usize,
    /// Bytes that came on lanes, of these those without encryption, and the numbers of those lanes, a bit each.
    came: u64,
    plain: u64,
    lanes: u32,
    /// Senders of the bytes.
    senders: Senders,
    /// Time at which a byte last came.
    moved: Option<Instant>,
    /// Set if it is to leave its lanes: nothing more is asked for until then.
    leaving: bool,
    over: bool,
    tell: Option<Tell>,
    /// The control connections so far, less one: the sum of a piece comes on the one that it was asked for under, or never.
    epoch: u64,
    /// Pieces that are here and have no sum yet, by where they begin, and since when.
    ours: HashMap<u64, (Sum, Instant)>,
    /// Sums of the owner whose pieces are not here yet, likewise.
    theirs: HashMap<u64, Sum>,
    /// Granules that others than the owner have sent, until they are proven.
    claims: Claims<Arc<RelaySession>>,
}

/// Checksum of a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Sum {
    length: u64,
    crc32c: u32,
    /// The lane that brought it, where that is known.
    lane: u64,
}

/// A piece that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reserved {
    range: Range<u64>,
    epoch: u64,
}

impl Reserved {
    /// Returns the range of bytes that the piece is.
    pub(super) fn range(&self) -> Range<u64> {
        self.range.clone()
    }
}

/// Piece that came on a lane.
pub(super) struct Brought {
    pub(super) part: Part,
    pub(super) reserved: Reserved,
    /// Of its bytes, where the owner says it, too.
    pub(super) crc32c: Option<u32>,
    /// The lane that brought it.
    pub(super) lane: u64,
    /// Sender, if that is not the owner, and hashes of its granules.
    pub(super) claim: Option<(Arc<RelaySession>, Vec<Hash>)>,
}

/// Granules that are not the owner's.
pub(in crate::peer) struct Forged {
    /// Sender of the granules.
    pub(in crate::peer) by: Arc<RelaySession>,
    pub(in crate::peer) granules: u64,
}

/// Outcome of a piece.
#[must_use]
pub(in crate::peer) enum Landed {
    /// More is to come.
    More,
    /// Landed as the last one. All bytes are in the landing.
    Whole(Landing),
    /// Nobody wants it any more; this is to be told.
    Told(Finish),
    /// Piece that is not what the owner sent; the lane that brought it.
    Altered(Range<u64>, u64),
    /// Bytes that are not the owner's. They come again.
    Forged(Vec<Forged>),
}

impl State {
    /// Pieces without a sum that are asked for again. A sum that comes late all the same is that of the same bytes.
    fn ask_again(&mut self, which: impl Fn(Instant) -> bool) {
        for (offset, (sum, _)) in self.ours.extract_if(|_, (_, since)| which(*since)) {
            let piece = offset..offset + sum.length;
            self.claims.forget(granules(&piece));
            self.pieces.give_back(&piece);
        }
    }
}

/// The granules that a piece is made of.
fn granules(piece: &Range<u64>) -> Range<u64> {
    piece.start / GRANULE..piece.end.div_ceil(GRANULE)
}

impl Transfer {
    /// Of which the first `landed` bytes are here.
    #[cfg(test)]
    pub(super) fn new(call: u64, landing: Landing, landed: u64, deadline: Instant) -> Arc<Self> {
        Self::growing(call, landing, landed, deadline, None)
    }

    /// Transfer of which the first `landed` bytes are here, and from which others are served meanwhile.
    pub(in crate::peer) fn growing(
        call: u64,
        landing: Landing,
        landed: u64,
        deadline: Instant,
        growth: Option<Arc<PartialTensor>>,
    ) -> Arc<Self> {
        let pieces = Pieces::new(landing.len(), landed);
        let spread = landing.spread();
        // No part of it is out yet, and it lies inside: nothing refuses it.
        let _ = spread.complete(0..pieces.prefix());
        let state = State {
            pieces,
            out: 0,
            came: 0,
            plain: 0,
            lanes: 0,
            senders: Senders::default(),
            moved: None,
            leaving: false,
            over: false,
            tell: None,
            epoch: 0,
            ours: HashMap::new(),
            theirs: HashMap::new(),
            claims: Claims::default(),
        };
        let spread = RwLock::new(Some(spread));
        let transfer = Arc::new(Self {
            call,
            begun: Instant::now(),
            deadline,
            state: Mutex::new(state),
            spread,
            growth,
        });
        if let Some(growth) = &transfer.growth {
            growth.begins(&transfer);
        }
        transfer
    }

    /// Returns whether these bytes are here, to be read by [`Self::copy`].
    pub(in crate::peer) fn has(&self, range: &Range<u64>) -> bool {
        let state = self.state.lock();
        !state.over && state.pieces.has(range)
    }

    /// Copies bytes that are here. False where the landing was given back, or they are not.
    pub(in crate::peer) fn copy(&self, at: u64, to: &mut [u8]) -> bool {
        self.spread.read().as_ref().is_some_and(|spread| spread.copy(at, to).is_ok())
    }

    fn stir(&self) {
        if let Some(growth) = &self.growth {
            growth.stir();
        }
    }

    /// A part of the time that is left: nothing may wait longer for one way, so that there is time for another.
    pub(in crate::peer) fn allowance(&self, now: Instant) -> Duration {
        self.deadline.saturating_duration_since(now) / PART_OF_TIME
    }

    /// Until when it waits for lanes, none of which has brought a piece since then, and for `most` at most. While bytes come it
    /// goes on waiting.
    pub(super) fn waits_until(&self, since: Instant, most: Duration) -> Instant {
        let since = since.max(self.begun);
        let since = self.state.lock().moved.map_or(since, |moved| since.max(moved));
        since + most.min(self.allowance(since))
    }

    /// Bytes are coming.
    pub(super) fn moves(&self) {
        self.state.lock().moved = Some(Instant::now());
    }

    /// Returns whether a byte ever came.
    pub(in crate::peer) fn has_moved(&self) -> bool {
        self.state.lock().moved.is_some()
    }

    /// Bytes came from a peer on a lane, wanted or not; which life of it, if that is another holder than the owner.
    pub(super) fn came(&self, lane: OnLane, bytes: u64, peer: &PeerName, holder: Option<&PeerKey>) {
        let mut state = self.state.lock();
        state.came += bytes;
        state.plain += if lane.is_plain { bytes } else { 0 };
        state.lanes |= 1 << (lane.number % 32);
        state.senders.sent(peer, bytes, holder);
    }

    /// Sets whether it is to leave its lanes, which happens as soon as none of them writes: nothing more is asked
    /// for, or they would go on for ever. Or it stays after all.
    pub(super) fn leave(&self, leaves: bool) {
        self.state.lock().leaving = leaves;
    }

    /// Number of bytes that came on lanes, how many of them without encryption, on how many lanes, and who sent them;
    /// since the last time that this was asked, for the next ones may come on lanes of another kind.
    pub(in crate::peer) fn travelled(&self) -> Travelled {
        let mut state = self.state.lock();
        Travelled {
            bytes: std::mem::take(&mut state.came),
            plain: std::mem::take(&mut state.plain),
            lanes: std::mem::take(&mut state.lanes).count_ones(),
            senders: state.senders.take(),
        }
    }

    /// Returns whether no byte of it is wanted any more.
    pub(super) fn is_over(&self) -> bool {
        self.state.lock().over
    }

    /// Bytes that are not here.
    pub(in crate::peer) fn missing(&self) -> u64 {
        self.state.lock().pieces.missing()
    }

    /// Bytes that have not come, or were wrong.
    pub(super) fn to_come(&self) -> u64 {
        let state = self.state.lock();
        state.pieces.missing().saturating_sub(state.claims.waiting() * GRANULE)
    }

    /// The granules whose hashes the owner is to say next; none where it has said all that are wanted.
    pub(in crate::peer) fn to_be_said(&self) -> Option<Range<u64>> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.over {
            return None;
        }
        state.claims.next(state.pieces.prefix() / GRANULE, state.pieces.all().div_ceil(GRANULE))
    }

    /// Returns whether all that is not here can be proven without another word of the owner.
    pub(in crate::peer) fn is_provable(&self) -> bool {
        let state = self.state.lock();
        state.claims.are_all_said(state.pieces.all().div_ceil(GRANULE))
    }

    /// The owner says what the granules hash to that were to be said next.
    pub(in crate::peer) fn said(&self, hashes: &[u8]) -> Landed {
        self.judge_again(|claims| claims.say(hashes))
    }

    /// The owner will not say what granules hash to: what others sent of them is worth nothing.
    pub(in crate::peer) fn refused(&self) -> Landed {
        self.judge_again(Claims::refuse)
    }

    fn judge_again(&self, which: impl FnOnce(&mut Claims<Arc<RelaySession>>) -> Vec<u64>) -> Landed {
        let landed = {
            let mut state = self.state.lock();
            let all = which(&mut state.claims);
            if state.over { Landed::More } else { self.judge(&mut state, all.into_iter()) }
        };
        self.stir();
        landed
    }

    /// Bytes that are here, of all.
    pub(in crate::peer) fn came_of(&self) -> (u64, u64) {
        let pieces = &self.state.lock().pieces;
        (pieces.all().saturating_sub(pieces.missing()), pieces.all())
    }

    /// Bytes that nobody has asked for.
    pub(in crate::peer) fn untaken(&self) -> u64 {
        let state = self.state.lock();
        if state.over || state.leaving { 0 } else { state.pieces.untaken() }
    }

    /// The next piece, of at most so many granules, to be asked for.
    pub(super) fn reserve(&self, granules: u64) -> Option<Reserved> {
        let mut state = self.state.lock();
        if state.over || state.leaving {
            return None;
        }
        let epoch = state.epoch;
        state.pieces.take(granules).map(|range| Reserved { range, epoch })
    }

    /// The answer to an ask begins: where its bytes go. None where nobody wants them any more.
    pub(super) fn begin(&self, reserved: &Reserved) -> Option<Part> {
        let mut state = self.state.lock();
        if state.over {
            return None;
        }
        // Nobody else has it: what is reserved is not reserved again before it is released.
        let part = self.spread.read().as_ref()?.part(reserved.range()).ok()?;
        state.out += 1;
        Some(part)
    }

    /// A piece will not come the way that it was asked for, and nothing of it was begun.
    pub(super) fn release(&self, reserved: &Reserved) {
        self.state.lock().pieces.give_back(&reserved.range);
    }

    /// Gives back a piece that was begun. What is returned is to be done.
    pub(super) fn give_back(&self, part: Part) -> Option<Finish> {
        let piece = part.range();
        drop(part);
        let mut state = self.state.lock();
        state.out -= 1;
        state.pieces.give_back(&piece);
        if state.over { self.told(&mut state) } else { None }
    }

    /// A piece that came is not what was sent: it is asked for again.
    pub(super) fn discard(&self, piece: &Range<u64>) {
        let mut state = self.state.lock();
        state.claims.forget(granules(piece));
        state.pieces.give_back(piece);
    }

    /// A piece is here.
    pub(super) fn landed(&self, brought: Brought) -> Landed {
        let landed = self.take(brought);
        self.stir();
        landed
    }

    fn take(&self, brought: Brought) -> Landed {
        let Brought { part, reserved: Reserved { range: piece, epoch }, crc32c, lane, claim } = brought;
        drop(part);
        let mut state = self.state.lock();
        state.out -= 1;
        if state.over {
            return self.told(&mut state).map_or(Landed::More, Landed::Told);
        }
        if crc32c.is_some() && epoch != state.epoch {
            // Its sum was said on a connection that is no more.
            state.pieces.give_back(&piece);
            return Landed::More;
        }
        if let Some((by, hashes)) = claim {
            for (granule, hash) in granules(&piece).zip(hashes) {
                state.claims.came(granule, hash, Arc::clone(&by));
            }
        }
        let Some(crc32c) = crc32c else { return self.land(&mut state, &piece) };
        let ours = Sum { length: piece.end - piece.start, crc32c, lane };
        match state.theirs.remove(&piece.start).filter(|theirs| theirs.length == ours.length) {
            Some(theirs) if theirs.crc32c == crc32c => self.land(&mut state, &piece),
            Some(_) => Landed::Altered(piece, lane),
            // None yet, or one of an answer that did not come whole.
            None => {
                state.ours.insert(piece.start, (ours, Instant::now()));
                Landed::More
            }
        }
    }

    /// Notes what a piece sums to, as its sender says. None: it says too much.
    pub(super) fn sum(&self, offset: u64, length: u64, crc32c: u32) -> Option<Landed> {
        let landed = self.take_sum(offset, length, crc32c);
        self.stir();
        landed
    }

    fn take_sum(&self, offset: u64, length: u64, crc32c: u32) -> Option<Landed> {
        let mut state = self.state.lock();
        if state.over {
            return Some(Landed::More);
        }
        let piece = offset..offset.checked_add(length)?;
        if state.pieces.has(&piece) {
            // It was asked for twice, because this was late.
            return Some(Landed::More);
        }
        if let Some((ours, _)) = state.ours.get(&offset).copied() {
            if ours.length != length {
                return Some(Landed::More);
            }
            state.ours.remove(&offset);
            let same = ours.crc32c == crc32c;
            return Some(if same {
                self.land(&mut state, &piece)
            } else {
                Landed::Altered(piece, ours.lane)
            });
        }
        if state.theirs.len() >= SUMS_MAX && !state.theirs.contains_key(&offset) {
            return None;
        }
        state.theirs.insert(offset, Sum { length, crc32c, lane: 0 });
        Some(Landed::More)
    }

    /// The connection that sums came on is another one now: pieces whose sum is not here are asked for again.
    pub(in crate::peer) fn forget_sums(&self) {
        let mut state = self.state.lock();
        state.epoch += 1;
        state.theirs.clear();
        state.ask_again(|_| true);
    }

    /// Nobody has said what a piece sums to that has been here since then: whose lane ended before that could be said, for one.
    pub(super) fn forget_unsummed(&self, before: Instant) {
        self.state.lock().ask_again(|since| since < before);
    }

    /// Nobody wants it any more. The landing is told as soon as no lane writes it; if that is now, by what is returned.
    pub(in crate::peer) fn stop(&self, tell: Tell) -> Option<Finish> {
        let mut state = self.state.lock();
        state.over = true;
        state.tell = Some(tell);
        if state.out == 0 { self.told(&mut state) } else { None }
    }

    /// Takes the landing from whoever brought the last piece if nobody waits for it: it goes to whoever stopped
    /// it.
    pub(in crate::peer) fn unwanted(&self, landing: Landing) -> Option<Finish> {
        let tell = self.state.lock().tell.take()?;
        Some(Box::new(move || tell(landing)))
    }

    /// Takes the landing away from lanes, and says what is in it. None while a lane writes.
    pub(in crate::peer) fn reclaim(&self) -> Option<Reclaimed> {
        let mut state = self.state.lock();
        if state.over || state.out > 0 {
            return None;
        }
        state.over = true;
        let landing = self.join()?;
        let (prefix, ahead) = (state.pieces.prefix(), state.pieces.ahead());
        Some(Reclaimed { landing, prefix, ahead })
    }

    fn land(&self, state: &mut State, piece: &Range<u64>) -> Landed {
        self.judge(state, granules(piece))
    }

    /// Granules are here, and nobody writes them: those that are the owner's have landed, and those that are not come again.
    fn judge(&self, state: &mut State, all: impl Iterator<Item = u64>) -> Landed {
        let mut forged: Vec<Forged> = Vec::new();
        for granule in all {
            let range = granule * GRANULE..((granule + 1) * GRANULE).min(state.pieces.all());
            match state.claims.judge(granule) {
                Verdict::Proven => {
                    if let Some(spread) = self.spread.read().as_ref() {
                        // Its part was given back, and it is nobody's before it is released.
                        let _ = spread.complete(range.clone());
                    }
                    state.pieces.land(&range);
                }
                Verdict::Waits => {}
                Verdict::Worthless => state.pieces.give_back(&range),
                Verdict::Forged(by) => {
                    // First, so that it is not asked for them again.
                    by.has_been_found();
                    state.pieces.give_back(&range);
                    match forged.iter_mut().find(|forged| Arc::ptr_eq(&forged.by, &by)) {
                        Some(forged) => forged.granules += 1,
                        None => forged.push(Forged { by, granules: 1 }),
                    }
                }
            }
        }
        if !forged.is_empty() {
            return Landed::Forged(forged);
        }
        if !state.pieces.is_whole() {
            return Landed::More;
        }
        state.over = true;
        self.join().map_or(Landed::More, Landed::Whole)
    }

    fn told(&self, state: &mut State) -> Option<Finish> {
        if state.out > 0 || state.tell.is_none() {
            return None;
        }
        let landing = self.join()?;
        let tell = state.tell.take()?;
        Some(Box::new(move || tell(landing)))
    }

    /// Waits for those who copy, which they do in a moment.
    fn join(&self) -> Option<Landing> {
        let mut spread = self.spread.write();
        match spread.take()?.join() {
            Ok(landing) => Some(landing),
            // Every part is counted, and dropped before it is counted back.
            Err(left) => {
                *spread = Some(left);
                None
            }
        }
    }

    /// Brings the next granule of a tensor, as a lane would; whether it was the last one.
    #[cfg(test)]
    pub(in crate::peer) fn write_bytes_for_test(&self, tensor: &[u8]) -> bool {
        let reserved = self.reserve(1).unwrap();
        let range = reserved.range();
        let mut part = self.begin(&reserved).unwrap();
        part.bytes_mut().copy_from_slice(&tensor[range.start as usize..range.end as usize]);
        matches!(
            self.landed(Brought { part, reserved, crc32c: None, lane: 0, claim: None }),
            Landed::Whole(_)
        )
    }

    /// Brings the next granule, as a plain lane would whose sum is still on its way.
    #[cfg(test)]
    pub(in crate::peer) fn write_unsummed_for_test(&self) {
        let reserved = self.reserve(1).unwrap();
        let part = self.begin(&reserved).unwrap();
        assert!(matches!(
            self.landed(Brought { part, reserved, crc32c: Some(1), lane: 0, claim: None }),
            Landed::More
        ));
    }

    /// Brings so many granules of one byte, as a lane would.
    #[cfg(test)]
    pub(in crate::peer) fn write_for_test(&self, granules: u64, byte: u8) -> Option<Landing> {
        let reserved = self.reserve(granules).unwrap();
        let mut part = self.begin(&reserved).unwrap();
        part.bytes_mut().fill(byte);
        match self.landed(Brought { part, reserved, crc32c: None, lane: 0, claim: None }) {
            Landed::Whole(landing) => Some(landing),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;

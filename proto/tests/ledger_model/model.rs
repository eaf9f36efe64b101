//! Rules of the ledger, written down as simply as we can: flat lists, searched from end to end, sums made
//! anew each time they are asked for. Slow and obvious on purpose; it shares no code with the ledger but its vocabulary.

use tensorlane_proto::ledger::{
    Answer, Cause, Effect, Event, Holder, Keep, LEASE_BYTES, Limits, Millis, NAME_BYTES, NameSpec, Origin,
    Publication, Recalled, Refusal, Retry, RetryId, RetryKind, TICKET_BYTES, TensorId, TensorName, TicketId,
    TicketSpec, Totals,
};

pub(crate) struct Model {
    limits: Limits,
    now: Millis,
    pub(crate) tensors: Vec<Tensor>,
    /// Leases, one row each.
    pub(crate) leases: Vec<(Holder, TensorId)>,
    pub(crate) names: Vec<(TensorName, TensorId)>,
    /// Manifests that were published.
    pub(crate) manifests: Vec<TensorId>,
    pub(crate) tickets: Vec<(TicketId, TensorId, Millis, u32)>,
    /// The oldest first.
    pub(crate) retries: Vec<(RetryId, Recalled)>,
    pub(crate) away: Vec<(Holder, Millis)>,
    /// Copies without a lease, the longest idle first.
    pub(crate) idle: Vec<(TensorId, Millis)>,
    freed: Vec<Effect>,
}

#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) id: TensorId,
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
}

#[derive(Clone, PartialEq)]
pub(crate) enum Kind {
    Reserved(Option<Holder>),
    Owned,
    Copy(Origin),
    /// As a copy, but freed with its last lease.
    Map(Origin),
}

type Outcome = Result<Answer, Refusal>;

impl Model {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            now: Millis(0),
            tensors: vec![],
            leases: vec![],
            names: vec![],
            manifests: vec![],
            tickets: vec![],
            retries: vec![],
            away: vec![],
            idle: vec![],
            freed: vec![],
        }
    }

    /// `made` is the id that the ledger gave to a new tensor: which slot it takes is its own affair.
    pub(crate) fn apply(&mut self, now: Millis, event: Event, made: TensorId) -> (Outcome, Vec<Effect>) {
        self.freed.clear();
        self.settle(now);
        let outcome = match event {
            Event::Reserve { by, bytes, retry } => self.reserve(by, bytes, retry, made),
            Event::Seal { by, id, keep, retry } => self.seal(by, id, keep, retry),
            Event::Abort { by, id } => self.abort(by, id),
            Event::Lease { by, id } => self.lease(by, id),
            Event::Release { by, id, count } => self.release(by, id, count),
            Event::Name { id, name } => self.name(id, name),
            Event::NameTogether { items } => self.name_together(items),
            Event::LeaseNames { by, prefix, most } => self.lease_names(by, &prefix, most),
            Event::Unname { name } => self.unname(name),
            Event::Publish(publication) => self.publish(publication),
            Event::IssueTicket { id, spec } => self.issue(id, spec),
            Event::Redeem { ticket, by, retry } => self.redeem(ticket, by, retry),
            Event::CopyIn { origin, bytes, by, mapped } => {
                let kind = if mapped { Kind::Map(origin.clone()) } else { Kind::Copy(origin.clone()) };
                self.copy_in(&origin, kind, bytes, by, made)
            }
            Event::Evict { bytes } => Ok(self.evict(bytes)),
            Event::EndCopy { id } => {
                self.end_copy(id);
                Ok(Answer::Done)
            }
            Event::HolderGone { holder } => {
                self.gone(holder, Cause::HolderGone);
                Ok(Answer::Done)
            }
            Event::HolderAway { holder, until } => self.holder_away(holder, until),
            Event::HolderBack { holder } => {
                self.away.retain(|(who, _)| *who != holder);
                Ok(Answer::Done)
            }
            Event::Tick => Ok(Answer::Done),
        };
        (outcome, self.freed.clone())
    }

    // What ends by itself

    /// Time, then what: 0 is a ticket, 1 a holder, 2 an idle copy; then the smallest of them, copies by their order.
    fn dues(&self) -> Vec<(Millis, u8, usize)> {
        let mut dues = vec![];
        let mut tickets: Vec<usize> = (0..self.tickets.len()).collect();
        tickets.sort_by_key(|&i| self.tickets[i].0);
        let mut away: Vec<usize> = (0..self.away.len()).collect();
        away.sort_by_key(|&i| self.away[i].0);
        dues.extend(tickets.into_iter().map(|i| (self.tickets[i].2, 0, i)));
        dues.extend(away.into_iter().map(|i| (self.away[i].1, 1, i)));
        dues.extend((0..self.idle.len()).map(|i| (self.idle[i].1.after(self.limits.copy_idle), 2, i)));
        dues.sort_by_key(|(at, what, _)| (*at, *what));
        dues
    }

    pub(crate) fn next_deadline(&self) -> Option<Millis> {
        self.dues().first().map(|(at, _, _)| *at)
    }

    fn settle(&mut self, now: Millis) {
        while let Some(&(at, what, i)) = self.dues().first() {
            if at > now {
                break;
            }
            self.now = self.now.max(at);
            match what {
                0 => {
                    self.tickets.remove(i);
                    self.sweep(Cause::TicketExpired);
                }
                1 => match self.away[i].0 {
                    holder @ (Holder::Session(_) | Holder::Manifest(_)) => {
                        self.gone(holder, Cause::HolderGone);
                    }
                    holder @ Holder::Peer(_) => self.gone(holder, Cause::PeerLost),
                },
                _ => self.free(self.idle[i].0, Cause::CopyIdle),
            }
        }
        self.now = self.now.max(now);
    }

    /// Ends whatever nothing keeps any more. Copies become idle, or stop being idle.
    fn sweep(&mut self, cause: Cause) {
        self.sweep_all_but(cause, &[]);
    }

    fn sweep_all_but(&mut self, cause: Cause, others: &[TensorId]) {
        // What a manifest kept ends with it, and may have stood before it.
        loop {
            let before = self.freed.len();
            self.sweep_once(cause, others);
            if self.freed.len() == before {
                break;
            }
        }
    }

    fn sweep_once(&mut self, cause: Cause, others: &[TensorId]) {
        let mut all = self.tensors.clone();
        all.sort_by_key(|tensor| tensor.id);
        for Tensor { id, kind, .. } in all {
            let leased = self.leases.iter().any(|(_, of)| *of == id);
            let named = self.names.iter().any(|(_, of)| *of == id);
            let ticketed = self.tickets.iter().any(|(_, of, _, _)| *of == id);
            match kind {
                Kind::Owned if !leased && !named && !ticketed && !others.contains(&id) => {
                    self.free(id, cause);
                }
                Kind::Map(_) if !leased => self.free(id, cause),
                Kind::Copy(_) if leased => self.idle.retain(|(of, _)| *of != id),
                Kind::Copy(_) if !self.idle.iter().any(|(of, _)| *of == id) => self.idle.push((id, self.now)),
                _ => {}
            }
        }
    }

    fn free(&mut self, id: TensorId, cause: Cause) {
        let at = self.tensors.iter().position(|tensor| tensor.id == id).expect("only live tensors are freed");
        let tensor = self.tensors.remove(at);
        self.idle.retain(|(of, _)| *of != id);
        self.retries.retain(|(_, first)| first.id != id);
        self.manifests.retain(|of| *of != id);
        self.leases.retain(|(by, _)| *by != Holder::Manifest(id));
        self.freed.push(Effect::Freed { id, bytes: tensor.bytes, cause });
    }

    fn gone(&mut self, holder: Holder, cause: Cause) {
        self.away.retain(|(who, _)| *who != holder);
        self.leases.retain(|(who, _)| *who != holder);
        for tensor in self.tensors.clone() {
            if tensor.kind == Kind::Reserved(Some(holder)) {
                self.free(tensor.id, cause);
            }
        }
        self.sweep(cause);
    }

    fn evict(&mut self, wanted: u64) -> Answer {
        let (mut tensors, mut bytes) = (0, 0);
        while bytes < wanted && !self.idle.is_empty() {
            let id = self.idle[0].0;
            bytes += self.tensor(id).map_or(0, |tensor| tensor.bytes);
            tensors += 1;
            self.free(id, Cause::Evicted);
        }
        Answer::Evicted { tensors, bytes }
    }

    fn end_copy(&mut self, id: TensorId) {
        let Some(tensor) = self.tensors.iter_mut().find(|tensor| tensor.id == id) else { return };
        let Kind::Copy(origin) = tensor.kind.clone() else { return };
        tensor.kind = Kind::Map(origin);
        self.sweep(Cause::Evicted);
    }

    fn holder_away(&mut self, holder: Holder, until: Millis) -> Outcome {
        self.check_known(holder)?;
        self.away.retain(|(who, _)| *who != holder);
        self.away.push((holder, until));
        Ok(Answer::Done)
    }

    // Tensors

    fn reserve(&mut self, by: Option<Holder>, bytes: u64, retry: Option<Retry>, made: TensorId) -> Outcome {
        if let Some(first) = self.recall(retry) {
            let same = first.by == by && asks(&first, retry) && first.kind == RetryKind::Reserve { bytes };
            return if same { Ok(Answer::Reserved { id: first.id, again: true }) } else { mismatch(first) };
        }
        if let Some(by) = by {
            self.check_claim(by)?;
        }
        self.check_room(bytes)?;
        self.tensors.push(Tensor { id: made, bytes, kind: Kind::Reserved(by) });
        self.remember(retry, RetryKind::Reserve { bytes }, by, made);
        Ok(Answer::Reserved { id: made, again: false })
    }

    fn seal(&mut self, by: Option<Holder>, id: TensorId, keep: Keep, retry: Option<Retry>) -> Outcome {
        if let Some(first) = self.recall(retry) {
            return match first.kind {
                RetryKind::Seal { ticket } if first.by == by && asks(&first, retry) && first.id == id => {
                    Ok(Answer::Sealed { id, ticket, again: true })
                }
                _ => mismatch(first),
            };
        }
        self.check_reservation(by, id)?;
        let Keep { lease, name, ticket } = keep;
        if !lease && name.is_none() && ticket.is_none() {
            return Err(Refusal::WouldVanish { id });
        }
        if lease && by.is_none() {
            return Err(Refusal::NoHolder { id });
        }
        if let Some(spec) = &name {
            self.check_name(spec)?;
        }
        if let Some(spec) = &ticket {
            self.check_ticket(spec)?;
        }
        self.tensor_mut(id).kind = Kind::Owned;
        if let (true, Some(by)) = (lease, by) {
            self.leases.push((by, id));
        }
        if let Some(spec) = ticket {
            self.tickets.push((spec.id, id, self.now.after(spec.ttl), spec.uses.get()));
        }
        if let Some(spec) = name {
            self.set_name(id, spec.name);
        }
        self.remember(retry, RetryKind::Seal { ticket: ticket.map(|spec| spec.id) }, by, id);
        Ok(Answer::Sealed { id, ticket: ticket.map(|spec| spec.id), again: false })
    }

    fn abort(&mut self, by: Option<Holder>, id: TensorId) -> Outcome {
        self.check_reservation(by, id)?;
        self.free(id, Cause::Aborted);
        Ok(Answer::Aborted)
    }

    fn copy_in(&mut self, origin: &Origin, kind: Kind, bytes: u64, by: Holder, made: TensorId) -> Outcome {
        if let Some(id) = self.copy_of(origin) {
            return Err(Refusal::CopyExists { id });
        }
        self.check_claim(by)?;
        self.check_room(bytes)?;
        self.tensors.push(Tensor { id: made, bytes, kind });
        self.leases.push((by, made));
        Ok(Answer::CopiedIn { id: made })
    }

    // Leases

    fn lease(&mut self, by: Holder, id: TensorId) -> Outcome {
        self.check_sealed(id)?;
        self.check_claim(by)?;
        self.leases.push((by, id));
        self.sweep(Cause::Released);
        Ok(Answer::Leased { held: self.held(by, id) })
    }

    fn release(&mut self, by: Holder, id: TensorId, count: u64) -> Outcome {
        self.check_sealed(id)?;
        let held = self.held(by, id);
        if count > held {
            return Err(Refusal::NotHeld { id, by, held, asked: count });
        }
        for _ in 0..count {
            let at = self.leases.iter().position(|lease| *lease == (by, id)).expect("counted just now");
            self.leases.remove(at);
        }
        self.sweep(Cause::Released);
        Ok(Answer::Released { held: held - count })
    }

    fn redeem(&mut self, ticket: TicketId, by: Holder, retry: Option<Retry>) -> Outcome {
        let kind = RetryKind::Redeem { ticket };
        if let Some(first) = self.recall(retry) {
            let id = first.id;
            return match first.by == Some(by) && asks(&first, retry) && first.kind == kind {
                true if self.held(by, id) > 0 => Ok(Answer::Redeemed { id, again: true }),
                true => Err(Refusal::RetryLapsed { id }),
                false => mismatch(first),
            };
        }
        let Some(at) = self.tickets.iter().position(|(of, ..)| *of == ticket) else {
            return Err(Refusal::TicketUnknown);
        };
        self.check_claim(by)?;
        let id = self.tickets[at].1;
        self.leases.push((by, id));
        self.tickets[at].3 -= 1;
        self.tickets.retain(|(.., uses)| *uses > 0);
        self.remember(retry, kind, Some(by), id);
        Ok(Answer::Redeemed { id, again: false })
    }

    // Names and tickets

    fn name(&mut self, id: TensorId, spec: NameSpec) -> Outcome {
        self.check_owned(id)?;
        self.check_name(&spec)?;
        Ok(Answer::Named { replaced: self.set_name(id, spec.name) })
    }

    fn name_together(&mut self, items: Vec<(Option<TensorId>, NameSpec)>) -> Outcome {
        for (at, (id, spec)) in items.iter().enumerate() {
            if let Some(id) = id {
                self.check_owned(*id)?;
            }
            self.check_name(spec)?;
            if items[..at].iter().any(|(_, before)| before.name == spec.name) {
                return Err(Refusal::NameTwice { name: spec.name.clone() });
            }
        }
        let is_new = |(id, spec): &&(Option<_>, NameSpec)| id.is_some() && self.find(&spec.name).is_none();
        let new = items.iter().filter(is_new).count();
        let limit = self.limits.names;
        if self.names.len() + new > limit {
            return Err(Refusal::TooManyNames { limit });
        }
        let mut lost = vec![];
        for (id, spec) in items {
            let cause = if id.is_some() { Cause::Replaced } else { Cause::Unnamed };
            lost.extend(
                self.find(&spec.name).filter(|before| Some(*before) != id).map(|before| (before, cause)),
            );
            self.names.retain(|(known, _)| *known != spec.name);
            self.names.extend(id.map(|id| (spec.name, id)));
        }
        // One that loses several names ends by the last of them.
        for (at, (_, cause)) in lost.iter().enumerate() {
            let later: Vec<TensorId> = lost[at + 1..].iter().map(|(id, _)| *id).collect();
            self.sweep_all_but(*cause, &later);
        }
        Ok(Answer::NamedTogether)
    }

    fn lease_names(&mut self, by: Holder, prefix: &str, most: usize) -> Outcome {
        let below = self.names.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
        let mut names: Vec<_> = below.cloned().collect();
        names.sort();
        if names.len() > most {
            return Err(Refusal::TooManyBelow { prefix: prefix.to_owned(), most });
        }
        if !names.is_empty() {
            self.check_known(by)?;
            let limit = self.limits.leases_per_holder;
            if self.claims(by) + names.len() as u64 > limit {
                return Err(Refusal::TooManyLeases { by, limit });
            }
        }
        self.leases.extend(names.iter().map(|(_, id)| (by, *id)));
        self.sweep(Cause::Released);
        Ok(Answer::NamesLeased { names })
    }

    fn set_name(&mut self, id: TensorId, name: TensorName) -> Option<TensorId> {
        let before = self.find(&name);
        self.names.retain(|(known, _)| *known != name);
        self.names.push((name, id));
        self.sweep(Cause::Replaced);
        before
    }

    fn unname(&mut self, name: TensorName) -> Outcome {
        let Some(id) = self.find(&name) else { return Err(Refusal::NameUnknown { name }) };
        self.names.retain(|(known, _)| *known != name);
        self.sweep(Cause::Unnamed);
        Ok(Answer::Unnamed { id })
    }

    fn publish(&mut self, publication: Publication) -> Outcome {
        let Publication { manifest, leaves, name, version, keep } = publication;
        self.check_owned(manifest)?;
        if self.manifests.contains(&manifest) {
            return Err(Refusal::ManifestPublished { id: manifest });
        }
        for &leaf in &leaves {
            self.check_owned(leaf)?;
            if leaf == manifest || self.manifests.contains(&leaf) {
                return Err(Refusal::LeafIsManifest { id: leaf });
            }
        }
        let by = Holder::Manifest(manifest);
        let limit = self.limits.leases_per_holder;
        if leaves.len() as u64 > limit {
            return Err(Refusal::TooManyLeases { by, limit });
        }
        if !leaves.is_empty() {
            self.check_known(by)?;
        }
        if name.as_str().contains('@') {
            return Err(Refusal::NameIsVersion { name });
        }
        let latest = self.latest(&name);
        if version != latest + 1 {
            return Err(Refusal::VersionChanged { name, latest, asked: version });
        }
        let stamped = TensorName::new(&format!("{name}@{version}")).expect("names here are short");
        for name in [&name, &stamped] {
            if let Some(by) = self.find(name).filter(|by| !self.manifests.contains(by)) {
                return Err(Refusal::NameTaken { name: name.clone(), by });
            }
        }
        let limit = self.limits.names;
        if self.names.len() + 2 > limit {
            return Err(Refusal::TooManyNames { limit });
        }
        let old = self.versions(&name);
        self.leases.extend(leaves.iter().map(|leaf| (by, *leaf)));
        self.manifests.push(manifest);
        self.set_name(manifest, stamped);
        self.set_name(manifest, name.clone());
        for number in old {
            if number + u64::from(keep.max(1)) <= version {
                let old = TensorName::new(&format!("{name}@{number}")).expect("it is a name");
                self.names.retain(|(known, _)| *known != old);
                self.sweep(Cause::Unnamed);
            }
        }
        Ok(Answer::Published { version })
    }

    fn versions(&self, name: &TensorName) -> Vec<u64> {
        let number = |(known, id): &(TensorName, TensorId)| {
            let (of, number) = known.as_str().rsplit_once('@')?;
            let is_version = of == name.as_str() && self.manifests.contains(id);
            number.parse().ok().filter(|_| is_version)
        };
        self.names.iter().filter_map(number).collect()
    }

    pub(crate) fn latest(&self, name: &TensorName) -> u64 {
        self.versions(name).into_iter().max().unwrap_or(0)
    }

    fn issue(&mut self, id: TensorId, spec: TicketSpec) -> Outcome {
        self.check_owned(id)?;
        self.check_ticket(&spec)?;
        let deadline = self.now.after(spec.ttl);
        self.tickets.push((spec.id, id, deadline, spec.uses.get()));
        Ok(Answer::TicketIssued { deadline })
    }

    // Checks

    fn check_known(&self, holder: Holder) -> Result<(), Refusal> {
        let known = self.holders();
        if !known.contains(&holder) && known.len() >= self.limits.holders {
            return Err(Refusal::TooManyHolders { limit: self.limits.holders });
        }
        Ok(())
    }

    fn check_claim(&self, by: Holder) -> Result<(), Refusal> {
        self.check_known(by)?;
        let limit = self.limits.leases_per_holder;
        if self.claims(by) >= limit { Err(Refusal::TooManyLeases { by, limit }) } else { Ok(()) }
    }

    fn check_room(&self, bytes: u64) -> Result<(), Refusal> {
        let sum: u128 = self.tensors.iter().map(|tensor| u128::from(tensor.bytes)).sum();
        if sum + u128::from(bytes) > u128::from(u64::MAX) {
            return Err(Refusal::TooManyBytes { bytes });
        }
        let limit = self.limits.tensors;
        if self.tensors.len() >= limit { Err(Refusal::TooManyTensors { limit }) } else { Ok(()) }
    }

    fn check_reservation(&self, by: Option<Holder>, id: TensorId) -> Result<(), Refusal> {
        match self.tensor(id).map(|tensor| &tensor.kind) {
            None => Err(Refusal::NotFound { id }),
            Some(Kind::Reserved(whose)) if *whose == by => Ok(()),
            Some(Kind::Reserved(_)) => Err(Refusal::NotYours { id }),
            Some(_) => Err(Refusal::AlreadySealed { id }),
        }
    }

    fn check_sealed(&self, id: TensorId) -> Result<(), Refusal> {
        match self.tensor(id).map(|tensor| &tensor.kind) {
            None => Err(Refusal::NotFound { id }),
            Some(Kind::Reserved(_)) => Err(Refusal::NotSealed { id }),
            Some(_) => Ok(()),
        }
    }

    fn check_owned(&self, id: TensorId) -> Result<(), Refusal> {
        self.check_sealed(id)?;
        match self.tensor(id).map(|tensor| tensor.kind.clone()) {
            Some(Kind::Copy(origin) | Kind::Map(origin)) => Err(Refusal::NotOwned { id, origin }),
            _ => Ok(()),
        }
    }

    fn check_name(&self, spec: &NameSpec) -> Result<(), Refusal> {
        let (name, now) = (spec.name.clone(), self.find(&spec.name));
        if spec.replaces.is_some() && spec.replaces != now {
            return Err(Refusal::NameChanged { name, now });
        }
        if let (None, Some(by)) = (spec.replaces, now) {
            return Err(Refusal::NameTaken { name, by });
        }
        let limit = self.limits.names;
        if now.is_none() && self.names.len() >= limit { Err(Refusal::TooManyNames { limit }) } else { Ok(()) }
    }

    fn check_ticket(&self, spec: &TicketSpec) -> Result<(), Refusal> {
        if spec.ttl == Millis(0) {
            return Err(Refusal::TicketWithoutTime);
        }
        if self.tickets.iter().any(|(id, ..)| *id == spec.id) {
            return Err(Refusal::TicketTaken);
        }
        let limit = self.limits.tickets;
        let next = self.tickets.iter().map(|(_, _, at, _)| *at).min();
        if self.tickets.len() >= limit { Err(Refusal::TooManyTickets { limit, next }) } else { Ok(()) }
    }

    // Retries

    fn recall(&self, retry: Option<Retry>) -> Option<Recalled> {
        self.retries.iter().find(|(id, _)| Some(*id) == retry.map(|retry| retry.id)).map(|(_, first)| *first)
    }

    fn remember(&mut self, retry: Option<Retry>, kind: RetryKind, by: Option<Holder>, id: TensorId) {
        let Some(retry) = retry else { return };
        self.retries.push((retry.id, Recalled { kind, asked: retry.asked, by, id }));
        while self.retries.len() > self.limits.retries {
            self.retries.remove(0);
        }
    }

    // Questions

    pub(crate) fn tensor(&self, id: TensorId) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.id == id)
    }

    fn tensor_mut(&mut self, id: TensorId) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.id == id).expect("checked just now")
    }

    pub(crate) fn find(&self, name: &TensorName) -> Option<TensorId> {
        self.names.iter().find(|(known, _)| known == name).map(|(_, id)| *id)
    }

    pub(crate) fn copy_of(&self, origin: &Origin) -> Option<TensorId> {
        let is_of = |kind: &Kind| matches!(kind, Kind::Copy(of) | Kind::Map(of) if of == origin);
        self.tensors.iter().find(|tensor| is_of(&tensor.kind)).map(|tensor| tensor.id)
    }

    pub(crate) fn held(&self, by: Holder, id: TensorId) -> u64 {
        self.leases.iter().filter(|lease| **lease == (by, id)).count() as u64
    }

    fn reserved_by(&self, by: Holder) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter().filter(move |tensor| tensor.kind == Kind::Reserved(Some(by)))
    }

    fn claims(&self, by: Holder) -> u64 {
        let leases = self.leases.iter().filter(|(who, _)| *who == by).count();
        (leases + self.reserved_by(by).count()) as u64
    }

    fn holders(&self) -> Vec<Holder> {
        let mut all: Vec<Holder> = self.leases.iter().map(|(who, _)| *who).collect();
        all.extend(self.away.iter().map(|(who, _)| *who));
        for tensor in &self.tensors {
            if let Kind::Reserved(Some(by)) = tensor.kind {
                all.push(by);
            }
        }
        all.sort();
        all.dedup();
        all
    }

    pub(crate) fn largest_holders(&self) -> Vec<(Holder, u64, u64)> {
        let mut all = vec![];
        for by in self.holders() {
            if self.claims(by) == 0 {
                continue;
            }
            let leased = self.tensors.iter().filter(|tensor| self.held(by, tensor.id) > 0);
            let bytes = leased.chain(self.reserved_by(by)).map(|tensor| tensor.bytes).sum();
            all.push((by, bytes, self.leases.iter().filter(|(who, _)| *who == by).count() as u64));
        }
        all.sort_by_key(|(by, bytes, _)| (u64::MAX - bytes, *by));
        all
    }

    fn table_bytes(&self) -> u64 {
        let mut claims = self.leases.clone();
        claims.extend(self.tensors.iter().filter_map(|tensor| match tensor.kind {
            Kind::Reserved(Some(by)) => Some((by, tensor.id)),
            _ => None,
        }));
        claims.sort();
        claims.dedup();
        let names: u64 = self.names.iter().map(|(name, _)| NAME_BYTES + name.as_str().len() as u64).sum();
        let tensors = self.tensors.len() as u64 * self.limits.tensor_bytes;
        tensors + claims.len() as u64 * LEASE_BYTES + names + self.tickets.len() as u64 * TICKET_BYTES
    }

    pub(crate) fn totals(&self) -> Totals {
        let reserved = |tensor: &&Tensor| matches!(tensor.kind, Kind::Reserved(_));
        let sealed = |tensor: &&Tensor| !matches!(tensor.kind, Kind::Reserved(_));
        Totals {
            tensors: self.tensors.len(),
            reserved: self.tensors.iter().filter(reserved).count(),
            sealed: self.tensors.iter().filter(sealed).count(),
            copies: self
                .tensors
                .iter()
                .filter(|tensor| matches!(tensor.kind, Kind::Copy(_) | Kind::Map(_)))
                .count(),
            leases: self.leases.len() as u64,
            names: self.names.len(),
            tickets: self.tickets.len(),
            table_bytes: self.table_bytes(),
            bytes_reserved: self.tensors.iter().filter(reserved).map(|tensor| tensor.bytes).sum(),
            bytes_sealed: self.tensors.iter().filter(sealed).map(|tensor| tensor.bytes).sum(),
            bytes_idle: self
                .idle
                .iter()
                .filter_map(|(id, _)| self.tensor(*id))
                .map(|tensor| tensor.bytes)
                .sum(),
        }
    }
}

fn asks(first: &Recalled, retry: Option<Retry>) -> bool {
    retry.is_some_and(|retry| retry.asked == first.asked)
}

fn mismatch(first: Recalled) -> Outcome {
    Err(Refusal::RetryMismatch { first: first.kind.as_str() })
}

//! Answers that nobody reads: how many bytes of them may wait in this process, and who goes when they are too many. Knows
//! nothing of what a connection is.
//!
//! Each connection bounds what waits for it; that bound alone would let a crowd that never reads have a multiple of it.
//! So all of them share a budget. When it is spent, the one for which the most waits is closed: whoever reads is not
//! troubled by those who do not.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

/// The budget of the process; clones are the same one.
#[derive(Clone)]
pub struct Unread(Arc<Mutex<Shared>>);

/// Part of the budget that one connection has; dropping it gives it back.
pub struct Account {
    budget: Unread,
    number: u64,
}

type Close = Arc<dyn Fn() + Send + Sync>;

struct Shared {
    books: Books,
    next: u64,
    close: HashMap<u64, Close>,
}

/// Bytes that wait for each connection, with their sum and its limit.
#[derive(Debug)]
struct Books {
    limit: i64,
    total: i64,
    /// Signed: what a thread takes out may be told of before what another one put in.
    of: HashMap<u64, i64>,
}

// === impl Unread ===

impl Unread {
    /// A budget of `limit` bytes. Costs as much memory, when it is spent.
    pub fn new(limit: u64) -> Self {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let books = Books { limit, total: 0, of: HashMap::new() };
        Self(Arc::new(Mutex::new(Shared { books, next: 0, close: HashMap::new() })))
    }

    /// A part for one connection. `close` is called at most once, on whatever thread spent the budget, and must wait for
    /// nothing.
    pub fn open(&self, close: impl Fn() + Send + Sync + 'static) -> Account {
        let mut shared = self.0.lock();
        let number = shared.next;
        shared.next += 1;
        shared.books.of.insert(number, 0);
        shared.close.insert(number, Arc::new(close));
        Account { budget: self.clone(), number }
    }

    /// Bytes that wait now, of those that were not closed for it.
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.0.lock().books.total).unwrap_or(0)
    }
}

impl fmt::Debug for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.lock().books.fmt(f)
    }
}

// === impl Account ===

impl Account {
    /// So many more bytes wait.
    pub fn add(&self, bytes: usize) {
        self.change(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// So many bytes wait no longer.
    pub fn take(&self, bytes: usize) {
        self.change(-i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    fn change(&self, delta: i64) {
        let close = {
            let mut shared = self.budget.0.lock();
            let most = shared.books.change(self.number, delta);
            most.and_then(|number| shared.close.remove(&number))
        };
        if let Some(close) = close {
            close();
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let close = {
            let mut shared = self.budget.0.lock();
            shared.books.remove(self.number);
            shared.close.remove(&self.number)
        };
        drop(close);
    }
}

// === impl Books ===

impl Books {
    /// Counts, and says who has to go: the one with the most, which is not counted from then on.
    fn change(&mut self, who: u64, delta: i64) -> Option<u64> {
        let bytes = self.of.get_mut(&who)?;
        *bytes = bytes.saturating_add(delta);
        self.total = self.total.saturating_add(delta);
        if delta <= 0 || self.total <= self.limit {
            return None;
        }
        let (&most, _) = self.of.iter().max_by_key(|(who, bytes)| (**bytes, **who))?;
        self.remove(most);
        Some(most)
    }

    fn remove(&mut self, who: u64) {
        self.total -= self.of.remove(&who).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn books(limit: i64, who: u64) -> Books {
        Books { limit, total: 0, of: (0..who).map(|who| (who, 0)).collect() }
    }

    #[test]
    fn the_one_with_the_most_goes_and_not_the_one_that_spent_the_last_byte() {
        let mut books = books(100, 3);
        assert_eq!(books.change(0, 60), None);
        assert_eq!(books.change(1, 40), None);
        assert_eq!(books.change(2, 1), Some(0));
        assert_eq!(books.total, 41);
        assert_eq!(books.change(0, 1000), None, "what is gone is not counted");
        assert_eq!(books.change(2, 100), Some(2));
        assert_eq!(books.total, 40);
    }

    #[test]
    fn nobody_goes_while_bytes_are_read() {
        let mut books = books(100, 2);
        for _ in 0..1000 {
            assert_eq!(books.change(0, 90), None);
            assert_eq!(books.change(0, -90), None);
        }
        // Told in the other order.
        assert_eq!(books.change(1, -50), None);
        assert_eq!(books.change(1, 50), None);
        assert_eq!(books.total, 0);
    }

    #[test]
    fn a_connection_is_closed_once_and_gives_its_part_back() {
        let budget = Unread::new(10);
        let closed = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&closed);
        let greedy = budget.open(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let modest = budget.open(|| panic!("it has less than the other"));
        modest.add(4);
        greedy.add(7);
        greedy.add(7);
        assert_eq!((closed.load(Ordering::Relaxed), budget.bytes()), (1, 4));
        drop(greedy);
        modest.take(4);
        assert_eq!(budget.bytes(), 0);
        drop(modest);
    }
}

//! Room for the lists of one answer about channels: their readers, and the patterns of peers that may read them. Pure.

/// Bytes that all lists of one answer have at most, together. Such an answer costs as much once more while it is sent, and some 5 MB
/// for as many channels as there may be.
pub(super) const LISTS_BYTES_MAX: usize = 4 << 20;
/// Bytes of an entry beside its own: what it is, and how long, of itself and of what it lies in.
const ENTRY_BYTES: usize = 8;

/// Bytes that are left for lists.
pub(super) struct ListRoom(usize);

impl ListRoom {
    pub(super) fn of(bytes: usize) -> Self {
        Self(bytes)
    }

    /// Entries from the front that have room, and the number of those behind them. Once one has no room, none has.
    pub(super) fn take<T>(
        &mut self,
        list: impl IntoIterator<Item = T>,
        bytes: impl Fn(&T) -> usize,
    ) -> (Vec<T>, u32) {
        let (mut told, mut left_out) = (Vec::new(), 0);
        for entry in list {
            match self.0.checked_sub(bytes(&entry) + ENTRY_BYTES) {
                Some(left) => {
                    self.0 = left;
                    told.push(entry);
                }
                None => {
                    self.0 = 0;
                    left_out += 1;
                }
            }
        }
        (told, left_out)
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use tensorlane_memory::ring;
    use tensorlane_proto::allowed::{AllowedPeers, PATTERN_BYTES_MAX, PATTERNS_MAX};
    use tensorlane_proto::frame::SESSION_BODY_MAX;
    use tensorlane_proto::generated as v1;
    use tensorlane_proto::identity::MAX_NAME_BYTES;
    use tensorlane_proto::ledger::{SessionId, TensorName};

    use super::super::shape_of;
    use super::super::table::{CHANNELS_MAX, Party, Spec};
    use super::*;
    use crate::exchange::alone::{MINUTE, allocate, alone};

    #[test]
    fn lists_end_where_their_bytes_do_and_what_is_left_out_is_counted() {
        let mut room = ListRoom::of(3 * (100 + ENTRY_BYTES));
        let long = "x".repeat(100);
        assert_eq!(room.take(["a", "b"], |_| 100), (vec!["a", "b"], 0));
        assert_eq!(room.take([long.as_str(), "c", "d"], |text| text.len()), (vec![long.as_str()], 2));
        // Nor does anything shorter come behind what had no room.
        assert_eq!(room.take([""], |text| text.len()), (vec![], 1));
        let mut narrow = ListRoom::of(50);
        assert_eq!(narrow.take([long.as_str(), ""], |text| text.len()), (vec![], 2));
    }

    #[test]
    fn the_longest_answer_about_channels_fits_a_frame() {
        let text = |bytes: usize| "x".repeat(bytes);
        let spec = v1::ChannelSpec {
            name: text(TensorName::BYTES_MAX),
            slots: u32::MAX,
            slot_bytes: u64::MAX,
            readers_max: u32::MAX,
            policy: i32::MAX,
            evicts: true,
            growth: u64::MAX,
        };
        let channel = v1::ChannelStatus {
            spec: Some(spec),
            // As long as the name of a client is at most, of this pod or of the peer's.
            writer: text(256),
            written: u64::MAX,
            finished: true,
            readers: Vec::new(),
            bytes: u64::MAX,
            peer: text(MAX_NAME_BYTES),
            route: text(16),
            allowed: Some(v1::PeerPatterns::default()),
            away: true,
            readers_left_out: u32::MAX,
            allowed_left_out: u32::MAX,
        };
        let without_lists = CHANNELS_MAX * (channel.encoded_len() + ENTRY_BYTES);
        assert!(without_lists + LISTS_BYTES_MAX <= SESSION_BODY_MAX as usize, "{without_lists}");
    }

    #[test]
    fn channels_with_long_lists_are_all_told_and_one_that_is_asked_for_by_its_name_whole() {
        let (exchange, _workers, _) = alone();
        let message =
            v1::ChannelSpec { name: "c".into(), slots: 4, slot_bytes: 64, ..v1::ChannelSpec::default() };
        let (plain, shape) = shape_of(&message).unwrap();
        // Tables look at the memory of a ring only to tell of it, so all channels have the same one.
        let [block, cursor] =
            [shape.bytes(), ring::CURSOR_BYTES].map(|bytes| allocate(&exchange, bytes, MINUTE).unwrap());
        ring::format_ring(&block, shape).unwrap();
        ring::format_cursor(&cursor).unwrap();
        let allowed = AllowedPeers::Only(vec!["*".repeat(PATTERN_BYTES_MAX); PATTERNS_MAX].into());
        let party = || Party { session: SessionId(1), client: "writes".into() };
        let mut table = exchange.channels.table.lock();
        let mut last = 0;
        for number in 0..CHANNELS_MAX {
            let name = TensorName::new(&format!("{number:04}")).unwrap();
            let spec = Spec { name, allowed: allowed.clone(), ..plain.clone() };
            last = table.create_replica(party(), 1, spec, block.clone(), "there".parse().unwrap()).unwrap();
        }
        let reader = table.add_reader(last, party(), cursor).unwrap().reader;
        assert!(table.ready(SessionId(1), reader));
        drop(table);

        let told = exchange.channel_stat(&v1::ChannelStatRequest::default());
        assert_eq!(told.channels.len(), CHANNELS_MAX);
        assert!(told.encoded_len() <= SESSION_BODY_MAX as usize, "{}", told.encoded_len());
        assert_eq!((told.channels[0].readers_left_out, told.channels[0].allowed_left_out), (0, 0));
        let late = told.channels.last().unwrap();
        assert_eq!((late.readers.len(), late.readers_left_out), (0, 1));
        assert_eq!((late.allowed.as_ref().unwrap().patterns.len(), late.allowed_left_out), (0, 64));

        let prefix = late.spec.as_ref().unwrap().name.clone();
        let told = exchange.channel_stat(&v1::ChannelStatRequest { prefix });
        let [whole] = &told.channels[..] else { panic!("one channel has the whole name") };
        assert_eq!((whole.readers[0].reader, whole.readers_left_out), (reader, 0));
        assert_eq!((whole.allowed.as_ref().unwrap().patterns.len(), whole.allowed_left_out), (64, 0));
    }
}

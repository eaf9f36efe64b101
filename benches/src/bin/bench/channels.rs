//! The rows `chan.*`: messages to another process through rings of shared memory, and to another host.

mod age;
mod copy;
mod death;
mod fanout;
mod far;
mod idle;
mod loan;
mod node;
mod ping_pong;
mod reader;
mod steady;

use crate::groups::Group;
use crate::rows::channels as rows;

pub(crate) use ping_pong::Echo;
pub(crate) use reader::ChannelEnd;

/// All of them.
pub(crate) static GROUPS: [Group; 13] = [
    Group { rows: &[&rows::PINGPONG_POD], measure: ping_pong::run },
    Group { rows: &[&rows::PINGPONG_SPIN], measure: ping_pong::beside_spinning },
    Group { rows: &[&rows::FANOUT_8], measure: fanout::run },
    Group { rows: &[&rows::COPY_64M], measure: copy::run },
    Group { rows: &[&rows::LOAN_1G], measure: loan::run },
    Group { rows: &[&rows::PER_MESSAGE, &rows::RATE_64B], measure: steady::run },
    Group { rows: &[&rows::IDLE_64], measure: idle::run },
    Group { rows: &[&rows::DEATH], measure: death::run },
    Group { rows: &[&rows::PINGPONG_NODE], measure: node::run },
    Group { rows: &[&rows::PINGPONG_NET], measure: far::ping_pong },
    Group { rows: &[&rows::STREAM_64M_NET, &rows::STREAM_1M_NET], measure: far::streams },
    Group { rows: &[&rows::CABLE_8], measure: far::cable },
    Group { rows: &[&rows::AGE_LATEST], measure: age::run },
];

//! The rows `pipe.*`: messages to another process, in the pod and on another host.

mod large;
mod ping_pong;
mod unread;

use crate::groups::Group;
use crate::rows::pipes as rows;

pub(crate) use ping_pong::PipeEnd;

/// All of them.
pub(crate) static GROUPS: [Group; 4] = [
    Group { rows: &[&rows::RTT_64B_POD], measure: ping_pong::in_the_pod },
    Group { rows: &[&rows::RTT_64B_NET], measure: ping_pong::between_hosts },
    Group { rows: &[&rows::TENSOR_1G_NET], measure: large::run },
    Group { rows: &[&rows::UNREAD], measure: unread::run },
];

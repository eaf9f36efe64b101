//! The rows `pipe.*`: messages to another process, in the pod and on another host.

mod connect;
mod end;
mod large;
mod ping_pong;
mod rate;
mod tensors;
mod unread;

use crate::groups::Group;
use crate::rows::pipes as rows;

pub(crate) use end::PipeEnd;

/// All of them.
pub(crate) static GROUPS: [Group; 10] = [
    Group { rows: &[&rows::RTT_64B_POD], measure: ping_pong::in_the_pod },
    Group { rows: &[&rows::RTT_64B_NET], measure: ping_pong::between_hosts },
    Group { rows: &[&rows::TENSOR_64M_MAP], measure: tensors::map },
    Group { rows: &[&rows::TENSOR_64M_HEAP], measure: tensors::heap },
    Group { rows: &[&rows::TENSOR_1G_NET], measure: large::run },
    Group { rows: &[&rows::RATE_256B_POD], measure: rate::in_the_pod },
    Group { rows: &[&rows::RATE_256B_NET], measure: rate::between_hosts },
    Group { rows: &[&rows::UNREAD], measure: unread::run },
    Group { rows: &[&rows::CONNECT], measure: connect::in_the_pod },
    Group { rows: &[&rows::CONNECT_NET], measure: connect::between_hosts },
];

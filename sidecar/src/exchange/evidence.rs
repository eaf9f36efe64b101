//! Evidence that the choice of a transport towards one peer goes by, so that the route and the reasons that are shown
//! beside it come from one look. Knows neither peers nor clocks.

use std::borrow::Cow;
use std::sync::Arc;

use tensorlane_proto::negotiate::{
    Candidate, Measured, NoRoute, Offer, Policy, Route, Standing, TransportSet, What, candidates, negotiate,
    own_up, owned_up,
};

/// Evidence that the choice towards one peer goes by, besides what is to be moved.
pub(super) struct Evidence<'a> {
    /// Offer of this sidecar.
    pub(super) ours: Cow<'a, Offer>,
    /// Offer of the other one.
    pub(super) theirs: Arc<Offer>,
    /// Policy of our exchange and pod.
    pub(super) policy: Policy,
    /// Measurements: what was tried and measured between the two.
    pub(super) measured: Measured,
    /// The transports that the settings name.
    pub(super) listed: Option<TransportSet>,
}

// === impl Evidence ===

impl Evidence<'_> {
    /// The choice, in the words of this release.
    pub(super) fn route(&self, what: &What) -> Result<Route, NoRoute> {
        let mut route = negotiate(&self.ours, &self.theirs, what, &self.policy, &self.measured);
        match &mut route {
            Ok(route) => own_up(&mut route.refusals, self.listed),
            Err(none) => own_up(&mut none.refusals, self.listed),
        }
        route
    }

    /// Standing of every transport, in the same words.
    pub(super) fn candidates(&self, what: &What) -> Vec<Candidate> {
        let mut all = candidates(&self.ours, &self.theirs, what, &self.policy, &self.measured);
        for one in &mut all {
            if let Standing::Refused(why) = &mut one.standing {
                *why = owned_up(one.transport, *why, self.listed);
            }
        }
        all
    }
}

//! Parts of Kubernetes that go and come back, all nodes at once, an operator that is rolled, and a webhook that is out of reach.

mod nodes;
mod outages;
mod rolling;
mod webhook;

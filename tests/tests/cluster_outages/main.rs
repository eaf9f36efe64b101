//! Parts of Kubernetes that go and come back, an operator that is rolled, and a webhook that is out of reach.

mod outages;
mod rolling;
mod webhook;

//! Parts of Kubernetes that go and come back, and an operator that is rolled.

mod outages;
mod rolling;

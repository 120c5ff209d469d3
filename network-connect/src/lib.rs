//! User-defined networks of a Kubernetes cluster joined (OKEP-5224, `ClusterNetworkConnect`).
//!
//! ```text
//!   source (API server or folder) ──► resources ──► manager::decide ──► annotations, status, events ──► source
//!                                         │
//!   OVN_Northbound ───────────────────────┴──► zone (incremental) ──► wanted rows ──► OVN_Northbound
//! ```
//!
//! The *cluster manager's half* says which networks a resource joins and what each gets of its subnets; that stands in the
//! resource's annotations. The *zone's half* derives from them the rows of a northbound database: a connect router, its
//! ports to the networks' routers, policies, routes, load balancer groups and ACLs. Both are functions of the resources.

pub mod address;
pub mod manager;
pub mod resource;
pub mod run;
pub mod source;
mod time;
pub mod zone;

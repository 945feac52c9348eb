//! Models of the Hub, on a mock Hub of this machine: no test reaches another host.

mod access;
mod cache;
mod fetching;
mod network;
mod publishing;
mod secure;
mod streaming;
mod util;

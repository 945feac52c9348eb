//! The Hub: repositories by name, their files in the cache that the ecosystem's programs share, and
//! what is published there.
//!
//! From the outside in: `settings` is what the environment says, `client` makes requests (`retry` says
//! when again, `refusal` what a bad answer means), `repo` and `listing` are what a repository holds, `cache` is the
//! folder on disk, `fetch` brings one file there and `download` all that are
//! wanted; `stream` brings shards while they are packed,
//! by the `headers` that it asks for first, and
//! `describe` tells of a model by these alone; `publish` makes a commit of a folder, and `upload` stores its large files.
//!
//! Everything that comes from the network is held to what it must be before it is used: names stay
//! inside the cache, sizes are those that were announced, contents have their hashes.

mod cache;
mod check;
mod client;
mod describe;
mod download;
mod error;
mod fetch;
mod folder;
mod hash;
mod headers;
mod listing;
mod proxy;
mod publish;
mod refusal;
mod repo;
mod retry;
mod select;
mod settings;
mod stop;
mod stream;
mod upload;
mod url;

pub(crate) use check::check_source;
pub(crate) use describe::{Described, describe};
pub(crate) use download::{Ask, find, is_cached, is_packed};
pub(crate) use error::{HubError, Result};
pub(crate) use publish::{Published, Target, publish};
pub(crate) use repo::RepoId;
pub(crate) use select::Purpose;
pub(crate) use settings::Settings;
pub(crate) use stop::Stop;
pub(crate) use stream::{Arriving, Streamed, open as open_stream};

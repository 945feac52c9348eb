//! A model packed while it is fetched: its shards come when they are needed, two at a time, and those that came
//! go again.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use glyd_format::Checkpoint;
use glyd_format::weights::Arrivals;

use super::cache::Cache;
use super::client::Client;
use super::download::{Ask, listing, selection};
use super::fetch::Place;
use super::headers::Remote;
use super::repo::{Entry, RepoId};
use super::settings::Settings;
use super::{HubError, Result, Stop};

/// Shards that are on disk at a time, where no more are needed at once.
const AHEAD: usize = 2;
/// Headers that are asked for at a time.
const HEADERS: usize = 8;

/// A model whose weights arrive while they are read.
pub(crate) struct Streamed {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) commit: String,
    pub(crate) arriving: Arc<Arriving>,
}

/// Brings a model's shards.
#[derive(Debug)]
pub(crate) struct Arriving {
    client: Client,
    repo: RepoId,
    cache: Cache,
    commit: String,
    entries: HashMap<String, Entry>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    shards: BTreeMap<String, Shard>,
    /// The order in which they will be needed.
    order: Vec<String>,
    /// What kept one from coming.
    failed: Option<HubError>,
    closed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shard {
    /// Here before: it stays.
    Kept,
    Coming,
    Here,
    /// Not needed any more.
    Gone,
}

/// Opens a model by its headers: everything but its weights is fetched.
///
/// # Errors
/// Where it cannot be had, or cannot be packed.
pub(crate) fn open(ask: &Ask<'_>, settings: Settings, stop: Stop) -> Result<Streamed> {
    super::repo::check_revision(ask.revision)?;
    if let Some(why) = ask.forbidden.or(settings.offline) {
        return Err(HubError::Usage(format!(
            "{why} forbids requests, and packing while it is fetched takes some"
        )));
    }
    let cache = Cache::new(&settings.cache, ask.repo);
    let client = Client::new(settings, stop)?;
    let (commit, entries) = listing(ask, &client, &cache)?;
    let place = Place { client: &client, repo: ask.repo, cache: &cache, commit: &commit };
    let wanted = selection(ask, &place, &entries)?.wanted;
    cache.check_case(&wanted)?;
    let (shards, others): (Vec<&Entry>, Vec<&Entry>) =
        wanted.into_iter().partition(|entry| is_weights(entry));
    others
        .into_iter()
        .filter(|entry| !cache.has(&commit, entry))
        .try_for_each(|entry| place.fetch(entry, &mut |_| {}))?;
    let headers = headers(&place, &shards)?;
    let dir = cache.snapshot(&commit);
    fs::create_dir_all(&dir).map_err(super::error::io_error("make the folder", &dir))?;
    let kept = shards.iter().filter(|entry| cache.has(&commit, entry));
    let kept = kept.map(|entry| (entry.path.clone(), Shard::Kept)).collect();
    let entries = shards.iter().map(|entry| (entry.path.clone(), (*entry).clone())).collect();
    let state = Mutex::new(State { shards: kept, ..State::default() });
    let repo = ask.repo.clone();
    let arriving = Arc::new(Arriving {
        client,
        repo,
        cache,
        commit: commit.clone(),
        entries,
        state,
        changed: Condvar::new(),
    });
    let checkpoint = Checkpoint::open_arriving(&dir, &headers, Arc::clone(&arriving) as Arc<dyn Arrivals>)?;
    let ahead = Arc::clone(&arriving);
    // It ends with the program, or once nothing more is to come.
    drop(std::thread::spawn(move || ahead.fetch_ahead()));
    Ok(Streamed { checkpoint, commit, arriving })
}

fn is_weights(entry: &Entry) -> bool {
    entry.path.ends_with(".safetensors")
}

/// The headers' texts of shards, some at a time, with their names and bytes.
fn headers(place: &Place<'_>, shards: &[&Entry]) -> Result<Vec<(String, Vec<u8>, u64)>> {
    let mut headers = Vec::new();
    for shards in shards.chunks(HEADERS) {
        let texts: Vec<Result<Vec<u8>>> = std::thread::scope(|scope| {
            let asked: Vec<_> = shards.iter().map(|entry| scope.spawn(|| header(place, entry))).collect();
            let lost = |_| Err(HubError::Interrupted);
            asked.into_iter().map(|asked| asked.join().unwrap_or_else(lost)).collect()
        });
        for (entry, text) in shards.iter().zip(texts) {
            headers.push((entry.path.clone(), text?, entry.bytes));
        }
    }
    Ok(headers)
}

fn header(place: &Place<'_>, entry: &Entry) -> Result<Vec<u8>> {
    let Place { client, repo, commit, .. } = *place;
    let remote = Remote { client, repo: repo.name(), commit, path: &entry.path };
    remote.header(Some(entry.bytes)).map(|(text, _)| text)
}

impl Arriving {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What kept a shard from coming, where something did.
    pub(crate) fn failure(&self) -> Option<HubError> {
        self.state().failed.take()
    }

    /// Ends what is fetched ahead, and takes away what came and is still here.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let here: Vec<String> = state.here().map(str::to_owned).collect();
        here.iter().for_each(|name| self.take_away(&mut state, name));
        self.changed.notify_all();
    }

    /// Fetches a shard that is marked as coming.
    fn bring(&self, name: &str) -> Result<()> {
        let place =
            Place { client: &self.client, repo: &self.repo, cache: &self.cache, commit: &self.commit };
        let fetched = match self.entries.get(name) {
            Some(entry) => place.fetch(entry, &mut |_| {}),
            None => Err(HubError::Usage(format!("no shard is named `{name}`"))),
        };
        let mut state = self.state();
        match &fetched {
            Ok(()) => drop(state.shards.insert(name.to_owned(), Shard::Here)),
            Err(_) => drop(state.shards.remove(name)),
        }
        self.changed.notify_all();
        fetched
    }

    fn fetch_ahead(&self) {
        loop {
            let mut state = self.state();
            let next = loop {
                if state.closed || state.failed.is_some() || self.client.stop.asked() {
                    return;
                }
                match state.next() {
                    Some(next) => break next,
                    None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            state.shards.insert(next.clone(), Shard::Coming);
            drop(state);
            if let Err(error) = self.bring(&next) {
                self.state().failed.get_or_insert(error);
                self.changed.notify_all();
                return;
            }
        }
    }

    /// Removes a shard that came, and its content where no other shard that is here has the same.
    fn take_away(&self, state: &mut State, name: &str) {
        if state.shards.get(name) != Some(&Shard::Here) {
            return;
        }
        state.shards.insert(name.to_owned(), Shard::Gone);
        let Some(entry) = self.entries.get(name) else { return };
        let _ = fs::remove_file(self.cache.snapshot(&self.commit).join(name));
        let same = |(other, shard): (&String, &Shard)| {
            *shard != Shard::Gone && self.entries.get(other).is_some_and(|other| other.hash == entry.hash)
        };
        if !state.shards.iter().any(same) {
            let _ = fs::remove_file(self.cache.blob(&entry.hash));
        }
    }

    fn failed(&self, name: &str, error: HubError) -> glyd_format::Error {
        let text = error.to_string();
        self.state().failed.get_or_insert(error);
        let path = PathBuf::from(self.repo.name()).join(name);
        glyd_format::Error::Io { action: "fetch", path, source: io::Error::other(text) }
    }
}

impl State {
    /// Shards that came and are here, or are coming.
    fn here(&self) -> impl Iterator<Item = &str> {
        let here = self.shards.iter().filter(|(_, shard)| matches!(shard, Shard::Here | Shard::Coming));
        here.map(|(name, _)| name.as_str())
    }

    /// The shard to fetch next, where there is room for one.
    fn next(&self) -> Option<String> {
        let next = self.order.iter().find(|name| !self.shards.contains_key(*name));
        next.filter(|_| self.here().count() < AHEAD).cloned()
    }
}

impl Arrivals for Arriving {
    fn order(&self, files: &[&str]) {
        let mut state = self.state();
        state.order = files.iter().map(|&file| file.to_owned()).collect();
        // What was looked at to plan, and is needed late.
        let early: Vec<String> = state.order.iter().take(AHEAD).cloned().collect();
        let late: Vec<String> =
            state.here().filter(|name| !early.iter().any(|early| early == name)).map(str::to_owned).collect();
        late.iter().for_each(|name| self.take_away(&mut state, name));
        // Nothing is gone for good: this may be a second time.
        state.shards.retain(|_, shard| *shard != Shard::Gone);
        self.changed.notify_all();
    }

    fn wait(&self, file: &str) -> glyd_format::Result<()> {
        let mut state = self.state();
        loop {
            match state.shards.get(file) {
                Some(Shard::Here | Shard::Kept) => return Ok(()),
                Some(Shard::Coming) => {
                    if let Some(error) = state.failed.take() {
                        drop(state);
                        return Err(self.failed(file, error));
                    }
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                Some(Shard::Gone) | None => {
                    if let Some(error) = state.failed.take() {
                        drop(state);
                        return Err(self.failed(file, error));
                    }
                    state.shards.insert(file.to_owned(), Shard::Coming);
                    drop(state);
                    return self.bring(file).map_err(|error| self.failed(file, error));
                }
            }
        }
    }

    fn release(&self, file: &str) {
        let mut state = self.state();
        self.take_away(&mut state, file);
        self.changed.notify_all();
    }
}

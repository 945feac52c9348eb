//! A repository's files found: in the cache where they are all there, else fetched.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use glyd_format::index::Index;
use glyd_format::{Checkpoint, Progress};

use super::cache::Cache;
use super::client::Client;
use super::fetch::Place;
use super::listing;
use super::repo::{Entry, RepoId, check_revision, is_commit};
use super::select::{self, Purpose, Selection};
use super::settings::Settings;
use super::{HubError, Result, Stop};

/// Files that are fetched at a time.
const FETCHES: usize = 8;

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) repo: &'a RepoId,
    pub(crate) revision: &'a str,
    pub(crate) purpose: Purpose,
    /// What forbids requests, where something does beside the environment.
    pub(crate) forbidden: Option<&'a str>,
}

/// A repository's files, in the cache.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) dir: PathBuf,
    pub(crate) commit: String,
    /// What a user should know.
    pub(crate) notes: Vec<String>,
}

/// Whether the cache has all files that are wanted.
///
/// # Errors
/// Where it has them and they cannot be what they are wanted for.
pub(crate) fn is_cached(ask: &Ask<'_>, settings: &Settings) -> Result<bool> {
    check_revision(ask.revision)?;
    Ok(in_cache(ask, &Cache::new(&settings.cache, ask.repo))?.is_some())
}

/// Whether the Hub has a packed checkpoint there.
///
/// # Errors
/// Where it does not say.
pub(crate) fn is_packed(ask: &Ask<'_>, settings: &Settings, stop: Stop) -> Result<bool> {
    let client = Client::new(settings.clone(), stop)?;
    let (_, entries) = listing(ask, &client, &Cache::new(&settings.cache, ask.repo))?;
    Ok(select::is_packed(&entries))
}

/// Finds a repository's files; `progress` is told of what is fetched.
///
/// # Errors
/// Where they are not in the cache and cannot, or may not, be fetched.
pub(crate) fn find(ask: &Ask<'_>, settings: Settings, stop: Stop, progress: &dyn Progress) -> Result<Found> {
    check_revision(ask.revision)?;
    let cache = Cache::new(&settings.cache, ask.repo);
    if let Some(found) = in_cache(ask, &cache)? {
        return Ok(found);
    }
    if let Some(why) = ask.forbidden.or(settings.offline) {
        return offline(ask, &cache, why);
    }
    let client = Client::new(settings, stop)?;
    let (commit, entries) = listing(ask, &client, &cache)?;
    let place = Place { client: &client, repo: ask.repo, cache: &cache, commit: &commit };
    let selection = selection(ask, &place, &entries)?;
    let missing: Vec<&Entry> =
        selection.wanted.iter().filter(|entry| !cache.has(&commit, entry)).copied().collect();
    cache.check_case(&selection.wanted)?;
    check_space(&cache, &missing)?;
    fetch_all(&place, &missing, progress)?;
    let mut notes = Vec::new();
    if selection.left_bytes > 0 {
        let left = crate::output::bytes(selection.left_bytes);
        notes.push(format!("`{}`: not fetched, since it is not needed: {left} of other files", ask.repo));
    }
    Ok(Found { dir: cache.snapshot(&commit), commit, notes })
}

/// The commit of what is asked for and its files, which the cache keeps.
pub(crate) fn listing(ask: &Ask<'_>, client: &Client, cache: &Cache) -> Result<(String, Vec<Entry>)> {
    let commit = match is_commit(ask.revision) {
        true => ask.revision.to_owned(),
        false => listing::commit(client, ask.repo, ask.revision)?,
    };
    let entries = match cache.listing(&commit) {
        Some(entries) => entries,
        None => listing::list(client, ask.repo, &commit)?,
    };
    cache.prepare()?;
    cache.keep_listing(&commit, &entries)?;
    cache.keep_commit(ask.revision, &commit)?;
    Ok((commit, entries))
}

/// What is wanted of the files; the index, which that depends on, is fetched where it is not there.
pub(crate) fn selection<'a>(ask: &Ask<'_>, place: &Place<'_>, entries: &'a [Entry]) -> Result<Selection<'a>> {
    let index = match select::index(entries) {
        Some(entry) => {
            if !place.cache.has(place.commit, entry) {
                place.fetch(entry, &mut |_| {})?;
            }
            Some(Index::read(&place.cache.snapshot(place.commit).join(&entry.path))?)
        }
        None => None,
    };
    Ok(select::select(ask.repo, entries, index.as_ref(), ask.purpose)?)
}

/// The files, where the cache has all that are wanted.
fn in_cache(ask: &Ask<'_>, cache: &Cache) -> Result<Option<Found>> {
    let Some(commit) = cache.commit(ask.revision) else { return Ok(None) };
    let Some(entries) = cache.listing(&commit) else { return Ok(None) };
    let dir = cache.snapshot(&commit);
    let index = match select::index(&entries) {
        Some(entry) if !cache.has(&commit, entry) => return Ok(None),
        Some(entry) => Some(Index::read(&dir.join(&entry.path))?),
        None => None,
    };
    let wanted = select::select(ask.repo, &entries, index.as_ref(), ask.purpose)?.wanted;
    if !wanted.iter().all(|entry| cache.has(&commit, entry)) {
        return Ok(None);
    }
    let as_of = if is_commit(ask.revision) { "" } else { ", which that was when it was fetched" };
    let notes = vec![format!("`{}` at `{}`: in the cache, commit {commit}{as_of}", ask.repo, ask.revision)];
    Ok(Some(Found { dir, commit, notes }))
}

/// What the cache has, where no request may be made.
fn offline(ask: &Ask<'_>, cache: &Cache, why: &str) -> Result<Found> {
    let commit = cache.commit(ask.revision).filter(|commit| cache.snapshot(commit).is_dir());
    let lacks = |found: String, hint: String| HubError::Offline {
        repo: ask.repo.to_string(),
        found,
        why: why.to_owned(),
        hint,
    };
    let Some(commit) = commit else {
        let found = format!("not in the cache `{}` at `{}`", cache.dir().display(), ask.revision);
        return Err(match cache.other_case() {
            Some(other) => lacks(found, format!("the cache has `{other}`: name it so")),
            None => lacks(found, "fetch it first, or allow requests".to_owned()),
        });
    };
    let dir = cache.snapshot(&commit);
    if let Some(entries) = cache.listing(&commit) {
        let missing = entries.iter().filter(|entry| !cache.has(&commit, entry));
        let missing = missing.filter(|entry| glyd_packers::left_behind(Path::new(&entry.path)).is_none());
        let missing: Vec<&str> = missing.map(|entry| entry.path.as_str()).take(3).collect();
        let missing = if missing.is_empty() { "weights" } else { &missing.join(", ") };
        let found = format!("only a part of it is in the cache `{}`, without {missing}", dir.display());
        return Err(lacks(found, "fetch the rest first, or allow requests".to_owned()));
    }
    // Fetched by a program that keeps no listing: what can be opened is taken to be whole.
    if ask.purpose == Purpose::Source {
        Checkpoint::open(&dir)?;
    }
    let note = format!(
        "`{}`: from the cache, which does not know whether all files beside the weights are there",
        ask.repo
    );
    Ok(Found { dir, commit, notes: vec![note] })
}

fn check_space(cache: &Cache, missing: &[&Entry]) -> Result<()> {
    let needed = missing.iter().map(|entry| entry.bytes).sum::<u64>();
    let Ok(found) = rustix::fs::statvfs(cache.dir()) else { return Ok(()) };
    match found.f_bavail.checked_mul(found.f_frsize) {
        Some(free) if free < needed => Err(HubError::Space { path: cache.dir(), needed, free }),
        _ => Ok(()),
    }
}

/// Fetches files, some at a time, the largest first; where one fails the others stop.
fn fetch_all(place: &Place<'_>, missing: &[&Entry], progress: &dyn Progress) -> Result<()> {
    // Contents that two files share come once.
    let mut contents = HashSet::new();
    let (mut firsts, again): (Vec<&Entry>, Vec<&Entry>) =
        missing.iter().partition(|entry| contents.insert(entry.hash.name()));
    firsts.sort_by_key(|entry| std::cmp::Reverse(entry.bytes));
    progress.start(firsts.iter().map(|entry| entry.bytes).sum());
    let told: HashMap<String, AtomicU64> =
        firsts.iter().map(|entry| (entry.path.clone(), AtomicU64::new(0))).collect();
    let queue = Mutex::new(VecDeque::from(firsts));
    let failed = Mutex::new(None);
    let work = || {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(entry) = next else { return };
            let mut tell = |bytes: u64| {
                // What arrives a second time is not told of again.
                let before = told[&entry.path].fetch_max(bytes, Ordering::Relaxed);
                progress.advance(bytes.saturating_sub(before));
            };
            if let Err(error) = place.client.stop.check().and_then(|()| place.fetch(entry, &mut tell)) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                place.client.stop.give_up();
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..FETCHES.min(missing.len()) {
            scope.spawn(work);
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => again.into_iter().try_for_each(|entry| place.fetch(entry, &mut |_| {})),
    }
}

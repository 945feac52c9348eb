//! A model by its name: a folder that is there, or a model of the Hub.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use glyd_format::manifest::Source;
use glyd_format::{Checkpoint, Error, Invalid};

use crate::args::{FromHub, Inspect, Pack};
use crate::hub::{self, Arriving, Ask, Purpose, RepoId, Settings, Streamed};
use crate::meter::Meter;
use crate::output::{self, Failure};

/// The revision of a model of the Hub, where none is named.
const REVISION: &str = "main";

/// A model that is on disk.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) dir: PathBuf,
    /// What a manifest says of it.
    pub(crate) source: Source,
}

/// A model that is open, and what brings its weights where they are yet to come.
pub(crate) struct Opened {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) source: Source,
    pub(crate) arriving: Option<Arc<Arriving>>,
}

/// Opens the model that is to be packed.
pub(crate) fn open(args: &Pack, meter: &Meter) -> Result<Opened, Failure> {
    let quiet = args.voice.quiet;
    let Some(repo) = repo(&args.model) else {
        if args.stream {
            let name = args.model.display();
            return Err(Failure::Usage(format!(
                "--stream: `{name}` is no model of the Hub, and there already"
            )));
        }
        return opened(args, find(&args.model, &args.hub, Purpose::Source, quiet)?);
    };
    let ask = ask(&repo, &args.hub, Purpose::Source);
    // What packing would do is told from headers.
    let by_headers = args.stream || args.dry_run && !args.hub.no_download;
    let settings = Settings::from_env()?;
    if !by_headers || hub::is_cached(&ask, &settings)? || settings.offline.is_some() && !args.stream {
        return opened(args, find(&args.model, &args.hub, Purpose::Source, quiet)?);
    }
    say_taken(&repo, quiet);
    let Streamed { checkpoint, commit, arriving } = hub::open_stream(&ask, settings, meter.stop())?;
    let source = Source { repo: repo.name().as_bytes().to_vec(), revision: Some(commit) };
    Ok(Opened { checkpoint, source, arriving: Some(arriving) })
}

/// What `glyd inspect` looks at.
pub(crate) enum Looked {
    Folder(PathBuf),
    /// A model of the Hub that is not packed, and not in the cache: its headers were asked for.
    Headers(Box<Opened>),
}

/// Finds what is to be looked at; of a model of the Hub that is not packed, no weights are fetched.
pub(crate) fn look(args: &Inspect, meter: &Meter) -> Result<Looked, Failure> {
    let find =
        || find(&args.dir, &args.hub, Purpose::Either, args.json).map(|model| Looked::Folder(model.dir));
    let Some(repo) = repo(&args.dir) else { return find() };
    let ask = ask(&repo, &args.hub, Purpose::Either);
    let settings = Settings::from_env()?;
    let forbidden = ask.forbidden.is_some() || settings.offline.is_some();
    if forbidden || hub::is_cached(&ask, &settings)? || hub::is_packed(&ask, &settings, meter.stop())? {
        return find();
    }
    say_taken(&repo, args.json);
    let Streamed { checkpoint, commit, arriving } = hub::open_stream(&ask, settings, meter.stop())?;
    let source = Source { repo: repo.name().as_bytes().to_vec(), revision: Some(commit) };
    Ok(Looked::Headers(Box::new(Opened { checkpoint, source, arriving: Some(arriving) })))
}

fn opened(args: &Pack, model: Model) -> Result<Opened, Failure> {
    if args.check_source {
        check_source(&model, args.voice.quiet)?;
    }
    Ok(Opened { checkpoint: Checkpoint::open(&model.dir)?, source: model.source, arriving: None })
}

/// The model of the Hub that a name is: where nothing of that name is here.
pub(crate) fn repo(name: &Path) -> Option<RepoId> {
    match std::fs::symlink_metadata(name) {
        Ok(_) => None,
        Err(_) => name.to_str().and_then(RepoId::parse),
    }
}

pub(crate) fn ask<'a>(repo: &'a RepoId, args: &'a FromHub, purpose: Purpose) -> Ask<'a> {
    let revision = args.revision.as_deref().unwrap_or(REVISION);
    Ask { repo, revision, purpose, forbidden: args.no_download.then_some("--no-download") }
}

pub(crate) fn say_taken(repo: &RepoId, quiet: bool) {
    if !quiet {
        output::say(&format!("glyd: note: no folder is named `{repo}`: it is taken as a model of the Hub"));
    }
}

/// Finds the model `name`: a folder of that name wins, and the Hub is asked only for what its cache
/// does not have.
pub(crate) fn find(name: &Path, args: &FromHub, purpose: Purpose, quiet: bool) -> Result<Model, Failure> {
    let Some(repo) = repo(name) else {
        check_folder(name)?;
        if args.revision.is_some() {
            let name = name.display();
            return Err(Failure::Usage(format!("`{name}` is a folder: it has no --revision")));
        }
        return Ok(Model { dir: name.to_owned(), source: source(name) });
    };
    say_taken(&repo, quiet);
    let meter = Meter::new("fetching", quiet);
    let found = hub::find(&ask(&repo, args, purpose), Settings::from_env()?, meter.stop(), &meter);
    meter.finish();
    let found = found?;
    if !quiet {
        found.notes.iter().for_each(|note| output::say(&format!("glyd: note: {note}")));
    }
    let source = Source { repo: repo.name().as_bytes().to_vec(), revision: Some(found.commit) };
    Ok(Model { dir: found.dir, source })
}

/// Holds a model's files to the hashes that a cache names them by.
fn check_source(model: &Model, quiet: bool) -> Result<(), Failure> {
    let meter = Meter::new("checking", quiet);
    let checked = hub::check_source(&model.dir, &meter.stop(), &meter);
    meter.finish();
    if checked? == 0 && !quiet {
        let dir = model.dir.display();
        output::say(&format!(
            "glyd: note: --check-source: nothing says which hashes the files of `{dir}` have"
        ));
    }
    Ok(())
}

/// A model that is no folder is no typing error to be taken for something else.
pub(crate) fn check_folder(model: &Path) -> Result<(), Failure> {
    let (found, hint) = match std::fs::metadata(model) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => ("a file", "name the folder that holds it"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            ("none of that name", "name a folder, or a model of the Hub as owner/name")
        }
        Err(source) => return Err(Error::Io { action: "open", path: model.to_owned(), source }.into()),
    };
    let invalid = Invalid {
        file: Some(model.to_owned()),
        expected: "the folder of a checkpoint".to_owned(),
        found: found.to_owned(),
        hint: Some(hint.to_owned()),
        ..Invalid::default()
    };
    Err(Failure::Format(invalid.into()))
}

/// What the manifest says of a model that is named by a folder.
pub(crate) fn source(model: &Path) -> Source {
    let repo = model.as_os_str().as_bytes().to_vec();
    let absolute = std::path::absolute(model).unwrap_or_else(|_| model.to_owned());
    Source { repo, revision: revision(&absolute) }
}

/// The commit of a Hugging Face cache's snapshot: the folder below `snapshots`.
fn revision(path: &Path) -> Option<String> {
    let hash = |name: &&str| {
        name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let parts: Vec<&str> = path
        .components()
        .map(|part| match part {
            Component::Normal(name) => name.to_str().unwrap_or_default(),
            _ => "",
        })
        .collect();
    let commit = parts.windows(2).rev().find(|pair| pair[0] == "snapshots" && hash(&pair[1]));
    commit.map(|pair| pair[1].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_has_its_commit() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let path = format!("/cache/models--a--b/snapshots/{commit}");
        assert_eq!(revision(Path::new(&path)).as_deref(), Some(commit));
        assert_eq!(revision(Path::new(&format!("{path}/sub"))).as_deref(), Some(commit));
        assert_eq!(revision(Path::new(&format!("/cache/{commit}"))), None);
        assert_eq!(revision(Path::new("/cache/snapshots/main")), None);
    }
}

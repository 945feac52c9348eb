//! Packing while the source's files arrive: which puts need which of them, and what is packed ahead of the
//! shard it goes into, so that a file may go as soon as no put needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use glyd_format::header::{Header, Tensor};
use glyd_format::plan::{Plan, Put};
use glyd_format::weights::{Arrivals, Weights};

use crate::error::{Error, Result};
use crate::output_file::OutputFile;
use crate::save::Output;
use crate::write::{Entry, ShardFile};

use super::{Shard, Writer, arrange};

/// Which of a checkpoint's files each put reads.
pub(super) struct Uses {
    by_put: Vec<BTreeSet<usize>>,
    /// The last put that reads a file, by the file's number.
    last: BTreeMap<usize, usize>,
}

impl Uses {
    fn of(plan: &Plan, weights: &Weights) -> Uses {
        let files = |put: &Put| -> BTreeSet<usize> {
            let sources = put.values().flat_map(|value| value.expr.sources());
            sources.filter_map(|name| Some(weights.file_number(weights.find(name)?))).collect()
        };
        let by_put: Vec<BTreeSet<usize>> = plan.puts.iter().map(files).collect();
        let uses = by_put.iter().enumerate();
        let last = uses.flat_map(|(put, files)| files.iter().map(move |&file| (file, put))).collect();
        Uses { by_put, last }
    }

    /// The files in the order in which they are first read.
    fn order(&self) -> Vec<usize> {
        let mut seen = BTreeSet::new();
        self.by_put.iter().flatten().copied().filter(|&file| seen.insert(file)).collect()
    }

    /// Tells what brings the files in which order they will be read.
    pub(super) fn tell(plan: &Plan, weights: &Weights, arrivals: &dyn Arrivals) -> Uses {
        let uses = Uses::of(plan, weights);
        let files = uses.order().into_iter().map(|file| weights.files()[file].name.as_str());
        arrivals.order(&files.collect::<Vec<_>>());
        uses
    }

    /// Lets the files go that `puts` are the last to read.
    pub(super) fn release(uses: Option<&Uses>, weights: &Weights, puts: Range<usize>) {
        let done = uses.into_iter().flat_map(|uses| uses.done(puts.start, puts.end));
        done.for_each(|file| weights.release(file));
    }

    /// The first put from `start` on that reads a file which the put `start` does not.
    pub(super) fn end(&self, start: usize) -> usize {
        let needed = self.by_put.get(start);
        let more = |files: &BTreeSet<usize>| needed.is_some_and(|needed| !files.is_subset(needed));
        let rest = self.by_put.iter().skip(start).position(more);
        rest.map_or(self.by_put.len(), |rest| start + rest)
    }

    /// The files that the puts from `start` to before `end` are the last to read.
    fn done(&self, start: usize, end: usize) -> impl Iterator<Item = usize> {
        self.last.iter().filter(move |(_, put)| (start..end).contains(put)).map(|(&file, _)| file)
    }
}

/// What is packed and in no shard yet: parts, each with the entries of a few puts.
#[derive(Default)]
pub(super) struct Spool {
    parts: Vec<PathBuf>,
    /// Entries of each part that are yet to go into a shard.
    left: Vec<usize>,
    places: BTreeMap<(usize, Option<usize>), Place>,
    open: Option<(usize, File)>,
}

/// Where an entry's bytes are.
struct Place {
    part: usize,
    offset: u64,
}

impl Spool {
    /// The name of the next part.
    pub(super) fn next_name(&self) -> PathBuf {
        PathBuf::from(format!("{:05}.ahead", self.parts.len()))
    }

    /// Takes a part that is written: its entries, and the number of each one's tensor in the header.
    pub(super) fn add(&mut self, header: &Header, entries: &[(Entry, usize)]) {
        let part = self.parts.len();
        for &(entry, tensor) in entries {
            let offset = header.data_offset + header.tensors[tensor].begin;
            self.places.insert(key(entry), Place { part, offset });
        }
        self.parts.push(self.next_name());
        self.left.push(entries.len());
    }

    /// Moves an entry's bytes to where its tensor goes in a shard; a part that is all moved is removed.
    pub(super) fn move_to(
        &mut self,
        output: &Output,
        entry: Entry,
        tensor: &Tensor,
        shard: (&OutputFile, u64),
        stopped: &dyn Fn() -> bool,
    ) -> Result<()> {
        const CHUNK_BYTES: u64 = 4 << 20;
        let Some(Place { part, offset }) = self.places.remove(&key(entry)) else { return Ok(()) };
        let name = &self.parts[part];
        let file = match self.open.take() {
            Some((open, file)) if open == part => file,
            _ => output.open(name)?,
        };
        let (shard, start) = shard;
        let mut done = 0;
        let mut chunk = Vec::new();
        while done < tensor.bytes() {
            if stopped() {
                return Err(Error::Interrupted);
            }
            let here = CHUNK_BYTES.min(tensor.bytes() - done);
            chunk.resize(usize::try_from(here).unwrap_or(usize::MAX), 0);
            let read = file.read_exact_at(&mut chunk, offset + done);
            read.map_err(|source| Error::Write { action: "read", path: output.path().join(name), source })?;
            shard.write_at(&chunk, start + done)?;
            done += here;
        }
        self.left[part] -= 1;
        if self.left[part] == 0 {
            return output.remove(name);
        }
        self.open = Some((part, file));
        Ok(())
    }
}

fn key(entry: Entry) -> (usize, Option<usize>) {
    (entry.put, entry.buffer.map(|buffer| buffer as usize))
}

impl Writer<'_> {
    /// Packs puts into a part of their own, ahead of the shards they go into.
    pub(super) fn pack_ahead(&mut self, puts: Range<usize>) -> Result<()> {
        let mut shard = Shard::default();
        for put in puts {
            for (entry, tensor) in self.entries(put)? {
                shard.entries.push(entry);
                shard.tensors.push(tensor);
            }
        }
        let (header, entries) = arrange(shard, self.job.checkpoint)?;
        let bytes = header.data_offset + header.data_bytes();
        self.check_space(bytes)?;
        let Some(spool) = &mut self.spool else { return Ok(()) };
        let name = spool.next_name();
        spool.add(&header, &entries);
        let file = self.job.output.file(&name, bytes)?;
        self.write_entries(&ShardFile { file: &file, header: &header, entries: &entries })
    }

    /// Moves what was packed ahead into a shard.
    pub(super) fn move_parts(&mut self, shard: &ShardFile<'_>) -> Result<()> {
        let Some(spool) = &mut self.spool else { return Ok(()) };
        let stopped = || self.job.progress.stopped();
        for &(entry, at) in shard.entries {
            let tensor = &shard.header.tensors[at];
            let start = shard.header.data_offset + tensor.begin;
            spool.move_to(self.job.output, entry, tensor, (shard.file, start), &stopped)?;
        }
        Ok(())
    }
}

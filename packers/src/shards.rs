//! What is planned written shard by shard: measured a shard ahead, so that it is known where each one
//! ends, and in the end the index and the manifest.

mod ahead;
mod finish;

use std::collections::BTreeMap;
use std::path::Path;

use glyd_format::header::{Header, tensor_bytes};
use glyd_format::manifest::{ExpertsEntry, Format, PackEntry, PackedTensor, buffer_name};
use glyd_format::plan::{Pack, Plan, Put};
use glyd_format::{Buffer, Checkpoint, Digest, Dtype, Layout, Progress};
use rayon::ThreadPool;

use crate::error::{Error, Result};
use crate::matrix::Matrix;
use crate::measure::{Measured, Puts, measure};
use crate::pack::Options;
use crate::save::Output;
use crate::write::{Entry, ShardFile, Sources, write_shard};
use ahead::{Spool, Uses};

/// A matrix that packed would be larger than its weights by more than this part is saved as it is.
pub(crate) const GROWTH_MAX: u64 = 100;

/// What was written of a plan.
pub(crate) enum Written {
    Saved(Saved),
    /// These tensors of the model would grow: by name.
    Grew(Vec<String>),
}

/// A checkpoint that is written, and not yet in its place: its files, and the bytes of its packs.
pub(crate) struct Saved {
    pub(crate) files: Vec<(String, u64)>,
    pub(crate) packed_bytes: u64,
}

/// What a plan is written with.
pub(crate) struct Job<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) options: &'a Options,
    pub(crate) pool: &'a ThreadPool,
    pub(crate) output: &'a Output,
    pub(crate) progress: &'a dyn Progress,
}

/// A tensor as it is saved: its name, dtype and shape.
type SavedTensor = (String, Dtype, Vec<u64>);

/// A shard while its entries gather, in the order of puts.
#[derive(Default)]
struct Shard {
    entries: Vec<Entry>,
    tensors: Vec<SavedTensor>,
    bytes: u64,
}

impl Job<'_> {
    /// Measures and writes all that the plan puts; `known` keeps what was measured, by pack, for a
    /// second try.
    pub(crate) fn write(&self, plan: &Plan, known: &mut BTreeMap<String, Measured>) -> Result<Written> {
        let mut writer = Writer {
            job: self,
            plan,
            measured: BTreeMap::new(),
            shard: Shard::default(),
            shards: Vec::new(),
            weight_map: Vec::new(),
            digests: BTreeMap::new(),
            packs: BTreeMap::new(),
            packed_bytes: 0,
            spool: self.checkpoint.weights().arrivals().map(|_| Spool::default()),
        };
        let weights = self.checkpoint.weights();
        let uses = weights.arrivals().map(|arrivals| Uses::tell(plan, weights, arrivals));
        let mut next = 0;
        while next < plan.puts.len() {
            let mut end = self.batch_end(plan, next, uses.as_ref());
            let mut grew = writer.measure(next..end, known)?;
            if !grew.is_empty() {
                // All else that would grow is found at once: what is written now is written again.
                while next < plan.puts.len() {
                    Uses::release(uses.as_ref(), weights, next..end);
                    (next, end) = (end, self.batch_end(plan, end, uses.as_ref()));
                    grew.extend(writer.measure(next..end, known)?);
                }
                known.extend(writer.take_measured());
                return Ok(Written::Grew(grew));
            }
            if uses.is_some() {
                writer.pack_ahead(next..end)?;
                Uses::release(uses.as_ref(), weights, next..end);
            }
            for put in next..end {
                writer.put(put)?;
            }
            next = end;
        }
        writer.finish().map(Written::Saved)
    }

    /// The puts that are measured together: about a shard's; of files that are yet to arrive, those that
    /// need no more of them than the first.
    fn batch_end(&self, plan: &Plan, start: usize, uses: Option<&Uses>) -> usize {
        let mut bytes = 0_u64;
        let end = uses.map_or(plan.puts.len(), |uses| uses.end(start));
        let rest = plan.puts[start..end].iter();
        let fit = rest.take_while(|put| {
            let fits = bytes < self.shard_bytes();
            bytes = bytes.saturating_add(put_bytes(put));
            fits
        });
        start + fit.count()
    }

    /// The bytes that fill a shard: an empty one is never full.
    fn shard_bytes(&self) -> u64 {
        self.options.shard_bytes.max(1)
    }
}

/// Bytes of a put's tensors, unpacked.
pub(crate) fn put_bytes(put: &Put) -> u64 {
    match put {
        Put::Pack(pack) => pack.shape[0].saturating_mul(pack.shape[1]).saturating_mul(2),
        Put::Plain(plain) => tensor_bytes(plain.dtype, &plain.shape).unwrap_or(u64::MAX),
    }
}

/// Bytes that are worked on: what [`Progress`] is told of.
pub(crate) fn work_bytes(plan: &Plan) -> u64 {
    plan.puts.iter().fold(0, |all, put| all.saturating_add(put_bytes(put)))
}

struct Writer<'a> {
    job: &'a Job<'a>,
    plan: &'a Plan,
    /// What is measured and not yet written whole, by put.
    measured: BTreeMap<usize, Measured>,
    shard: Shard,
    shards: Vec<(String, u64)>,
    /// Tensors and the number of the shard of each.
    weight_map: Vec<(String, usize)>,
    digests: BTreeMap<usize, Digest>,
    packs: BTreeMap<usize, PackEntry>,
    packed_bytes: u64,
    /// What is packed ahead, where the source's files arrive meanwhile.
    spool: Option<Spool>,
}

impl Writer<'_> {
    /// Measures these puts; returns the tensors that would grow if they were packed.
    fn measure(
        &mut self,
        puts: std::ops::Range<usize>,
        known: &mut BTreeMap<String, Measured>,
    ) -> Result<Vec<String>> {
        let (mut numbers, mut matrices) = (Vec::new(), Vec::new());
        let (mut plain_numbers, mut plain) = (Vec::new(), Vec::new());
        for put in puts {
            let pack = match &self.plan.puts[put] {
                Put::Pack(pack) => pack,
                Put::Plain(own) => {
                    plain_numbers.push(put);
                    plain.push(own);
                    continue;
                }
            };
            if let Some(measured) = known.remove(&pack.name()) {
                self.measured.insert(put, measured);
                continue;
            }
            numbers.push(put);
            matrices.push(matrix(pack)?);
        }
        let Job { checkpoint, options, pool, progress, .. } = self.job;
        let of: Vec<&Matrix<'_>> = matrices.iter().collect();
        let puts = Puts { matrices: &of, plain: &plain };
        let (measured, digests) = measure(pool, checkpoint.weights(), &puts, options.layout, *progress)?;
        self.digests.extend(plain_numbers.into_iter().zip(digests));
        let mut grew = Vec::new();
        for ((put, matrix), measured) in numbers.into_iter().zip(&matrices).zip(measured) {
            let bytes = Buffer::ALL.iter().map(|&buffer| measured.buffer_bytes(matrix, buffer)).sum::<u64>();
            let fits = measured.list_units() <= options.layout.list_units_max();
            if bytes > matrix.bytes() + matrix.bytes() / GROWTH_MAX || !fits {
                grew.extend(matrix.pack.tensors.iter().map(|tensor| tensor.name.clone()));
            }
            self.measured.insert(put, measured);
        }
        Ok(grew)
    }

    fn take_measured(&mut self) -> Vec<(String, Measured)> {
        let measured = std::mem::take(&mut self.measured).into_iter();
        let name = |put: usize| match &self.plan.puts[put] {
            Put::Pack(pack) => pack.name(),
            Put::Plain(plain) => plain.name.clone(),
        };
        measured.map(|(put, measured)| (name(put), measured)).collect()
    }

    /// Puts what a put saves into the shard, which is written once it is full.
    fn put(&mut self, put: usize) -> Result<()> {
        if let Put::Pack(pack) = &self.plan.puts[put] {
            self.packs.insert(put, pack_entry(pack, &self.measured[&put]));
        }
        for (entry, (name, dtype, shape)) in self.entries(put)? {
            if entry.buffer.is_some() {
                self.packed_bytes += tensor_bytes(dtype, &shape).unwrap_or(0);
            }
            self.add(entry, name, dtype, shape)?;
        }
        Ok(())
    }

    /// The tensors that a put saves.
    fn entries(&self, put: usize) -> Result<Vec<(Entry, SavedTensor)>> {
        let pack = match &self.plan.puts[put] {
            Put::Plain(plain) => {
                let tensor = (plain.name.clone(), plain.dtype, plain.shape.clone());
                return Ok(vec![(Entry { put, buffer: None }, tensor)]);
            }
            Put::Pack(pack) => pack,
        };
        let matrix = matrix(pack)?;
        let measured = &self.measured[&put];
        let layout = self.job.options.layout;
        let name = pack.name();
        let entry = |buffer| {
            let dtype = layout.dtype(buffer);
            let length = measured.buffer_bytes(&matrix, buffer) / (dtype.bitsize() as u64 / 8);
            let name = buffer_name(&name, pack.experts.is_some(), layout, buffer);
            (Entry { put, buffer: Some(buffer) }, (name, dtype, vec![length]))
        };
        Ok(Buffer::ALL.map(entry).into())
    }

    fn write_entries(&self, written: &ShardFile<'_>) -> Result<()> {
        let sources = Sources {
            weights: self.job.checkpoint.weights(),
            puts: &self.plan.puts,
            measured: &self.measured,
        };
        write_shard(self.job.pool, &sources, written, self.job.progress)
    }

    fn add(&mut self, entry: Entry, name: String, dtype: Dtype, shape: Vec<u64>) -> Result<()> {
        if self.shard.bytes >= self.job.shard_bytes() {
            self.write_shard()?;
        }
        self.shard.bytes += tensor_bytes(dtype, &shape).unwrap_or(0);
        self.weight_map.push((name.clone(), self.shards.len()));
        self.shard.entries.push(entry);
        self.shard.tensors.push((name, dtype, shape));
        Ok(())
    }

    /// Writes the shard under a temporary name: how many there will be is not known yet.
    fn write_shard(&mut self) -> Result<()> {
        let shard = std::mem::take(&mut self.shard);
        let last = shard.entries.last().copied();
        let (header, entries) = arrange(shard, self.job.checkpoint)?;
        let bytes = header.data_offset + header.data_bytes();
        let name = format!("{:05}.part", self.shards.len());
        if self.spool.is_some() {
            // No space is set aside: each part that is moved gives some.
            let file = self.job.output.file(Path::new(&name), 0)?;
            file.write_at(&header.to_bytes(), 0)?;
            self.move_parts(&ShardFile { file: &file, header: &header, entries: &entries })?;
            self.job.output.finish(file)?;
        } else {
            self.check_space(bytes)?;
            let file = self.job.output.file(Path::new(&name), bytes)?;
            file.write_at(&header.to_bytes(), 0)?;
            self.write_entries(&ShardFile { file: &file, header: &header, entries: &entries })?;
            self.job.output.finish(file)?;
        }
        self.shards.push((name, bytes));
        if let Some(last) = last {
            // What was measured ahead is kept, and a pack whose other buffers go into the next shard.
            let goes_on = !matches!(last.buffer, None | Some(Buffer::Base));
            self.measured.retain(|&put, _| put > last.put || put == last.put && goes_on);
        }
        Ok(())
    }

    fn check_space(&self, bytes: u64) -> Result<()> {
        match self.job.output.bytes_free() {
            Some(free) if free < bytes => Err(Error::Output {
                path: self.job.output.path().to_owned(),
                reason: format!("the next file needs {bytes} bytes, and {free} are free on its disk"),
                hint: "free some space, or name a folder on another disk".to_owned(),
            }),
            _ => Ok(()),
        }
    }
}

/// The header of a shard, and its entries with the number of each one's tensor in it.
fn arrange(shard: Shard, checkpoint: &Checkpoint) -> Result<(Header, Vec<(Entry, usize)>)> {
    let names: Vec<String> = shard.tensors.iter().map(|(name, _, _)| name.clone()).collect();
    let header = Header::arrange(shard.tensors).ok_or_else(|| too_large(checkpoint))?;
    let places: BTreeMap<&str, usize> =
        header.tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.as_str(), at)).collect();
    let entries = shard.entries.iter().zip(&names).map(|(entry, name)| (*entry, places[name.as_str()]));
    let entries = entries.collect();
    Ok((header, entries))
}

fn pack_entry(pack: &Pack, measured: &Measured) -> PackEntry {
    let tensors = pack.tensors.iter().zip(&measured.digests).map(|(part, &sha256)| PackedTensor {
        name: part.name.clone(),
        shape: part.shape.clone(),
        sha256,
    });
    let experts =
        pack.experts.map(|experts| ExpertsEntry { count: experts.count, transposed: experts.transposed });
    PackEntry { shape: pack.shape, coding: measured.coding, tensors: tensors.collect(), experts }
}

pub(crate) fn format_of(plan: &Plan, layout: Layout) -> Format {
    let experts = plan.puts.iter().any(|put| matches!(put, Put::Pack(pack) if pack.experts.is_some()));
    Format::of(layout, experts)
}

pub(crate) fn matrix(pack: &Pack) -> Result<Matrix<'_>> {
    Matrix::new(pack).ok_or_else(|| {
        glyd_format::Invalid {
            tensor: Some(pack.name()),
            expected: "a matrix of whole steps, made of its tensors".to_owned(),
            found: format!("shape {:?}", pack.shape),
            ..Default::default()
        }
        .into()
    })
}

fn too_large(checkpoint: &Checkpoint) -> Error {
    glyd_format::Invalid {
        file: Some(checkpoint.dir().to_owned()),
        expected: "tensors of fewer than 2^64 bytes in all".to_owned(),
        found: "more".to_owned(),
        ..Default::default()
    }
    .into()
}

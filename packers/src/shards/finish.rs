//! What stands after the shards: their names, the index and the manifest.

use std::path::Path;

use glyd_format::index::{INDEX_NAME, Index};
use glyd_format::manifest::{MANIFEST_NAME, Manifest, WRITER_VERSION};
use glyd_format::packed::SINGLE_NAME;
use glyd_format::plan::Put;

use super::{Saved, Writer, format_of, put_bytes};
use crate::error::Result;

impl Writer<'_> {
    /// Writes the last shard, the index and the manifest.
    pub(super) fn finish(mut self) -> Result<Saved> {
        if !self.shard.entries.is_empty() || self.shards.is_empty() {
            self.write_shard()?;
        }
        let count = self.shards.len();
        let name = |number: usize| match count {
            1 => SINGLE_NAME.to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        let output = self.job.output;
        let mut files = Vec::new();
        for (number, (part, bytes)) in self.shards.iter().enumerate() {
            output.rename(part, &name(number))?;
            files.push((name(number), *bytes));
        }
        if count > 1 {
            let total = self.weight_map_bytes();
            let weight_map =
                self.weight_map.iter().map(|(tensor, shard)| (tensor.clone(), name(*shard))).collect();
            let text = Index { weight_map, total_bytes: Some(total) }.text();
            output.write(Path::new(INDEX_NAME), &text)?;
            files.push((INDEX_NAME.to_owned(), text.len() as u64));
        }
        let text = self.manifest().text();
        output.write(Path::new(MANIFEST_NAME), &text)?;
        files.push((MANIFEST_NAME.to_owned(), text.len() as u64));
        Ok(Saved { files, packed_bytes: self.packed_bytes })
    }

    /// Bytes of data of all shards.
    fn weight_map_bytes(&self) -> u64 {
        let plain = self.plan.puts.iter().filter(|put| matches!(put, Put::Plain(_))).map(put_bytes);
        self.packed_bytes + plain.sum::<u64>()
    }

    fn manifest(&self) -> Manifest {
        let options = self.job.options;
        let mut packs = Vec::new();
        let mut tensors = Vec::new();
        for (number, put) in self.plan.puts.iter().enumerate() {
            match put {
                Put::Pack(pack) => packs.push((pack.name(), self.packs[&number].clone())),
                Put::Plain(plain) => tensors.push((plain.name.clone(), self.digests[&number])),
            }
        }
        Manifest {
            format: format_of(self.plan, options.layout),
            glyd: WRITER_VERSION,
            source: options.source.clone(),
            layout: options.layout,
            packs,
            tensors: Some(tensors),
        }
    }
}

//! Where a model's config and headers come from: a folder, packed or not, or a repository of the Hub.

use std::path::Path;

use glyd_format::file::read_small;
use glyd_format::finding::Level;
use glyd_format::manifest::MANIFEST_NAME;
use glyd_format::packed::Opened;
use glyd_format::plan::{Inventory, TensorInfo};
use glyd_format::weights::Weights;
use glyd_format::{Checkpoint, Dtype, Invalid, Layout, Packed, Progress};
use glyd_gpu::fit::{PackedMatrix, Packing};
use glyd_packers::{Options, SHARD_BYTES};
use serde_json::Value;

use crate::args::Fit;
use crate::hub::{self, Ask, Purpose, Settings};
use crate::inspect::plain;
use crate::meter::Meter;
use crate::model::{self, source};
use crate::output::{Failure, say};
use crate::pack::say_notes;

const CONFIG_NAME: &str = "config.json";
const CONFIG_BYTES_MAX: u64 = 100_000_000;
/// Bytes of two tied tensors that are compared at each of a few places.
const SAMPLE_BYTES: u64 = 64 << 10;
const SAMPLES: u64 = 8;

/// What fit's sums are made of.
pub(super) struct Source {
    pub(super) revision: Option<String>,
    pub(super) config: Value,
    pub(super) inventory: Inventory,
    pub(super) packing: Packing,
    /// The weights themselves, where they are at hand.
    checkpoint: Option<Checkpoint>,
}

impl Source {
    /// The model that was named: a folder that is there, else a repository.
    pub(super) fn of(args: &Fit) -> Result<Source, Failure> {
        let name = Path::new(&args.model);
        let quiet = args.voice.quiet || args.voice.json;
        if let Some(repo) = model::repo(name) {
            let ask = model::ask(&repo, &args.hub, Purpose::Either);
            let settings = Settings::from_env()?;
            let forbidden = ask.forbidden.is_some() || settings.offline.is_some();
            if !forbidden && !hub::is_cached(&ask, &settings)? {
                model::say_taken(&repo, quiet);
                return described(args, &ask, settings);
            }
        }
        let dir = &model::find(name, &args.hub, Purpose::Either, quiet)?.dir;
        // A link that dangles is there too.
        if std::fs::symlink_metadata(dir.join(MANIFEST_NAME)).is_ok() {
            packed(dir)
        } else {
            folder(dir, args)
        }
    }

    /// Whether two tied tensors are equal, as far as a few places of both show it; of a repository, whose
    /// weights are not read, whether its config says so itself.
    pub(super) fn tied(&self, a: &str, b: &str, stated: bool) -> bool {
        match &self.checkpoint {
            Some(checkpoint) => alike(checkpoint.weights(), a, b).unwrap_or(false),
            None => stated,
        }
    }
}

/// A model of the Hub, by what can be told without its weights.
fn described(args: &Fit, ask: &Ask<'_>, settings: Settings) -> Result<Source, Failure> {
    if args.measure {
        let message = "--measure counts weights, which are not fetched: fetch the model first, with `hf download` for example";
        return Err(Failure::Usage(message.to_owned()));
    }
    // Silent: it is there so that an interrupt ends what is asked of the Hub.
    let meter = Meter::new("looking", true);
    let hub::Described { revision, config, inventory } = hub::describe(ask, settings, meter.stop())?;
    let packing = Packing::Estimated;
    Ok(Source { revision: Some(revision), config, inventory, packing, checkpoint: None })
}

fn folder(dir: &Path, args: &Fit) -> Result<Source, Failure> {
    let checkpoint = Checkpoint::open(dir)?;
    if !args.voice.quiet {
        say_notes(&checkpoint);
    }
    let packing = if args.measure { measure(&checkpoint, args)? } else { Packing::Estimated };
    Ok(Source {
        revision: source(dir).revision,
        config: checkpoint.config().clone(),
        inventory: checkpoint.inventory(),
        packing,
        checkpoint: Some(checkpoint),
    })
}

/// Counts a checkpoint's weights; one with nothing to pack is sized as it is.
fn measure(checkpoint: &Checkpoint, args: &Fit) -> Result<Packing, Failure> {
    let options = Options {
        layout: Layout::Mma,
        merge: true,
        cast: false,
        shard_bytes: SHARD_BYTES,
        threads: None,
        source: source(checkpoint.dir()),
    };
    let meter = Meter::new("measuring", args.voice.quiet);
    let sizes = glyd_packers::measure_sizes(checkpoint, &options, &meter as &dyn Progress);
    meter.finish();
    match sizes {
        Ok(sizes) => Ok(Packing::Measured(sizes)),
        Err(glyd_packers::Error::NothingToPack { reason, .. }) => {
            say(&format!("glyd: note: nothing to measure: {reason}"));
            Ok(Packing::Estimated)
        }
        Err(error) => Err(error.into()),
    }
}

/// A packed checkpoint: the tensors of the model that was packed, and the bytes of the packs.
fn packed(dir: &Path) -> Result<Source, Failure> {
    let Opened { packed, findings } = Packed::open(dir)?;
    let damage = findings.into_iter().find(|finding| finding.level == Level::Damage);
    let packed = match (packed, damage) {
        (Some(packed), None) => packed,
        (_, Some(finding)) => {
            let hint = Some("`glyd verify` names all that is wrong with it".to_owned());
            return Err(Failure::Format(Invalid { hint, ..finding.what }.into()));
        }
        (None, None) => return Err(Failure::Usage(format!("`{}` holds no checkpoint", dir.display()))),
    };
    let mut inventory: Inventory = plain(&packed)
        .into_iter()
        .map(|(name, tensor)| {
            (name.to_owned(), TensorInfo { dtype: tensor.dtype, shape: tensor.shape.clone() })
        })
        .collect();
    let mut packs = Vec::new();
    for (name, entry) in &packed.manifest().packs {
        let size = |at| packed.weights().tensor(at).bytes();
        let buffers = packed.buffers(name, entry);
        let bytes = buffers.map_or(0, |buffers| size(buffers.data) + size(buffers.list) + size(buffers.base));
        let weights = entry.shape[0].saturating_mul(entry.shape[1]);
        let tensors = entry.tensors.iter().map(|tensor| tensor.name.clone()).collect();
        packs.push(PackedMatrix { tensors, weights, bytes });
        inventory.extend(entry.tensors.iter().map(|tensor| {
            (tensor.name.clone(), TensorInfo { dtype: Dtype::BF16, shape: tensor.shape.clone() })
        }));
    }
    let manifest = packed.manifest();
    let packing = Packing::Packed { layout: manifest.layout, packs };
    let revision = manifest.source.revision.clone();
    Ok(Source { revision, config: config(dir)?, inventory, packing, checkpoint: None })
}

fn config(dir: &Path) -> Result<Value, Failure> {
    let path = dir.join(CONFIG_NAME);
    let text = read_small(&path, CONFIG_BYTES_MAX)?;
    glyd_format::json::read_config(&text).map_err(|error| {
        let invalid = Invalid {
            file: Some(path),
            expected: "a JSON object".to_owned(),
            found: error.to_string(),
            ..Invalid::default()
        };
        Failure::Format(invalid.into())
    })
}

/// Compares two tensors at a few places.
fn alike(weights: &Weights, a: &str, b: &str) -> Option<bool> {
    let (a, b) = (weights.find(a)?, weights.find(b)?);
    let total = weights.tensor(a).bytes();
    if total != weights.tensor(b).bytes() {
        return Some(false);
    }
    let each = SAMPLE_BYTES.min(total);
    let (mut left, mut right) = (vec![0; usize::try_from(each).ok()?], vec![0; usize::try_from(each).ok()?]);
    for at in 0..SAMPLES {
        let offset = (total - each) / (SAMPLES - 1) * at;
        weights.read_at(a, &mut left, offset).ok()?;
        weights.read_at(b, &mut right, offset).ok()?;
        if left != right {
            return Some(false);
        }
    }
    Some(true)
}
